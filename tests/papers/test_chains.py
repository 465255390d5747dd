"""Measurements of trained chains on hand-made curves, checks that can fail, and the figures'
studies."""

import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.models import ChainTransformer
from emergo.papers import FIGURES
from emergo.papers.yuksel2026 import _chains
from emergo.papers.yuksel2026._chains import ChainRuns, Printed, chain_of
from emergo.training import Result

from .by_hand import STUDY, chain_runs, flat, result, staged

TRAINED = [f"yuksel2026/fig{n}" for n in range(1, 20) if n != 10]
MAPS = {2: 3, 7: 6, 8: 9, 14: 13, 16: 15, 17: 15, 19: 18}
"""Figures of maps, and the figures whose runs they show."""


def stage_checks(runs, printed):
    return (
        _chains.ladder_checks(runs)
        + _chains.head_checks(runs)
        + _chains.comparison_checks(runs, printed)
    )


def test_stages_made_by_hand():
    runs = chain_runs()
    assert [len(run.stages) for run in runs] == [3, 3]
    assert [run.learning_order for run in runs] == [[1, 2, 3]] * 2
    assert (len(runs), runs.contexts) == (2, ())
    assert _chains.shared_attention(runs[0]) > 0.85
    levels = _chains.level_checks(runs, Printed(plateau_levels=(0.9, 0.35)))[0].measured
    np.testing.assert_allclose(levels, [0.9, 0.35], rtol=0.03)
    onsets = [b.step for b in runs.boundaries]
    assert 150 < onsets[0] < 200 < 380 < onsets[1] < 500
    departures = [step for step, _, _ in _chains.ladder_checks(runs)[2].measured]
    assert 100 < departures[0] < 220 < departures[1] < 520
    assert len(runs.table) == 2 * 400
    printed = Printed(
        tuple(onsets),
        (0.9, 0.35),
        teacher_loss=0.5,
        step=1990,
        kl_references=(1.78, 0.68, 0.02),
        least_references=(0.9, 70),
    )
    assert all(check.holds for check in stage_checks(runs, printed))
    assert not any(check.holds for check in _chains.boundary_checks(runs, Printed((30, 60))))
    wrong = Printed(
        (), (0.5, 0.1), teacher_loss=0.6, kl_references=(1, 2, 1), least_references=(0.9, 10)
    )
    checks = _chains.level_checks(runs, wrong)
    assert len(checks) == 4
    assert not any(check.holds for check in checks)


def test_levels_are_those_of_the_step_that_is_published():
    """The step lies on the second plateau, between the drops at steps 200 and 500."""
    (level,) = _chains.level_checks(
        chain_runs(), Printed(step=300, kl_references=(1.45, 0.35, 0.35))
    )
    assert level.holds
    assert level.name == "KL from A_1, ... and the teacher at step 300, mean over runs"


def both_teachers():
    """Return two runs on drawn teachers, and one on the published teacher that never learns group
    3."""
    (published,) = STUDY.replace(task__maps="published", seeds=1).runs
    return ChainRuns([*(staged(run) for run in STUDY.runs), staged(published, 3000)])


def test_published_numbers_are_held_against_the_published_teacher():
    runs = both_teachers()
    assert [len(runs.on(maps)) for maps in ("drawn", "published")] == [2, 1]
    assert len(chain_runs().on("published")) == 2  # falls back to all runs
    printed = Printed(kl_references=(1.78, 0.68, 0.02))
    (here,) = _chains.comparison_checks(runs, printed)
    assert here.name.startswith("published teacher: KL")
    assert not here.holds
    assert all(check.holds for check in _chains.comparison_checks(runs.on("drawn"), printed))
    assert set(runs.table["maps"]) == {"drawn", "published"}


def test_runs_that_learn_nothing_fail_every_check():
    printed = Printed((330, 575), (0.87, 0.34), step=1100, kl_references=(2.78, 0.70, 0.09))
    checks = stage_checks(chain_runs(flat), printed)
    assert len(checks) == 11
    assert not any(check.holds for check in checks)


def test_the_order_follows_the_strongest_group():
    """In a chain whose far group is strongest, the same runs learn the wrong group first."""
    study = STUDY.replace(task__groups__strongest="far")
    order = _chains.head_checks(chain_runs(study=study))[0]
    assert order.name.endswith("the strongest group first")
    assert (order.measured, order.holds) == (0, False)


def test_failed_runs_are_left_out():
    good, bad = STUDY.runs
    failed = Result.untrained(bad, "no memory", "here")
    assert len(ChainRuns([staged(good), failed])) == 1
    with pytest.raises(InputError, match="all 1 runs of this setting failed"):
        ChainRuns([failed])


def test_a_group_that_no_head_looks_at_is_not_learned():
    shares = np.zeros((400, 3, 3))
    shares[200:, :, 1] = 0.6
    runs = ChainRuns([result(STUDY.runs[0], np.linspace(3, 1, 400), shares)])
    assert runs[0].learning_order == [2]
    assert _chains.owner_check(runs, "").measured == 0


@pytest.mark.parametrize("id", TRAINED)
def test_paper_presets_have_the_published_setting(id):
    runs = FIGURES[id].runs("paper")
    for run in runs:
        config = run.config
        assert (config.batch, config.n_test, config.precision, config.optimizer.clip) == (
            3000,
            3000,
            "fp32",
            1.0,
        )
        task = chain_of(config)
        assert (task.vocabulary, task.generated) == (50, 20)
    assert {run.seed for run in runs if chain_of(run.config).maps == "drawn"} in (
        {0, 1, 2},
        {0, 1, 2, 3, 4},
    )
    assert {run.seed for run in runs if chain_of(run.config).maps == "published"} in (
        {0},
        {0, 1, 2},
    )
    for model in [run.config.model for run in runs]:
        if isinstance(model, ChainTransformer):
            places = ("embedding", "attention", "added")
            assert (model.dropout_at, model.dropout_every, model.start) == (places, 3, "xavier")


def test_figures_8_and_9_have_the_far_group_strongest():
    """From near to far 8, 4 and 2 positions, as in the published map."""
    groups = chain_of(FIGURES["yuksel2026/fig9"].runs("paper")[0].config).groups
    assert (groups.spans, groups.ranking) == ((8, 4, 2), (2, 1, 0))
    assert groups.strengths.tolist() == [1, 2.5, 6.25]


@pytest.mark.parametrize(("map", "stages"), MAPS.items())
def test_maps_need_no_runs_of_their_own(map, stages):
    map = FIGURES[f"yuksel2026/fig{map}"]
    stages = FIGURES[f"yuksel2026/fig{stages}"]
    own, theirs = ({run.identity for run in figure.runs("paper")} for figure in (map, stages))
    assert own <= theirs
    assert map.seconds["paper"] == pytest.approx(stages.seconds["paper"] * len(own) / len(theirs))
