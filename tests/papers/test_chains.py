"""What is measured of trained chains, on curves made by hand; that the checks can fail; and the studies of the figures."""

import numpy as np
import pytest

from emergo._errors import InputError
from emergo.engine import Result
from emergo.models import MinimalAttention
from emergo.papers import FIGURES
from emergo.papers.yuksel2026._chains import ADAMW, ChainRuns, chain_of, laptop, paper, sizes_of, smoke
from emergo.papers.yuksel2026._stage_checks import Printed, stage_checks
from emergo.tasks import Groups

from .by_hand import STUDY, chain_runs, flat, result, staged

TRAINED = [f"yuksel2026/fig{n}" for n in range(1, 20) if n != 10]
MAPS = {2: 3, 7: 6, 9: 8, 14: 13, 16: 15, 17: 15, 19: 18}
"""The figures of maps, and the figures whose runs they show."""


def test_stages_made_by_hand():
    runs = chain_runs()
    assert [len(stages) for stages in runs.stages] == [3, 3]
    assert runs.learning_order == [[1, 2, 3]] * 2
    assert (runs.specialised, runs.seeds, runs.contexts) == (2, 2, ())
    assert runs.shared_attention > 0.85
    np.testing.assert_allclose(runs.plateau_levels, [0.9, 0.35], rtol=0.03)
    onsets = [b.step for b in runs.boundaries]
    assert 150 < onsets[0] < 200 < 380 < onsets[1] < 500
    departures = [b.step for b in runs.departure_boundaries]
    assert 100 < departures[0] < 220 < departures[1] < 520
    assert len(runs.table) == 2 * 400
    printed = Printed(tuple(onsets), (1.78, 0.68, 0.02), (0.9, 0.35))
    assert all(check.holds for check in stage_checks(runs, printed, one_layer=True))
    assert not any(check.holds for check in stage_checks(runs, Printed((30, 60), (1, 2, 1), (0.5, 0.1)), False)[1:3])


def test_without_printed_numbers_stages_are_only_counted():
    checks = stage_checks(chain_runs(), Printed(), one_layer=False)
    assert len(checks) == 4
    assert all(check.holds for check in checks)
    assert checks[1].published is None


def test_runs_that_learn_nothing_fail_every_check():
    checks = stage_checks(chain_runs(flat), Printed((330, 575), (2.78, 0.70, 0.09), (0.87, 0.34)), one_layer=True)
    assert len(checks) == 9
    assert not any(check.holds for check in checks)


def test_the_order_follows_the_strongest_group():
    """The same runs, of a chain whose far group is strongest: they learn the wrong one first."""
    study = STUDY.replace(task__groups__strongest="far")
    by_name = {check.name: check for check in stage_checks(chain_runs(study=study), Printed(), one_layer=True)}
    (order,) = [check for name, check in by_name.items() if name.endswith("the strongest group first")]
    assert (order.measured, order.holds) == (0, False)


def test_failed_runs_are_left_out():
    good, bad = STUDY.runs
    failed = Result.untrained(bad, "no memory", "here")
    assert ChainRuns([staged(good), failed]).seeds == 1
    with pytest.raises(InputError, match="all 1 runs of this setting failed"):
        ChainRuns([failed])


def test_a_group_that_no_head_looks_at_is_not_learned():
    shares = np.zeros((400, 3, 3))
    shares[200:, :, 1] = 0.6
    runs = ChainRuns([result(STUDY.runs[0], np.linspace(3, 1, 400), shares)])
    assert runs.learning_order == [[2]]
    assert runs.specialised == 0


def test_a_caveat_says_what_the_study_is():
    small = laptop(MinimalAttention(), batch=64, seeds=1)
    assert sizes_of(small) == (
        "groups of 2, 2, 2 positions, 16 tokens, 12 of them generated per sequence, batches of 64 of fresh data, 1,200 steps, "
        "one seed"
    )
    assert sizes_of(smoke(groups=Groups((1, 3)), n_train=16)).startswith("groups of 1, 3 positions, 5 tokens, 4 of them")
    assert sizes_of(smoke(n_train=16)).endswith("batches of 32, 60 steps, 2 seeds")
    three = FIGURES["yuksel2026/fig3"]
    assert "width 96" in three.caveat["laptop"]
    assert "batches of 64 of fresh data" in three.caveat["laptop"]


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
