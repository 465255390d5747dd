"""The measures behind the figures of trained chains, on curves made by hand; and that their checks can fail."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pandas as pd

from emergo.engine import History
from emergo.measure import Stop
from emergo.papers import FIGURES
from emergo.papers.own import rounding, stages
from emergo.papers.yuksel2026 import _map_figure as maps
from emergo.papers.yuksel2026 import fig3, fig4, fig5, fig15
from emergo.papers.yuksel2026._chains import Training, watch
from emergo.papers.yuksel2026._stage_checks import Printed, checks_of
from emergo.papers.yuksel2026._stage_figure import moments_of
from emergo.studies import Result
from emergo.tasks import MarkovChain

TRAINING = Training(seeds=2)
STEPS = np.arange(5, 2001, 5)


def result(run, excess, shares, lags=None):
    """`shares`: (evaluation, head, group), spread over the two positions of each group unless `lags` are given."""
    lags = np.repeat(shares, 2, -1)[:, None] / 2 if lags is None else lags
    truncated = [abs(excess - level) + level for level in (0.9, 0.35)]  # nearest on the plateau of that level
    references = np.stack([*truncated, excess], -1)
    curves = {"step": STEPS, "loss": excess + 0.5, "excess": excess, "divergences": references, "lags": lags}
    return Result.of(History(run, "exhausted", None, curves, "by hand"))


def staged(run, late=500):
    """Falls at steps 20, 200 and `late`; all heads on group 1, then one of them leaves for each other group."""

    def past(step):
        return 1 / (1 + (STEPS / step) ** -12.0)

    excess = 3.3 - 2.4 * past(20) - 0.55 * past(200) - 0.33 * past(late)
    one, two = past(200)[:, None], past(late)[:, None]
    group = np.eye(3) * 0.9
    heads = [group[0] + 0 * one, group[0] * (1 - one) + group[1] * one, group[0] * (1 - two) + group[2] * two]
    return result(run, excess, np.stack(heads, 1) * past(20)[:, None, None])


def test_stages_made_by_hand_are_seen():
    runs = TRAINING.runs(TRAINING.minimal())
    seen = watch([staged(run) for run in runs])
    assert [len(run) for run in seen.stages] == [3, 3]
    assert seen.order() == [[1, 2, 3]] * 2
    assert seen.owners == 2
    assert seen.together > 0.85
    np.testing.assert_allclose(seen.plateaus, [0.9, 0.35], rtol=0.03)
    onsets = [b.step for b in seen.boundaries]
    assert 150 < onsets[0] < 200 < 380 < onsets[1] < 500
    printed = Printed(tuple(onsets), (1.78, 0.68, 0.02), (0.9, 0.35))
    assert all(check.holds for check in checks_of(seen, printed, one_layer=True))


def test_a_run_without_stages_fails_every_check():
    runs = TRAINING.runs(TRAINING.minimal())
    flat = [result(run, np.full(len(STEPS), 3.3), np.full((len(STEPS), 3, 3), 0.2)) for run in runs]
    made = checks_of(watch(flat), Printed((330, 575), (2.78, 0.70, 0.09), (0.87, 0.34)), one_layer=True)
    assert len(made) == 9
    assert not any(check.holds for check in made)


def test_later_plateaus_and_the_second_stage():
    (run, _) = TRAINING.runs(TRAINING.minimal())
    early, late = staged(run, 400), staged(run, 1200)
    assert fig4.later_plateaus(late) > fig4.later_plateaus(early) > 0
    assert 180 < fig4.second_stage(early, 0.6) < 230
    assert fig4.second_stage(early, -1.0) == 2000


def test_heads_that_share_what_groups_share():
    """Overlapping groups, each with a head that looks at all of its positions; against heads that share nothing, or all."""
    training = Training(MarkovChain(fig15.OVERLAP), seeds=1)
    (run,) = training.runs(training.minimal())
    spans = fig15.OVERLAP.members / 4

    def seen(maps):
        lags = np.broadcast_to(maps, (len(STEPS), 1, *maps.shape))
        return watch([result(run, np.full(len(STEPS), 3.3), np.zeros((len(STEPS), 3, 3)), lags)])

    (check,) = fig15.sharing(seen(spans))
    np.testing.assert_allclose(check.measured, [0.5, 1 / 3])  # the middle one shares half with each of the others
    assert check.holds
    apart = watch([staged(run) for run in TRAINING.runs(TRAINING.minimal())])
    uniform = seen(np.full((3, 8), 1 / 8))
    assert not any(fig15.sharing(one)[0].holds for one in (apart, uniform))


def test_maps_made_by_hand():
    runs = TRAINING.runs(TRAINING.minimal())
    seen = watch([staged(run) for run in runs])
    assert maps.order_of(seen).tolist() == [0, 1, 2]
    assert len(set(maps.tints(seen))) == 3
    steps = [seen.steps[at] for at, _ in moments_of(seen)]
    assert (steps[0], steps[-1], len(steps)) == (STEPS[0], STEPS[-1], 4)
    # They start on no group at all, so that only the first check, of a uniform start, has nothing to say.
    assert all(check.holds for check in maps.checks_of(seen, own=True)[1:])
    flat = [result(run, np.full(len(STEPS), 3.3), np.full((len(STEPS), 3, 3), 0.2)) for run in runs]
    assert [check.holds for check in maps.checks_of(watch(flat), own=True)] == [True, False, False, False]


def test_predictors_of_restricted_context_are_passed_in_order():
    training = dataclasses.replace(TRAINING, windows=(2, 4, 6), seeds=1)
    (run,) = training.runs(training.minimal())
    made = staged(run)
    assert made.curves is not None
    passed = made._replace(curves={**made.curves, "restricted": made.curves["divergences"]})
    assert all(check.holds for check in fig3.by_window(watch([passed])))
    assert fig5.nearest_window(passed, Stop(2000, 0, 1, 0, None)) == 6
    turned = made._replace(curves={**made.curves, "restricted": made.curves["divergences"][:, ::-1]})
    assert not any(check.holds for check in fig3.by_window(watch([turned])))
    assert fig5.nearest_window(turned, Stop(2000, 0, 1, 0, None)) == 2


def test_references_are_apart():
    apart = fig5.apart(TRAINING.task, 256)
    np.testing.assert_allclose(np.diag(apart), 0, atol=1e-5)
    assert apart[2, 0] > apart[2, 1] > 0.3  # the teacher is further from A_1 than from A_1:2


def test_the_growth_of_differences_made_by_hand():
    (run, _) = TRAINING.runs(TRAINING.minimal())
    step = np.arange(5, 2001, 5)

    def grown(log):
        shares = np.full((len(step), 3, 3), 0.3)
        shares[:, 0, 0] += np.exp(np.minimum(log, np.log(0.1)))
        return rounding.growth(result(run, np.ones(len(step)), shares))

    steady, _ = grown(-30 + step / 40)
    assert abs(steady - 1) < 0.02
    falling, expected = grown(-30 + 0.8 * np.sqrt(step))
    assert abs(falling - expected) < 0.03
    assert expected < 0.75
    assert np.isnan(grown(np.full(len(step), -30.0))).all()  # never came apart


def test_laws_of_the_stages_are_those_of_their_table():
    rows = []
    for cell in stages.Settings().trained.cells:
        for seed, noise in enumerate((0.97, 1.0, 1.03)):
            time = noise * 3 * cell.length**1.2 * cell.span**-0.5 * cell.importance**-1.0
            late = {"censored": False, "state": "reached", "derived": np.nan}
            rows.append(cell.columns | {"part": "sgd", "stage": 1, "seed": seed, "time": time} | late)
    table = pd.DataFrame(rows)
    law = stages.law_of(table, "sgd", 1)
    assert law is not None
    np.testing.assert_allclose([law.exponents[n] for n in ("length", "span", "importance")], [1.2, -0.5, -1.0], atol=0.02)
    assert stages.law_of(table, "sgd", 1, "derived") is None
    other = dataclasses.replace(law, exponents={**law.exponents, "length": 0.9, "span": 0.0})
    assert stages.exponent_check("sgd", law, law).holds
    assert not stages.exponent_check("sgd", law, other).holds
    assert stages.nearer_check("logit", law, [law, other]).holds
    assert not stages.nearer_check("preconditioned", law, [law, other]).holds


def test_the_derived_first_stage_scales_as_the_flow_says():
    """Twice the rate, half the steps; without damping to speak of, T √D, and more with it."""
    settings = stages.FIGURE.presets["smoke"]
    settings = dataclasses.replace(settings, trained=dataclasses.replace(settings.trained, lengths=(4, 6)))
    short, long = ({run.config.task.given: run.config for run in settings.runs(settings.optimizers[0])}[T] for T in (4, 6))
    fast = dataclasses.replace(short, optimizer=dataclasses.replace(short.optimizer, learning_rate=60.0))
    steps = stages.derived_first(short, 0, 256)
    assert np.isclose(steps, 2 * stages.derived_first(fast, 0, 256))
    again = np.sqrt(long.model.size / short.model.size) * 6 / 4
    signals = 1.2  # of 256 sequences each, other ones
    assert again / signals < stages.derived_first(long, 0, 256) / steps < 1.3 * again * signals


def test_paper_presets_have_the_published_setting():
    for name in (f"fig{n}" for n in range(1, 20) if n != 10):
        figure = FIGURES[f"yuksel2026/{name}"]
        assert figure.runs is not None
        for run in figure.runs(figure.presets["paper"]):
            config = run.config
            assert isinstance(config.task, MarkovChain)
            assert (config.batch, config.tests, config.precision, config.optimizer.clip) == (3000, 3000, "fp32", 1.0)
            assert (config.task.vocabulary, config.task.generated) == (50, 20)
        assert len({run.seed for run in figure.runs(figure.presets["paper"])}) == 5


def test_the_campaign_trains_all_figures_and_maps_need_no_runs_of_their_own():
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "chains.py"))
    wanted = {id for id, figure in FIGURES.items() if id.startswith("yuksel2026/") and figure.runs} | {*campaign["OURS"]}
    assert {name if "/" in name else f"yuksel2026/{name}" for name in campaign["ORDER"]} == wanted
    runs = {name: {run.identity for run in part} for name, part in campaign["stages"](campaign["ORDER"]).items()}
    trained = set().union(*(runs[name] for name in campaign["CURVES"]))
    assert all(runs[name] <= trained for name in campaign["MAPS"])
