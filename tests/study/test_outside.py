"""A user's task, model, optimizer and probes, from a file outside of the package.

Reading the results does not need that file.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emergo.store import StudyFolder, study_status
from emergo.study import Study, load_plugins, run_plan
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
    """Copy the content of the token whose mark is largest."""

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


class Sharp(Pytree):
    """An attention: weights from scores."""

    power: int = 2

    def __call__(self, scores):
        weights = jnp.abs(scores) ** self.power
        return weights / (weights.sum(-1, keepdims=True) + 1e-6)


class Pooled(Model):
    attention: Sharp = Sharp()

    def init(self, key, spec):
        score = 0.1 + jax.random.normal(key, (spec.inputs,))
        return {"score": score, "out": jnp.eye(spec.inputs, spec.outputs, -1)}

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
"""

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Import the user's file."""
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
    )
    assert python == study
    assert python.runs == study.runs
    assert {"accuracy", "loss", "steepness", "sharpest", "shares"} <= set(expected[0].curves)
    assert expected[0].curves["shares"].shape == (len(expected[0].curves["step"]), 3, 2)
    same(python.run(progress=quiet), expected)


def test_a_study_is_written_with_all_user_types(tmp_path, study):
    study.write_file(tmp_path / "again.toml")
    assert Study.read_file(tmp_path / "again.toml") == study


def test_a_users_optimizer_can_be_an_axis(lab, study):
    optimizers = {"name": ["adam", lab.slow_sgd]}
    compared = study.replace(grid=optimizers, optimizer=Optimizer(learning_rate=0.01))
    assert Study.from_data(json.loads(json.dumps(compared.data()))).runs == compared.runs
    assert {run.config.optimizer.label for run in compared.runs} == {"adam", "outside_lab:slow_sgd"}


def python(code, *arguments):
    """Return the output of a process that has not imported the user's file."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


READER = """
import json, sys
from pathlib import Path
from emergo.store import StudyFolder, read_outcomes, study_status
from emergo.study import run_plan, study_curves, study_table

def read():
    folder = StudyFolder(sys.argv[1])
    status = study_status(folder)
    [plan] = folder.read()
    table, curves = study_table(folder, plan), study_curves(folder, plan)
    names = sorted(read_outcomes(folder.runs).rows)
    columns = sorted(curves.columns)
    assert run_plan(folder)  # nothing is left to train, so nothing is imported
    gains = sorted(table["gain"].unique())
    return [status.finished, gains, columns, names, "outside_lab" in sys.modules]

source = Path(sys.argv[2])
source.write_text("raise RuntimeError('it was imported')")
broken = read()
source.unlink()
print(json.dumps([broken, read()]))
"""


@pytest.mark.slow
def test_reading_does_not_import_the_users_file(tmp_path, study, lab):
    """The file may be gone, or raise an error."""
    source = tmp_path / "outside_lab.py"
    source.write_text(SOURCE)
    moved = study.replace(plugins=[str(source)])
    results = moved.run(tmp_path / "out", progress=quiet)
    for given in json.loads(python(READER, tmp_path / "out", source)):
        finished, gains, columns, names, imported = given
        assert (finished, gains, imported) == (4, [4.0, 8.0], False)
        assert {"steepness", "sharpest", "accuracy", "shares_2_1", "gain"} <= set(columns)
        assert names == sorted(result.run.identity for result in results)


def tilt(params, output, batch, truth, step):
    return {"tilt": output.value.mean()}


@pytest.mark.slow
def test_probes_and_parameters_that_stored_runs_lack_train_them_again(tmp_path):
    plain = tiny(seeds=2, steps=50, threshold=None)
    more = plain.replace(probes=(tilt,), keep=[0, 25])
    lines = []
    before = plain.run(tmp_path, progress=quiet, say=lines.append)
    assert not lines
    after = more.run(tmp_path, progress=quiet, say=lines.append)
    assert lines == [
        f"{tmp_path / 'runs'}: 2 finished runs lack tilt, parameters; they are set aside and "
        f"trained again"
    ]
    for one, two in zip(before, after, strict=True):
        assert one.run.identity == two.run.identity
        assert set(two.curves or {}) - set(one.curves or {}) == {"tilt"}
        np.testing.assert_array_equal((one.curves or {})["loss"], (two.curves or {})["loss"])
    assert [after.parameters(0, step).step for step in (0, 25)] == [0, 25]
    assert len(list((tmp_path / "runs").glob(".aside*"))) == 2  # the old runs are kept
    trained = []
    for one in (more, plain):
        one.run(tmp_path, progress=quiet, say=lines.append, on_end=trained.append)
    assert not trained
    assert len(lines) == 1
    status = study_status(StudyFolder(tmp_path))
    assert (status.runs, status.finished) == (2, 2)


@pytest.mark.slow
def test_of_studies_that_share_runs_the_one_that_asks_for_more_trains_them(tmp_path):
    """Another process that trains the folder measures the probe that only the newer study has."""
    plain = tiny(seeds=1, steps=50, threshold=None)
    folder = StudyFolder(tmp_path)
    plain.open(folder)
    plain.replace(probes=(tilt,)).open(folder)
    assert run_plan(folder)
    [result] = plain.read(tmp_path)
    assert "tilt" in (result.curves or {})


CONTINUE = """
import sys
from emergo.store import StudyFolder
from emergo.study import Watcher, run_plan
class Watch(Watcher):
    first = None
    def training(self, now):
        step = min((step for _, step, _ in now.running), default=75)
        self.first = step if self.first is None else self.first
        if sys.argv[2] == "stop" and step >= 50:
            raise SystemExit(0)
watch = Watch()
run_plan(StudyFolder(sys.argv[1]), watch=watch, checkpoint_seconds=0.0)
assert not {"matplotlib", "diffrax", "equinox"} & set(sys.modules)  # training needs none
print(watch.first)
"""


@pytest.mark.slow
def test_an_interrupted_study_with_a_probe_is_continued_by_another_process(
    tmp_path, study, expected
):
    """The other process finds the user's types through the plugins of the plan alone."""
    study.replace(unit=4).open(StudyFolder(tmp_path))
    python(CONTINUE, tmp_path, "stop")
    assert list((tmp_path / "checkpoints").glob("*/*.npz"))
    assert float(python(CONTINUE, tmp_path, "continue")) >= 50
    same(study.read(tmp_path), expected)
