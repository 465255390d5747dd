"""A task, a model with an attention of its own, an optimizer and a probe from a user's file,
through all that keeps runs.

No file of the package is edited for any of them. Whoever only reads what they gave needs none of
that file.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from emergo.store import StudyFolder, read_outcomes, study_status
from emergo.study import Executor, Slurm, Study, load_plugins, submit_plan
from emergo.training import Optimizer

from .tiny import quiet, tiny

SOURCE = '''
import jax
import jax.numpy as jnp
import optax

from emergo.core.contract import Above, Batch, Output, Spec, probe
from emergo.core.pytree import Pytree, per_run
from emergo.models import Model
from emergo.tasks import Task


class Loudest(Task):
    """The content of the token whose mark is largest."""

    length: int
    dim: int
    gain: float = per_run(default=4.0)
    learned = Above("accuracy", 0.9)

    @property
    def spec(self):
        return Spec(length=self.length, inputs=self.dim + 1, outputs=self.dim)

    def truth(self, key):
        return ()

    def batch(self, key, n, truth):
        content = jax.random.normal(jax.random.fold_in(key, 0), (n, self.length, self.dim))
        loudness = jax.random.uniform(jax.random.fold_in(key, 1), (n, self.length))
        relevant = loudness >= loudness.max(1, keepdims=True)
        inputs = jnp.concatenate([self.gain * loudness[..., None], content], -1)
        return Batch(inputs, jnp.where(relevant[..., None], content, 0).sum(1), relevant)

    def loss(self, output, batch):
        return jnp.mean((output.value - batch.target) ** 2, -1)

    def metrics(self, output, batch, truth):
        return {"accuracy": 1.0 * (self.loss(output, batch) < 0.1)}


class Quietest(Loudest):
    """The same fields and another task."""

    def batch(self, key, n, truth):
        batch = super().batch(key, n, truth)
        return batch._replace(inputs=batch.inputs.at[..., 0].multiply(-1))


class Sharp(Pytree):
    """An attention: weights from scores."""

    power: int = 2

    def __call__(self, scores):
        weights = jnp.abs(scores) ** self.power
        return weights / (weights.sum(-1, keepdims=True) + 1e-6)


class Pooled(Model):
    attention: Sharp = Sharp()

    def init(self, key, spec):
        return {"score": 0.1 + jax.random.normal(key, (spec.inputs,)), "out": jnp.eye(spec.inputs, spec.outputs, -1)}

    def apply(self, params, inputs, tap=lambda name, value: value):
        pattern = tap("pattern", self.attention(tap("scores", inputs @ params["score"])))
        return Output(tap("mixed", jnp.einsum("nt,ntd->nd", pattern, inputs)) @ params["out"])


def slow_sgd(learning_rate, momentum=0.5):
    return optax.sgd(0.5 * learning_rate, momentum=momentum)


def steepness(params, output, batch, truth, step):
    return {"steepness": jnp.linalg.norm(params["score"]), "shares": jnp.abs(params["out"])}


@probe(reads=["pattern"])
def sharpest(params, output, batch, truth, step):
    return {"sharpest": output.taps["pattern"].max(-1).mean()}
'''

TOML = """
plugins = ["outside_lab.py"]
seeds = 2
unit = 2

[task]
type = "outside_lab:Loudest"
length = 4
dim = 2

[model]
type = "outside_lab:Pooled"
attention = {type = "outside_lab:Sharp", power = 4}

[optimizer]
name = "outside_lab:slow_sgd"
learning_rate = 0.01
momentum = 0.9

[train]
batch = 8
steps = 75
n_test = 16
precision = "fp32"
probes = ["outside_lab:steepness", "outside_lab:sharpest"]

[grid]
gain = [4.0, 8.0]

