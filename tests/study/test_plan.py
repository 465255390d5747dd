"""Plans: how runs are split into units, and how plans grow."""

import json
from pathlib import Path

import pytest

from emergo.core.errors import InputError
from emergo.models import Transformer
from emergo.store import StudyFolder
from emergo.study import estimate
from emergo.study.plan import grow_plan, make_plan, open_plan, runs_of
from emergo.tasks import Text
from emergo.training import Clamp, Config, Run, groups_of

from .crowd import study
from .test_description import loudness
from .test_study import OBJECT
from .tiny import rewrite


def plan_of(study, before=None):
    return make_plan(study.runs, study.axes, study.data(), study.unit, study.values_of, before)


def test_units_hold_runs_of_one_program():
    full = OBJECT.replace(unit=5)
    plan = plan_of(full)
    groups = groups_of(full.runs)
    assert len(groups) == 2  # one program per length
    assert len(plan.units) == sum(-(-len(group) // 5) for group in groups)
    assert sorted(run.identity for run in plan.runs) == sorted(run.identity for run in full.runs)
    for unit in plan.units:
        assert len(unit.runs) <= 5
        assert len({run.values[plan.axes.index("length")] for run in unit.runs}) == 1


def test_a_plan_grows_and_keeps_its_units():
    """Promise 5: existing units stay as they are, and new runs get new units."""
    full = OBJECT.replace(unit=5)
    before = plan_of(full)
    grown = full.grown({"dim": [16], "length": [64], "burst": [3]}, seeds=[7])
    after = plan_of(grown, before)
    assert len(grown.runs) == 3 * 2 * 3 * 2 * 3
    assert [unit.id for unit in after.units[: len(before.units)]] == [
        unit.id for unit in before.units
    ]
    assert [run.identity for run in after.runs[: len(before.runs)]] == [
        run.identity for run in before.runs
    ]
    assert sorted(run.identity for run in after.runs) == sorted(run.identity for run in grown.runs)
    assert plan_of(full.grown({"dim": [8]}), before) == before


def test_a_plan_is_enough_to_make_its_runs(tmp_path):
    """Also its probes, which do not belong to the identity of a run."""
    measured = study(2, 2, probes=(loudness,), n_test=8)
    folder = StudyFolder(tmp_path)
    plan, new = measured.open(folder)
    assert new == 4
    [read] = folder.read()
    assert read == plan
    runs = runs_of(read, Path("here"))
    assert runs == {run.identity: run for run in measured.runs}
    assert all(run.config.probes == (loudness,) for run in runs.values())
    assert read.asks
    assert not plan_of(study(2, 2)).asks


def test_a_plan_whose_types_have_changed_is_named(tmp_path):
    folder = StudyFolder(tmp_path)
    study(1, 1).open(folder)
    [path] = folder.plans.glob("*.json")
    configs = json.loads(path.read_text())["configs"]
    rewrite(path, configs=[configs[0] | {"batch": 33}])
    words = "has another identity with this version of emergo or of its plugins"
    with pytest.raises(InputError, match=words):
        runs_of(folder.read()[0], tmp_path)


def test_of_several_plans_the_largest_one_grows(tmp_path):
    folder = StudyFolder(tmp_path)
    small, _ = study(1, 2).open(folder)
    wide, new = study(3, 1).open(folder)
    assert new == 2  # one run is in both
    grown, new = study(3, 2).open(folder)
    assert (grown.key, new) == (wide.key, 2)
    assert {plan.key: len(plan.runs) for plan in folder.read()} == {small.key: 2, wide.key: 6}
    again, new = study(3, 2).open(folder)
    assert (again, new) == (grown, 0)


def test_a_plan_keeps_what_others_have_added_to_it(tmp_path):
    folder = StudyFolder(tmp_path / "folder")
    first = study(3, 1).runs
    others = study(4, 2).runs
    more = study(3, 3).runs
    mine, _ = open_plan(folder, first)
    # Another process has all of these runs and more.
    theirs, _ = open_plan(folder, [*first, *others])
    assert mine.key == theirs.key
    grown = grow_plan(folder, mine, [*first, *more])
    (stored,) = folder.read()
    assert stored == grown
    wanted = {run.identity for run in (*first, *others, *more)}
    assert sorted(run.identity for run in stored.runs) == sorted(wanted)
    assert [unit.id for unit in grown.units[: len(theirs.units)]] == [
        unit.id for unit in theirs.units
    ]
    assert grow_plan(folder, mine, first) == grown


def test_a_study_is_not_taken_over_by_one_of_another_name(tmp_path):
    """A plan grows only for a study of its name."""
    folder = StudyFolder(tmp_path)
    small = study(2, 1)
    large = study(2, 2)

    def opened(of, **changes):
        return open_plan(folder, of.runs, of.axes, of.data() | changes, of.unit, of.values_of)

    first, new = opened(small, name="first", keep=True)
    second, more = opened(large, name="second")
    assert (new, more) == (2, 2)
    assert sorted(
        (plan.name, len(plan.runs), plan.study.get("keep")) for plan in folder.read()
    ) == [
        ("first", 2, True),
        ("second", 4, second.study.get("keep")),
    ]
    grown, _ = opened(large, name="first")
    assert grown.key == first.key
    assert len(folder.read()) == 2


def test_what_cannot_be_trained_is_not_planned(tmp_path):
    """Otherwise a corrected study would find the plan of the wrong one."""
    wrong = study(2, 1).replace(interventions=(Clamp("layers.0.patern"),))
    with pytest.raises(InputError, match=r"unknown tap .*\'layers\.0\.patern\'"):
        wrong.open(StudyFolder(tmp_path))
    assert list(StudyFolder(tmp_path).plans.iterdir()) == []
    with pytest.raises(InputError, match=r"unknown tap .*\'layers\.0\.patern\'"):
        estimate(wrong)


def test_a_study_says_that_a_corpus_is_read_more_than_once(tmp_path):
    task = Text(range(3000), length=8, vocabulary=3000)
    model = Transformer(layers=1, heads=1, width=4, mask="causal")
    said = []
    epoch = task.epoch(4)
    assert epoch == 2 * task.epoch(8) + 1
    for batch, steps in ((4, epoch), (4, 2 * epoch), (8, epoch)):
        config = Config(task, model, batch=batch, steps=steps, n_test=4)
        open_plan(StudyFolder(tmp_path / f"{batch}-{steps}"), [Run(config, 0)], say=said.append)
    assert [line.partition(";")[0] for line in said] == [
        f"the corpus of Text is read 2.00 times in {2 * epoch} steps",
        f"the corpus of Text is read 2.02 times in {epoch} steps",
    ]
