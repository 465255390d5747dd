"""Studies on a real Slurm: a controller and two nodes on this machine.

Skipped if Slurm is not installed.
"""

import contextlib
import dataclasses
import os
import re
import time

import pytest

from emergo.core.errors import InputError
from emergo.store import StudyFolder, study_status
from emergo.store.claims import read_claim
from emergo.study import Slurm, study_table, submit_plan

from .slurm_cluster import why_not
from .test_script import FIELDS, HOSTILE
from .tiny import quiet, same_tables, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no Slurm: {why_not()}"),
]

ASKED = Slurm(minutes=60, gpus=0, cpus=1, memory_gb=0.5)
STEPS = 500

# A plugin for the jobs. Training waits after step 200 until the file `go` exists, which leaves time
# to interrupt it.
PATIENT = """
import signal, time
from pathlib import Path
from emergo.study import executor

go, train = Path(__file__).with_name("go"), executor.train


def patient(runs, *, progress, **options):
    def show(now):
        progress(now)
        handler = signal.getsignal(signal.SIGINT)  # changes once this process is told to end
        while (
            now.running
            and now.running[0][1] > 200
            and not go.exists()
            and signal.getsignal(signal.SIGINT) is handler
        ):
            time.sleep(0.05)
            progress(now)

    return train(runs, progress=show, **options)


executor.train = patient
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The table of the study without an interruption."""
    return _study().run(tmp_path_factory.mktemp("expected"), progress=quiet).table


def _study(**asked):
    """Return a study of one unit of two runs, which train to their last step."""
    return tiny(
        seeds=2,
        name="waits",
        threshold=None,
        steps=STEPS,
        slurm=dataclasses.replace(ASKED, **asked),
    )


def _waiting(path, **asked):
    """Return the study whose training waits, and the file that ends the waiting."""
    (path / "patient.py").write_text(PATIENT)
    return _study(**asked).replace(plugins=[str(path / "patient.py")]), path / "go"


def submit(study, path):
    folder = StudyFolder(path)
    plan, _ = study.open(folder)
    return folder, submit_plan(folder, plan, study.slurm)


def wait_for(condition, what, seconds=120):
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"{what}: not after {seconds} s"
        time.sleep(0.2)
    return value


def output(sent):
    return "".join(path.read_text() for path in sent.folder.glob("*_log.*"))


def wait_until_finished(folder, sent):
    def finished():
        text = output(sent)
        assert "Traceback" not in text, text
        return study_status(folder).complete

    wait_for(finished, "the study is complete", 300)


def training(folder):
    """Return the claim of the unit once its runs have made some steps."""
    (unit,) = folder.read()[0].units
    claim = read_claim(folder.claims / f"{unit.id}.json")
    started = claim and claim.get("progress", {}).get("running") and step(claim) > 200
    return claim if started else None


def step(claim):
    return min(at for _, at, _ in claim["progress"]["running"])


def job_field(cluster, job, name):
    text = cluster.call("scontrol", "show", "job", job)
    match = re.search(rf"\b{name}=(\S+)", text)
    return match[1] if match else ""


def test_an_array_of_tasks_trains_the_units(cluster, tmp_path):
    """Submission, array, result table; a second submission has another folder."""
    study = tiny(
        grid={"learning_rate": [5e-4, 1e-3]},
        seeds=2,
        unit=2,
        slurm=dataclasses.replace(ASKED, tasks=2),
    )
    folder, sent = submit(study, tmp_path / "out")
    assert sent.tasks == 2
    [plan] = folder.read()
    again = submit_plan(folder, plan, study.slurm)
    assert again.folder != sent.folder
    cluster.call("scancel", again.job)
    wait_until_finished(folder, sent)
    table = study_table(folder, plan)
    same_tables(table, study.run(tmp_path / "here", progress=quiet).table)
    assert table["identity"].is_unique
    script = next(sent.folder.glob("*.sh")).read_text()
    for line in (
        "--array=0-1%2",
        "--time=60",
        "--cpus-per-task=1",
        "--mem=512MB",
        "--requeue",
        "--signal=USR2@90",
    ):
        assert line in script, line
    with pytest.raises(InputError, match="all 4 runs are finished; there is nothing to submit"):
        submit_plan(folder, plan, study.slurm)


