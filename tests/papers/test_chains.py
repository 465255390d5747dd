"""What is measured of trained chains, on curves made by hand; that the checks can fail; and the studies of the figures."""

import numpy as np
import pytest

from emergo._errors import InputError
from emergo.engine import Result
from emergo.models import MinimalAttention
from emergo.papers import FIGURES
from emergo.papers.yuksel2026 import _chains
from emergo.papers.yuksel2026._chains import ADAMW, ChainRuns, Printed, chain_of, paper

from .by_hand import STUDY, chain_runs, flat, result, staged

TRAINED = [f"yuksel2026/fig{n}" for n in range(1, 20) if n != 10]
MAPS = {2: 3, 7: 6, 9: 8, 14: 13, 16: 15, 17: 15, 19: 18}
"""The figures of maps, and the figures whose runs they show."""


def stage_checks(runs, printed):
    return _chains.ladder_checks(runs, printed) + _chains.head_checks(runs) + _chains.level_checks(runs, printed)


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
    printed = Printed(tuple(onsets), (1.78, 0.68, 0.02), (0.9, 0.35))
    assert all(check.holds for check in stage_checks(runs, printed))
    assert not any(check.holds for check in _chains.ladder_checks(runs, Printed((30, 60)))[1:3])
    assert not any(check.holds for check in _chains.level_checks(runs, Printed((), (1, 2, 1), (0.5, 0.1))))


def test_without_printed_numbers_stages_are_only_counted():
    checks = _chains.ladder_checks(chain_runs())
    assert len(checks) == 4
    assert all(check.holds for check in checks)
    assert checks[1].published is None


def test_runs_that_learn_nothing_fail_every_check():
    checks = stage_checks(chain_runs(flat), Printed((330, 575), (2.78, 0.70, 0.09), (0.87, 0.34)))
    assert len(checks) == 9
    assert not any(check.holds for check in checks)


def test_the_order_follows_the_strongest_group():
    """The same runs, of a chain whose far group is strongest: they learn the wrong one first."""
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


def test_the_papers_setting():
    config = paper(MinimalAttention()).base
    assert (config.batch, config.n_train, config.n_test, config.steps) == (3000, 9000, 3000, 2000)
    assert config.threshold is None
    assert dict(ADAMW.options) == {"weight_decay": 0.01}


@pytest.mark.parametrize("id", TRAINED)
def test_paper_presets_have_the_published_setting(id):
    runs = FIGURES[id].runs("paper")
    for run in runs:
        config = run.config
        assert (config.batch, config.n_test, config.precision, config.optimizer.clip) == (3000, 3000, "fp32", 1.0)
        task = chain_of(config)
        assert (task.vocabulary, task.generated) == (50, 20)
    assert {run.seed for run in runs} == set(range(5))


@pytest.mark.parametrize(("map", "stages"), MAPS.items())
def test_maps_need_no_runs_of_their_own(map, stages):
    map, stages = FIGURES[f"yuksel2026/fig{map}"], FIGURES[f"yuksel2026/fig{stages}"]
    own, theirs = ({run.identity for run in figure.runs("paper")} for figure in (map, stages))
    assert own <= theirs
    assert map.seconds["paper"] == pytest.approx(stages.seconds["paper"] * len(own) / len(theirs))
