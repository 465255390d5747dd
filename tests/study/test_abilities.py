"""Every ability of a study, through the store, a kill and a resume, a grid, Slurm and the explorer.

A study is interrupted in this process. A second process, which knows nothing but the folder, then
continues from the checkpoint with the function that a task of a Slurm array runs. The result must
be that of an uninterrupted run, bit for bit.
"""

import dataclasses
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from emergo.models import EquinoxModel, Transformer
from emergo.store import StudyFolder, study_status
from emergo.study import Slurm, Study, cell_summary, concat, study_table, submit_plan
from emergo.study.slurm import Task
from emergo.tasks import head_probe
from emergo.training import Clamp, EarlyStopping, Optimizer, Ramp, Switch, When, resume
from emergo.view import Catalog

from ..training.own import BASE, Echo, GatedAttention, Heads, Shifted, Sums, make_pooled
from .slurm_cluster import why_not
from .tiny import quiet

ROOT = Path(__file__).parents[2]
LONG = BASE.replace(steps=40, batch=4, n_test=8)
ADAMW = Optimizer("adamw", 0.05)
RISING = Ramp(0.0, 1.0, begin=0, end=20)


def study(config=LONG, **own):
    own = {"seeds": [0], "name": "ability", "plugins": ["tests.training.own"], **own}
    return Study.of(config, **own)


ABILITIES = {
    "models and tasks by label": lambda runs: study(
        grid={
            "model": {"small": Heads(), "large": Heads(scale=3.0)},
            "task": {"clean": Echo(4, 3), "noisy": Echo(4, 3, noise=0.2)},
        }
    ),
    "optimizers by label": lambda runs: study(
        grid={"optimizer": {"adam": Optimizer("adam", 0.05), "sgd": Optimizer("sgd", 0.1)}}
    ),
    "interventions by label": lambda runs: study(
        grid={"interventions": {"none": (), "clamped": Clamp(0, until=20)}}
    ),
    "fields of interventions": lambda runs: study(
        LONG.replace(interventions=(Clamp(0, until=30).replace(strength=RISING),)),
        grid={"until": [10, 30]},
    ),
    "scheduled options of the optimizer": lambda runs: study(
        LONG.replace(optimizer=ADAMW),
        grid={"weight_decay": [0.5, Switch(0.0, 0.5, at=20), Switch(0.5, 0.0, at=20)]},
    ),
    "schedules of single heads": lambda runs: study(
        grid={"noise": [When("attention_0_1", above=0.3, before=0.2), 0.1]}
    ),
    "stopping rules": lambda runs: study(
        grid={"stop": {"none": None, "early": EarlyStopping("error", patience=2, tolerance=0.5)}}
    ),
    "warm starts": lambda runs: study(
        LONG.replace(steps=60),
        grid={"start": {"scratch": None, "warm": runs, "continued": resume(runs)}},
    ),
    "shared data": lambda runs: study(
        LONG.replace(task=Sums(), model=Transformer(1, heads=1, width=4), n_train=30, n_test=20),
        grid={"n_train": [30, 40]},
    ),
    "own attention and head scores": lambda runs: study(
        LONG.replace(
            model=Transformer(1, heads=2, width=4, mlp=False, attention=GatedAttention()),
            probes=(head_probe,),
        ),
        grid={"gate": [0.5, 1.0]},
    ),
    "Equinox modules and further test sets": lambda runs: study(
        LONG.replace(task=Shifted(4, 3), model=EquinoxModel(make_pooled, drop=0.5)),
        grid={"gain": [1.0, 2.0]},
    ),
}
TASK = """
import pickle, sys
for task in pickle.load(sys.stdin.buffer):
    assert task((0, 1))
"""


class Trained:
    """An ability: its study, its runs without an interruption, and the folder of both processes."""

    def __init__(self, name, place, before):
        self.study = ABILITIES[name](before)
        self.expected = self.study.run(progress=quiet)
        self.folder = place / name.replace(" ", "_")
        self.study.run(self.folder, seconds=0, progress=quiet)
        self.plan = StudyFolder(self.folder).read()[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("abilities")
    before = study(keep=True).run(place / "before", progress=quiet)
    abilities = {name: Trained(name, place, before) for name in ABILITIES}
    for ability in abilities.values():
        assert not study_status(StudyFolder(ability.folder)).complete
        assert list((ability.folder / "checkpoints").rglob("*.npz"))
    tasks = [Task(str(ability.folder), ability.plan.key) for ability in abilities.values()]
    command = [sys.executable, "-c", TASK]
    done = subprocess.run(command, input=pickle.dumps(tasks), capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    return abilities


@pytest.mark.slow
@pytest.mark.parametrize("name", ABILITIES)
def test_an_ability_goes_through_everything(trained, name, tmp_path):
    ability = trained[name]
    # The store, after a kill, in another process: the same bits.
    runs = ability.study.read(ability.folder)
    assert [result.run for result in runs] == [result.run for result in ability.expected]
    for one, two in zip(runs, ability.expected, strict=True):
        assert (one.state, one.steps, one.reason) == (two.state, two.steps, two.reason)
        assert set(one.curves) == set(two.curves)
        for curve, values in one.curves.items():
            np.testing.assert_array_equal(values, two.curves[curve])
    # The grid: one cell per value, in memory, from files and from plain data.
    axes = ability.study.axes
    cells = cell_summary(runs.table, axes)
    assert len(cells) == len(runs) == ability.study.count
    from_files = study_table(StudyFolder(ability.folder), ability.plan)
    assert cell_summary(from_files, axes) == cells
    ability.study.write_file(tmp_path / "study.toml")
    assert Study.read_file(tmp_path / "study.toml").runs == ability.study.runs
    assert len(concat(runs, ability.expected)) == len(runs)
    runs.log("tensorboard", tmp_path)
    assert len(list(tmp_path.glob("tensorboard/*/events*"))) == len(runs)
    # The explorer shows the axes, and every column of every curve.
    [shown] = Catalog(ability.folder).sets().values()
    assert set(axes) <= set(shown.columns)
    json.dumps(shown.table())
    for column in set(runs.curves.columns) - {"identity", "seed", "step", *axes}:
        read = shown.curve(runs[0].run.identity, column)[1]
        values = runs.curves[runs.curves["identity"] == runs[0].run.identity][column]
        assert len(read) in (0, len(values))
        if len(read):
            np.testing.assert_array_equal(read, values.astype(float))


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=f"no Slurm: {why_not()}")
def test_abilities_together_on_slurm(trained, cluster, tmp_path):
    """A job starts from parameters that only the folder of the study holds."""
    asked = Slurm(minutes=60, gpus=0, cpus=1, memory_gb=0.5)
    both = trained["warm starts"].study.replace(
        stop=EarlyStopping("error", patience=3, tolerance=0.5),
        optimizer=ADAMW,
        grid={**trained["warm starts"].study.grid, "weight_decay": [0.0, 0.5]},
        slurm=dataclasses.replace(asked, tasks=1),
    )
    folder = StudyFolder(tmp_path / "out")
    plan, _ = both.open(folder)
    submit_plan(folder, plan, both.slurm)
    until = time.monotonic() + 300
    while not study_status(folder).complete:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert set(both.read(folder.path).table["start"]) == {"scratch", "warm", "continued"}