[slurm]
minutes = 60
gpus = 0
cpus = 1
memory_gb = 0.5
"""

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The user's file, imported."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "outside_lab.py").write_text(SOURCE)
    (folder / "study.toml").write_text(TOML)
    load_plugins([str(folder / "outside_lab.py")])
    yield sys.modules["outside_lab"]
    del sys.modules["outside_lab"]


@pytest.fixture
def study(lab):
    return Study.read_file(Path(lab.__file__).with_name("study.toml"))


@pytest.fixture(scope="module")
def expected(lab, tmp_path_factory):
    study = Study.read_file(Path(lab.__file__).with_name("study.toml"))
    return study.run(tmp_path_factory.mktemp("expected"), progress=quiet)


def same(runs, expected):
    assert len(runs) == len(expected) == 4
    for one, two in zip(runs, expected, strict=True):
        assert one.run == two.run
        assert set(one.curves) == set(two.curves)
        for name, values in one.curves.items():
            np.testing.assert_array_equal(values, two.curves[name])


@pytest.mark.slow
def test_a_file_means_what_python_means(lab, study, expected):
    python = Study(
        lab.Loudest(length=4, dim=2),
        lab.Pooled(attention=lab.Sharp(power=4)),
        Optimizer(lab.slow_sgd, learning_rate=0.01, momentum=0.9),
        grid={"gain": [4.0, 8.0]},
        seeds=2,
        unit=2,
        batch=8,
        steps=75,
        n_test=16,
        precision="fp32",
        probes=(lab.steepness, lab.sharpest),
        plugins=[lab.__file__],
        name="study",
        slurm=Slurm(minutes=60, gpus=0, cpus=1, memory_gb=0.5),
    )
    assert python == study
    assert python.runs == study.runs
    assert {"accuracy", "loss", "steepness", "sharpest", "shares"} <= set(expected[0].curves)
    assert expected[0].curves["shares"].shape == (len(expected[0].curves["step"]), 3, 2)
    same(python.run(progress=quiet), expected)


def test_a_study_is_written_with_all_that_the_user_brought(tmp_path, study):
    study.write_file(tmp_path / "again.toml")
    again = Study.read_file(tmp_path / "again.toml")
    assert again == study
    assert again.base.probes == study.base.probes


def test_optimizers_of_ones_own_can_be_an_axis(lab, study):
    compared = study.replace(
        grid={"name": ["adam", lab.slow_sgd]}, optimizer=Optimizer(learning_rate=0.01)
    )
    assert Study.from_data(json.loads(json.dumps(compared.data()))).runs == compared.runs
    assert {run.config.optimizer.label for run in compared.runs} == {"adam", "outside_lab:slow_sgd"}


def test_two_classes_with_equal_fields_never_share_a_run(lab, study, tmp_path):
    loud = study.replace(probes=(), steps=25, seeds=1)
    quiet_task = loud.replace(task=lab.Quietest(length=4, dim=2))
    assert not {run.identity for run in loud.runs} & {run.identity for run in quiet_task.runs}
    one, two = (s.run(tmp_path, progress=quiet) for s in (loud, quiet_task))
    assert len(read_outcomes(tmp_path / "runs").rows) == len(one) + len(two) == 4
    assert not np.array_equal(one[0].curves["loss"], two[0].curves["loss"])
    assert {result.run.config.task for result in two} == {
        lab.Quietest(4, 2, 4.0),
        lab.Quietest(4, 2, 8.0),
    }


def python(code, *arguments, **options):
    """The output of a process that knows nothing of the user's file."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


READER = """
import json, sys
from emergo.store import StudyFolder, read_outcomes, study_status; from emergo.study import Executor, study_curves, study_table
folder = StudyFolder(sys.argv[1])
status = study_status(folder)
[plan] = folder.read()
table, curves = study_table(folder, plan), study_curves(folder, plan)
names = sorted(read_outcomes(folder.runs).rows)
columns = sorted(curves.columns)
assert Executor(folder).run()  # nothing is left to train: nothing to import
print(json.dumps([status.finished, sorted(table["gain"].unique()), columns, names, "outside_lab" in sys.modules]))
"""


@pytest.mark.slow
def test_reading_needs_and_imports_no_file_of_the_user(tmp_path, study, lab):
    """Neither where the file is gone nor where it would raise; and its types cannot be imported
    there."""
    source = tmp_path / "outside_lab.py"
    source.write_text(SOURCE)
    moved = study.replace(plugins=[str(source)])
    results = moved.run(tmp_path / "out", progress=quiet)
    for content in (None, "raise RuntimeError('it was imported')"):
        source.write_text(content) if content else source.unlink()
        finished, gains, columns, names, imported = json.loads(python(READER, tmp_path / "out"))
        assert (finished, gains, imported) == (4, [4.0, 8.0], False)
        assert {"steepness", "sharpest", "accuracy", "shares_2_1", "gain"} <= set(columns)
        assert names == sorted(result.run.identity for result in results)
    assert importlib.util.find_spec("outside_lab") is not None  # known here, where it was loaded