def test_interrupted_tasks_save_and_are_requeued_and_continue(cluster, tmp_path, expected):
    """First by the signal that warns of the time limit, then by preemption, where Slurm kills the
    task and starts it again. No hook of submitit is called."""
    study, go = _waiting(tmp_path, cpus=2, extra={"nodelist": "n1"})
    folder, sent = submit(study, tmp_path / "out")
    first = wait_for(lambda: training(folder), "training")
    cluster.call("scancel", "--signal=USR2", sent.job)
    wait_for(lambda: "back into the queue" in output(sent), "the task has seen the signal")
    assert list(folder.checkpoints.glob("*/*.npz"))
    second = wait_for(
        lambda: (c := training(folder)) and c["token"] != first["token"] and c, "training again"
    )
    assert job_field(cluster, sent.job, "Restarts") == "1"
    assert step(second) >= step(first)  # from the checkpoint
    high = ["--partition=high", "--nodelist=n1", "--cpus-per-task=2", "--output=/dev/null"]
    cluster.call("sbatch", *high, "--wrap=true")
    wait_for(lambda: job_field(cluster, sent.job, "Restarts") == "2", "it was started a third time")
    go.touch()
    wait_until_finished(folder, sent)
    same_tables(study_table(folder, folder.read()[0]), expected)
    assert "DUE TO PREEMPTION" in output(sent)
    assert "Calling checkpoint method" not in output(sent)


def test_two_copies_after_a_node_is_lost(cluster, tmp_path, expected):
    """The node's slurmd dies, but its task lives while Slurm starts a copy on the other node.

    The first copy gives up once it sees that the second one has taken its unit."""
    study, go = _waiting(tmp_path)
    folder, sent = submit(study, tmp_path / "out")
    first = wait_for(lambda: training(folder), "training")
    node = job_field(cluster, sent.job, "NodeList")
    cluster.kill_node(node)
    # Slurm would notice after about a minute.
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
    try:
        second = wait_for(
            lambda: (c := training(folder)) and c["token"] != first["token"] and c,
            "the second copy trains",
        )
        assert (second["restarts"], second["job"]) == (1, first["job"])
        wait_for(lambda: not _alive(first["pid"]), "the first copy has given up")
        go.touch()
        wait_until_finished(folder, sent)
    finally:
        cluster.start_node(node)
    same_tables(study_table(folder, folder.read()[0]), expected)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_refusal_of_slurm_is_reported(cluster, tmp_path):
    with pytest.raises(InputError, match="Slurm did not take the job"):
        submit(_study(partition="nowhere"), tmp_path)


def test_no_string_of_a_study_becomes_shell(cluster, tmp_path, monkeypatch):
    """Hostile strings are refused, and odd ones that clusters need arrive as they are."""
    monkeypatch.chdir(tmp_path)  # where a line of a script would run
    accepted = []
    for what, text in HOSTILE.items():
        fields = {name: asked(text) for name, asked in FIELDS.items()}
        for name, asked in (fields | {"name": {}}).items():
            with contextlib.suppress(InputError):
                study = _study(**asked).replace(name=text if name == "name" else "waits")
                submit(study, tmp_path / f"{len(accepted)} {name}")
                accepted.append((name, what))
    asked = {"comment": "[a|b]&c*2 (d), e=~f", "exclude": "n[2]", "nice": 1}
    study = _study(partition="low", extra=asked, setup=["touch 'announced file'"])
    name = "größe (1), p = 0.5 [a]"
    _, sent = submit(study.replace(name=name), tmp_path / "größe (1)")
    about = cluster.call("scontrol", "show", "job", sent.job)
    assert f"JobName=emergo-{name}\n" in about
    assert f"Comment={asked['comment']}" in about
    wait_for((tmp_path / "announced file").exists, "the job has started")
    cluster.call("scancel", "--user", str(os.getuid()))
    assert not (tmp_path / "owned").exists()
    assert accepted == []
