"""`emergo train`."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from emergo.cli._train import read_study
from emergo.models import Transformer
from emergo.store import read_outcomes

from .command import call

LOUDEST = """
import jax, jax.numpy as jnp
import emergo as em

class Loudest(em.Task):
    \"\"\"**Arguments:**

    - `gain`: how much louder the loudest token is.
    \"\"\"
    length: int
    dim: int
    gain: float = em.per_run(4.0)
    steps: int = 2

    @property
    def spec(self): return em.Spec(length=self.length, inputs=self.dim, outputs=self.dim)
    def truth(self, key): return ()
    def batch(self, key, n, truth):
        x = jax.random.normal(key, (n, self.length, self.dim))
        return em.Batch(x, x[:, -1])
    def loss(self, output, batch): return jnp.sum((output.value - batch.target) ** 2, -1)
"""


def test_train_prints_one_row_per_cell_and_asking_again_costs_nothing(capsys, tmp_path, engine):
    arguments = (
        "train",
        "--dim",
        "4",
        "8",
        "8",
        "--seeds",
        "3",
        "--n-parallel",
        "2",
        "--out",
        str(tmp_path),
    )
    status, out, err = call(capsys, *arguments)
    assert (status, err) == (0, "")
    head, four, eight, last, hint, failed = out.splitlines()
    assert head.split() == ["dim", "runs", "plateau", "min-max", "censored", "failed"]
    # Seed 0 has a plateau of 40, seed 1 is censored at 40, so the median is a bound. Seed 2 failed.
    assert four.split() == ["4", "3", "of", "3", ">40", "40", "to", ">40", "1", "1"]
    assert eight.split() == ["8", "3", "of", "3", ">80", "80", "to", ">80", "1", "1"]
    counts = re.escape("6 of 6 runs finished (2 reached, 2 censored, 2 failed)")
    assert re.fullmatch(rf"{counts}, \d+ s; kept in {tmp_path}", last)
    assert hint.startswith(f"emergo study show {tmp_path}")
    why = r"2 runs failed, for example: the loss was not finite at step \d+, in 2 tries"
    assert re.fullmatch(
        rf"{why}; emergo study run {tmp_path} --retry-failed trains them again", failed
    )
    assert [(len(runs), n_parallel) for runs, n_parallel, _ in engine.asked] == [
        (6, 2),
        (2, 2),
    ]  # failed runs are tried again
    again = call(capsys, *arguments)[1].splitlines()
    assert again[:3] == [head, four, eight]
    assert "failed) (6 of them before)" in again[3]
    call(capsys, "train", "--dim", "8", "2", "--seeds", "2", "--out", str(tmp_path))
    assert [run.config.task.dim for run in engine.asked[2][0]] == [2, 2]
    assert len(engine.asked) == 3


def test_train_prints_one_json_object(capsys, tmp_path, engine):
    status, out, err = call(capsys, "train", "--dim", "4", "--out", str(tmp_path), "--json")
    printed = json.loads(out)
    assert (status, err) == (0, "")
    assert [(r["seed"], r["state"]) for r in printed["runs"]] == [
        (0, "reached"),
        (1, "censored"),
        (2, "failed"),
    ]
    assert {
        "plateau",
        "plateau_low",
        "plateau_high",
        "censored",
        "learning_rate",
        "precision",
    } <= set(printed["runs"][0])
    counts = {"planned": 3, "runs": 3, "bound": True, "censored": 1, "failed": 1}
    assert printed["cells"] == [counts | {"plateau": 40, "plateau_min": 40, "plateau_max": 40}]
    assert (printed["complete"], printed["out"]) == (True, str(tmp_path))


def test_the_default_study_is_small():
    _, study = read_study([])
    assert study.grid == {"dim": (4, 8, 16)}
    assert (study.count, study.base.steps, study.base.optimizer.learning_rate) == (9, 5000, 5e-4)
    assert (study.base.task.length, study.base.task.position, study.base.task.special) == (
        32,
        "random",
        "draw",
    )
    assert study.base.model == Transformer(layers=1, heads=1, width=64)
    assert study.keep is False


def test_other_tasks_models_and_optimizers_have_other_options():
    words = "--task recall --pairs 4 --vocabulary 8 16 --repeat 0 0.2 --optimizer lion --b1 0.8 0.9"
    _, study = read_study(words.split())
    assert study.grid == {"vocabulary": (8, 16), "repeat": (0, 0.2), "optimizer.b1": (0.8, 0.9)}
    assert {dict(config.optimizer.options)["b1"] for config in study.configs} == {0.8, 0.9}
    assert study.base.model.layers == 2  # a single layer cannot solve recall
    words = "--task markov-chain --model MinimalAttention --spans [1,1] --importance 2 3 --heads 2"
    _, study = read_study(words.split())
    assert study.base.task.groups.spans == (1, 1)
    assert [config.task.groups.importance for config in study.configs] == [2.0, 3.0]
    assert type(study.base.model).__name__ == "MinimalAttention"


def test_a_whole_number_may_be_in_scientific_notation():
    _, study = read_study(["--steps", "1e3"])
    assert study.base.steps == 1000


def test_a_value_may_be_a_schedule():
    _, study = read_study(
        ["--repeat", '{"type": "Switch", "before": 0.4, "after": 0.0, "at": 2000}', "--dim", "4"]
    )
    assert repr(study.base.task.repeat) == "Switch(before=0.4, after=0.0, at=2000)"


def test_a_task_of_a_plugin_has_its_options(capsys, tmp_path, engine):
    file = tmp_path / "loudest_of_train.py"
    file.write_text(LOUDEST)
    words = ("train", "--plugins", str(file), "--task", "loudest_of_train:Loudest", "--layers", "1")
    sizes = ("--length", "4", "--dim", "2", "--gain", "1", "3", "--seeds", "1")
    status, out, err = call(capsys, *words, *sizes, "--out", str(tmp_path))
    assert (status, err) == (0, f"emergo: imports {file}, because the study asks for it\n")
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["gain", "1", "3"]
    # `steps` is a field of both the task and the training, so the options have full names.
    status, out, _ = call(capsys, *words, "--help")
    assert "--task.steps" in out
    assert "how much louder the loudest token is" in out
    assert all(option in out for option in ("--heads", "--clip", "--n-test"))
    assert json.loads((next((tmp_path / "studies").iterdir())).read_text())["study"]["plugins"] == [
        str(file)
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dmi 4", "unknown option '--dmi'; did you mean --dim?"),
        ("--task text --corpus x", "`emergo train --task text --help` lists them; --source names"),
        ("--length", "--length needs at least one value"),
        ("--task recal", "unknown task 'recal'; did you mean recall?"),
        ("--task recall", "Recall with Transformer needs --pairs and --vocabulary"),
        ("--model transfomer", "unknown model 'transfomer'; did you mean transformer"),
        ("--optimizer adamm", "unknown optimizer 'adamm'; did you mean adam"),
        ("--optimizer sgd --b1 0.5", "unknown option '--b1'"),
        ("--attention sofmax", "unknown Transformer.attention 'sofmax'; did you mean softmax?"),
        ("--precision fp8", "unknown Config.precision 'fp8'; did you mean fp64 or fp32?"),
        ("--length 8 16 --burst 8", "got burst 8 with length 8"),
        ("--heads 3", "heads must divide width, got 3 heads with width 64"),
        ("--seeds -1", "seeds must be a number of seeds, or a list of whole numbers"),
        ("--n-parallel 0", "--n-parallel must be positive, got 0"),
        ("--n-parallel some", "--n-parallel: expected a whole number, got 'some'"),
        ("--seconds 0", "--seconds must be positive, got 0"),
        ("--dim 4.5", "SingleLocation.dim must be a whole number of at least 1, got 4.5"),
        ("--repeat 1.5", "SingleLocation.repeat must be a finite number from 0 to 1, got 1.5"),
        ("--learning-rate 0", "learning_rate must be positive"),
        (
            '--repeat {"type":"Rmp"}',
            "[task].repeat: there is no function Rmp",
        ),
        ("--threshold no", "[train] threshold must be a number, 'task' or 'none', got 'no'"),
        ("--threshold -1", "--threshold must be positive"),
        ("--steps 0", "steps must be a whole number of at least 1"),
        ("--indicator false", "cannot be learned without the indicator"),
        ("--plugins none.py", "none.py: FileNotFoundError: no such file"),
        ("--slurm minutes", "--slurm 'minutes': write name=value"),
        ("--slurm minuts=3", "did you mean minutes?"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_one_line_and_nothing_is_written(
    capsys, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, "train", *words.split())
    assert (status, out) == (2, "")
    assert err.startswith("emergo: ")
    assert message in err.splitlines()[-1]
    assert err.count("\n") == (2 if "imports" in err else 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_train_trains(capsys, tmp_path):
    small = (
        "--length",
        "4",
        "--dim",
        "2",
        "--width",
        "16",
        "--learning-rate",
        "1e-2",
        "--seeds",
        "2",
        "--batch",
        "8",
    )
    status, out, _ = call(
        capsys, "train", *small, "--steps", "1000", "--out", str(tmp_path), "--keep", "0", "--json"
    )
    printed = json.loads(out)
    assert status == 0
    assert [run["state"] for run in printed["runs"]] == ["reached", "reached"]
    assert sorted(run["identity"] for run in printed["runs"]) == sorted(
        read_outcomes(tmp_path / "runs").rows
    )
    assert (
        len(list((tmp_path / "runs").rglob("*.safetensors"))) == 4
    )  # of each, step 0 and the last
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_training_keeps_what_is_finished_and_says_so(tmp_path, number):
    """Send Ctrl-C, or SIGTERM as a scheduler does, after the first run has ended.

    Dim 2 is learned at once; dim 64 cannot be learned with a width of 8.
    """
    options = (
        "--length 4 --dim 2 64 --width 8 --learning-rate 1e-2 --seeds 1 --batch 4 --steps 1000000"
    )
    command = [sys.executable, "-m", "emergo", "train", *options.split(), "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180  # usually 10 s
    while not list((tmp_path / "runs").glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == ""
    assert (
        err.splitlines()[-1]
        == "emergo: interrupted; 1 of 2 runs are finished; the same command continues from there"
    )
    assert len(read_outcomes(tmp_path / "runs").rows) == 1
    assert len(list((tmp_path / "checkpoints").glob("*/*.npz"))) == 1
