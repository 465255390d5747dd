"""Figures of trained chains on hand-made runs: their measurements, plots, and checks that can
fail."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import AxesImage

from emergo.measure import Drop
from emergo.models import MinimalAttention
from emergo.papers.yuksel2026 import _plots, _stage_figure, fig4, fig5, stages_and_maps
from emergo.papers.yuksel2026._chains import ChainRuns, Printed, context_checks, paper
from emergo.papers.yuksel2026._contexts import ContextPredictors
from emergo.tasks import MarkovChain

from .by_hand import STEPS, STUDY, chain_runs, flat, measured, result, staged

PROBE = ContextPredictors((2, 4, 6))


@pytest.fixture(scope="module")
def runs():
    return chain_runs()


def compared(turned=False):
    """Return a run with predictors that are its references, in order or reversed."""
    (run,) = STUDY.replace(seeds=1, probes=(PROBE,)).runs
    kl = measured(staged(run))["kl_references"]
    return ChainRuns([staged(run, kl_contexts=kl[:, ::-1] if turned else kl)])


def looking_at(lags, study=STUDY):
    """Return runs whose heads attend to these lags throughout, given as (head, lag)."""
    every = np.broadcast_to(lags, (len(STEPS), 1, *lags.shape))
    return ChainRuns(
        [result(study.runs[0], np.full(len(STEPS), 3.3), np.zeros((len(STEPS), 3, 3)), every)]
    )


def test_maps(runs):
    assert _plots.head_names(runs[0]) == {0: "1", 1: "2", 2: "3"}
    assert len(set(_plots.head_colours(runs[0]))) == 3
    # They start on no group at all, so that only the first check, of a uniform start, has nothing
    # to say.
    checks = _stage_figure.map_checks(runs, own_heads=True)
    assert all(check.holds for check in checks[1:])
    still = chain_runs(flat)
    checks = _stage_figure.map_checks(still, own_heads=True)
    assert [check.holds for check in checks] == [True, False, False, False]
    # One group, and lighter for further heads.
    assert len(set(_plots.head_colours(still[0]))) == 3


def test_an_animation_moves(runs):
    moving = _plots.animate(runs[0])

    def shown(i):
        (image,) = [artist for artist in moving.draw(i) if isinstance(artist, AxesImage)]
        return np.array(image.get_array())

    attention = runs[0].attention
    np.testing.assert_array_equal(shown(0), attention[0])
    np.testing.assert_array_equal(shown(moving.frames - 1), attention[-1])
    assert (shown(20) != attention[-1]).any()


def test_figure_2_attention_to_the_current_token():
    even = np.full((3, 6), 1 / 6)
    skipped = np.tile([0.0, 0.2, 0.2, 0.2, 0.2, 0.2], (3, 1))
    assert [
        stages_and_maps.current_token_check(looking_at(lags))[0].holds for lags in (even, skipped)
    ] == [False, True]


def test_figure_3_predictors_are_passed_in_order(runs):
    nothing = Printed()
    assert all(check.holds for check in context_checks(compared(), nothing))
    assert not any(check.holds for check in context_checks(compared(turned=True), nothing))
    assert context_checks(runs, nothing) == []
    printed = Printed(step=2000, kl_contexts=(1.78, 0.68, 0.02), least_contexts=(0.9, 70))
    assert [check.holds for check in context_checks(compared(), printed)] == [True] * 3
    assert [check.holds for check in context_checks(compared(turned=True), printed)] == [False] * 3


def test_figure_4_later_plateaus_and_the_second_stage():
    early, late = (ChainRuns([staged(STUDY.runs[0], step)]) for step in (400, 1200))
    assert fig4.later_plateaus(late[0].stages) > fig4.later_plateaus(early[0].stages) > 0
    assert fig4.later_plateaus([Drop(5.0, 6.0, 3.0, 1.0), Drop(50.0, 60.0, 1.0, 0.2)]) == 0
    assert 180 < fig4.first_below(early[0], 0.6) < 230
    assert fig4.first_below(early[0], -1.0) == 2000
    assert [check.holds for check in fig4.importance_checks({"m = 1": early, "m = 2": late})] == [
        True
    ]
    assert [check.holds for check in fig4.importance_checks({"m = 1": late, "m = 2": early})] == [
        False
    ]


def test_figure_4_scale_0_stays_on_the_plateau(runs):
    stuck = result(
        STUDY.runs[0], np.linspace(3.3, 1.2, len(STEPS)), np.full((len(STEPS), 3, 3), 0.2)
    )
    checks = fig4.scale_checks({"Xavier": runs, "0": ChainRuns([stuck])})
    assert [check.holds for check in checks] == [True, True, True]
    assert checks[0].measured[-1] == 2000
    dip = np.append(np.linspace(3.3, 0.1, 200), np.linspace(0.1, 1.2, 200))
    escaped = result(STUDY.runs[0], dip, runs[0].group_attention)
    turned = fig4.scale_checks({"Xavier": ChainRuns([stuck]), "0": ChainRuns([escaped])})
    assert [check.holds for check in turned] == [False, False, False]
    assert fig4.scale_checks({"Xavier": runs}) == []


def test_figure_4_beside_the_published_plots():
    """Steps and the level of scale 0 are compared with published values; other importances are
    not."""
    study = STUDY.replace(task__maps="published", seeds=1)
    runs = ChainRuns([staged(study.runs[0])])
    level = float(runs[0]["kl_teacher"][199])  # at step 1000
    by_scale, by_importance, stuck = fig4.published_checks(
        {"1e-09": runs, "0": runs, "m = 1": runs, "m = 2.1": runs}
    )
    assert by_scale.published == {"1e-09": 361}
    assert not by_scale.holds, "it falls at step 200"
    assert by_importance.measured.keys() == {"m = 1"}
    assert stuck.measured == level
    assert not stuck.holds
    assert fig4.published_checks({"0.001": runs})[0].holds
    assert fig4.published_checks({}) == []


@pytest.fixture(scope="module")
def parts():
    """Return runs whose best step is on a plateau with little data, and the last one with fresh
    data."""
    study = STUDY.replace(probes=(PROBE,))
    little = []
    much = []
    for run in study.runs:
        levels = np.array([0.9, 0.35, 0.02])  # of the plateaus, and of the end
        one = staged(run, kl_contexts=np.abs(measured(staged(run))["kl_teacher"][:, None] - levels))
        curves = dict(one.curves or {})
        worse = curves["loss"] + np.where(STEPS > 100, 0.01 * (STEPS - 100), 0)
        little.append(one._replace(curves=curves | {"loss": worse}))
        much.append(one)
    return {"600": ChainRuns(little), "online": ChainRuns(much)}


@pytest.mark.slow
def test_figure_5_little_data_stops_early(parts):
    table = pd.DataFrame(
        [row for name, runs in parts.items() for row in fig5.stopped_rows(name, runs)]
    )
    np.testing.assert_allclose(table["step"], [100, 100, 2000, 2000])
    assert table["groups"].tolist() == [1, 1, 3, 3]
    assert table["context"].tolist() == [2, 2, 6, 6]
    assert all(check.holds for check in fig5.order_checks(table, 3))
    assert not any(check.holds for check in fig5.order_checks(table[::-1], 3))


def test_figure_6_overfitting(runs):
    assert stages_and_maps.overfitting_check(runs)[0].holds
    rising = result(
        STUDY.runs[0],
        np.append(np.linspace(3, 0.1, 200), np.linspace(0.1, 0.2, 200)),
        np.ones((400, 3, 3)),
    )
    (check,) = stages_and_maps.overfitting_check(ChainRuns([rising]))
    assert check.measured == pytest.approx(0.1)
    assert not check.holds


def test_figure_8_the_far_group_first(runs):
    assert not stages_and_maps.far_first_check(runs)[0].holds
    far = result(STUDY.runs[0], np.linspace(3, 1, 400), np.tile([0.1, 0.1, 0.7], (400, 3, 1)))
    assert stages_and_maps.far_first_check(ChainRuns([far]))[0].holds


@pytest.mark.parametrize(("share", "holds"), [(0.7, True), (0.65, True), (0.5, False)])
def test_figure_13_attention_follows_the_weights(share, holds):
    study = paper(MinimalAttention(), MarkovChain(stages_and_maps.UNEQUAL), seeds=1)
    lags = np.kron(np.eye(3), [share, 1 - share]) * 0.9
    (check,) = stages_and_maps.weight_check(looking_at(lags, study))
    np.testing.assert_allclose(check.measured, share)
    assert check.holds == holds


def test_figure_15_heads_share_what_groups_share(runs):
    """Heads that cover overlapping groups pass; heads that share nothing, or everything, fail."""
    study = paper(MinimalAttention(), MarkovChain(stages_and_maps.OVERLAP), seeds=1)
    (check,) = stages_and_maps.sharing_check(looking_at(stages_and_maps.OVERLAP.members / 4, study))
    np.testing.assert_allclose(
        check.measured, [0.5, 1 / 3]
    )  # the middle one shares half with each of the others
    assert check.holds
    uniform = looking_at(np.full((3, 8), 1 / 8), study)
    assert not any(stages_and_maps.sharing_check(one)[0].holds for one in (runs, uniform))