@pytest.mark.slow
def test_slurm_trains_what_the_user_brought(cluster, tmp_path, study, expected):
    folder = StudyFolder(tmp_path)
    plan, _ = study.open(folder)
    sent = submit_plan(folder, plan, study.slurm)
    until = time.monotonic() + 300
    while not study_status(folder).complete:
        text = "".join(path.read_text() for path in sent.folder.glob("*_log.*"))
        assert "Traceback" not in text, text
        assert time.monotonic() < until
        time.sleep(0.2)
    same(study.read(tmp_path), expected)


# What a stored run holds.


def tilt(params, output, batch, truth, step):
    return {"tilt": output.value.mean()}


@pytest.mark.slow
def test_a_probe_that_stored_runs_lack_trains_them_again(tmp_path):
    plain = tiny(seeds=2, steps=50, threshold=None)
    measured = plain.replace(probes=(tilt,))
    lines = []
    before = plain.run(tmp_path, progress=quiet, say=lines.append)
    assert not lines
    after = measured.run(tmp_path, progress=quiet, say=lines.append)
    assert lines == [
        f"{tmp_path / 'runs'}: 2 finished runs lack tilt; they are set aside and trained again"
    ]
    assert [result.run.identity for result in after] == [result.run.identity for result in before]
    for one, two in zip(before, after, strict=True):
        first = dict(one.curves or {})
        second = dict(two.curves or {})
        assert set(second) - set(first) == {"tilt"}
        np.testing.assert_array_equal(first["loss"], second["loss"])
        assert (
            "tilt"
            in json.loads((tmp_path / "runs" / two.run.identity / "run.json").read_text())["curves"]
        )
    assert len(list((tmp_path / "runs").glob(".aside*"))) == 2  # nothing is thrown away
    trained = []
    for one in (measured, plain):
        one.run(tmp_path, progress=quiet, say=lines.append, on_end=trained.append)
    assert not trained
    assert len(lines) == 1
    status = study_status(StudyFolder(tmp_path))
    assert (status.runs, status.finished) == (2, 2)


@pytest.mark.slow
def test_parameters_that_stored_runs_lack_train_them_again(tmp_path):
    plain = tiny(seeds=1, steps=50, threshold=None)
    lines = []
    plain.run(tmp_path, progress=quiet, say=lines.append)
    kept = plain.replace(keep=True)
    runs = kept.run(tmp_path, progress=quiet, say=lines.append)
    assert lines == [
        f"{tmp_path / 'runs'}: 1 finished runs lack parameters; they are set aside and trained "
        f"again"
    ]
    assert [runs.parameters(0, step).step for step in (0, 25, 50)] == [0, 25, 50]
    first, last = (np.asarray(runs.parameters(0, step).params.readout.weight) for step in (0, None))
    assert not np.array_equal(first, last)
    plain.replace(keep=[25]).run(tmp_path, progress=quiet, say=lines.append)
    assert len(lines) == 1


@pytest.mark.slow
def test_of_studies_that_share_runs_the_one_that_asks_for_more_trains_them(tmp_path):
    """Another process that trains all plans of the folder measures what the second one asks for,
    though the first is older."""
    plain = tiny(seeds=1, steps=50, threshold=None)
    folder = StudyFolder(tmp_path)
    plain.open(folder)
    plain.replace(probes=(tilt,)).open(folder)
    assert Executor(folder).run()
    [result] = plain.read(tmp_path)
    assert "tilt" in (result.curves or {})


@pytest.mark.slow
def test_an_interrupted_study_with_a_probe_goes_on_in_another_process(tmp_path, study, expected):
    """It finds the user's types through the plugins of the plan alone, with the probes, and the
    checkpoint of another process though functions have other addresses there."""
    study.replace(unit=4).open(StudyFolder(tmp_path))
    code = """
import sys
from emergo.store import StudyFolder; from emergo.study import Executor
steps = []
def watch(now):
    steps.append(min(step for _, step, _ in now.running) if now.running else 75)
    if sys.argv[2] == "stop" and steps[-1] >= 50:
        raise SystemExit(0)
Executor(StudyFolder(sys.argv[1]), progress=watch, checkpoint_seconds=0.0).run()
print(min(steps))
"""
    environment = dict(os.environ)
    python(code, tmp_path, "stop", env=environment)
    assert list((tmp_path / "checkpoints").glob("*/*.npz"))
    assert float(python(code, tmp_path, "go on", env=environment)) >= 50
    same(study.read(tmp_path), expected)
