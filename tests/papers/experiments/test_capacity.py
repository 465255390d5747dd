"""Width, rate, rank and start: laws and checks, on runs made by hand."""

import numpy as np
import pandas as pd
import pytest

from emergo.models import Transformer
from emergo.papers import FIGURES
from emergo.papers.transformers import PAPER
from emergo.papers.experiments.capacity import (
    Settings,
    correlation,
    laws_of,
    make,
    operations_of_step,
    rank_checks,
    rate_checks,
)
from emergo.tasks import SingleLocation
from emergo.theory import rank_floor
from emergo.training import Config

from ..made_runs import MadeRuns, evaluations, falling, finished

BASE = PAPER.replace(task__length=64, task__dim=32, steps=20_000)
SETTINGS = Settings(BASE, seeds=2, lucky=8)


def made(width_power=1.0, luck=-2.0, heads=0.9, above=0.02):
    """Plateaus 0.05/(rate width^power) down to 400 steps, over which the rate is too large for its
    width; `luck`: what the alignment at the start does to log plateau, `heads`: the factor by each
    doubling of heads, `above`: of the last loss over the floor of its rank."""

    def run_of(run):
        config = run.config
        task = config.task
        model = config.model
        step = evaluations(config.steps)
        start = 0.2 * np.sin(1 + 5 * run.seed)
        at = (
            1900
            * 0.0256
            / (config.optimizer.learning_rate * 256 * (model.width / 256) ** width_power)
        )
        at = (
            max(at, 400)
            * np.exp(luck * start)
            * heads ** np.log2(model.heads / 4)
            * (task.dim / 32) ** 1.3
        )
        floor = (
            0.5 * float(rank_floor(model.width, task.dim)) + above
            if config.threshold is None
            else 0.0
        )
        return finished(run, falling(step, at, floor=floor), start)

    return MadeRuns(make=run_of)


@pytest.fixture(scope="module")
def outcome():
    return make(SETTINGS, made())


@pytest.mark.slow
def test_the_exponents_of_width_are_those_of_the_plateaus(outcome):
    laws = {both.name: both.law.exponents["width"] for both in outcome.laws}
    assert laws["steps, the same rate"] == pytest.approx(-1, abs=0.02)
    assert laws["steps, rate in proportion to 1/width"] == pytest.approx(0, abs=0.02)
    assert abs(laws["steps, best rate of each width"]) < 0.05
    assert laws["operations, best rate of each width"] > 1.5


def test_what_is_expected_holds_of_such_runs(outcome):
    failed = [check.name for check in outcome.checks if not check.holds]
    assert len(failed) == 1
    assert "the floor of half the width" in failed[0]  # these runs reach that of the width
    assert len(outcome.checks) == 15


def test_a_run_counts_for_every_rule_that_takes_it(outcome):
    rules = outcome.tables["rules"]
    at = rules[rules["width"] == 256].groupby("rule")["learning_rate"].first()
    assert at["fixed"] == at["scaled"] == 1e-4 < at["best"]
    assert len(rules) == 3 * 2 * 6
    steps = rules["operations"] / rules["plateau"]
    assert (steps.groupby(rules["width"]).first().pct_change().dropna() > 1).all(), (
        "a step costs more at a larger width"
    )


def test_operations_of_a_step_by_hand():
    """Six for each weight of a matrix and each token, biases left out: width 8, hidden 32, two
    layers, batch 2 of 4 tokens."""
    task = SingleLocation(4, 2, position="random", indicator=True)
    config = Config(task, Transformer(width=8, heads=2), batch=2, precision="fp32")
    weights = 3 * 8 + 2 * (4 * 8 * 8 + 2 * 8 * 32) + 8 * 2
    assert operations_of_step(config) == 6 * weights * 2 * 4


def test_every_check_can_fail():
    outcome = make(SETTINGS, made(width_power=-2.0, luck=2.0, heads=1.2, above=-0.05))
    passed = [check.name for check in outcome.checks if check.holds]
    # A last loss below the floor learns where it cannot, and where it can.
    assert passed == ["exponent of width of the operations, best rate", passed[-1]]
    assert "where the floor is below half" in passed[-1]


def test_a_larger_model_may_pay_and_a_narrow_one_may_learn_nothing():
    """Those two checks, on tables."""
    widths = np.repeat([32, 64, 128], 3)
    plateau = 1e9 * widths**-3.0 * np.tile([0.9, 1.0, 1.1], 3)
    rules = pd.DataFrame(
        {"width": widths, "plateau": plateau, "operations": plateau * widths**2, "state": "reached"}
    )
    laws = {both.name: both.law for both in laws_of(rules.assign(rule="best", censored=False))}
    (operations,) = rate_checks(rules.assign(rule="best"), laws)
    assert operations.measured == pytest.approx(-1)
    assert not operations.holds
    both = pd.concat(
        [rules.assign(rule=rule, seed=np.tile([0, 1, 2], 3)) for rule in ("fixed", "best")]
    )
    shares = [check for check in rate_checks(both, {}) if "share" in check.name]
    assert [check.measured for check in shares] == pytest.approx([0, 0])
    assert [check.holds for check in shares] == [False, False]
    rank = pd.DataFrame(
        {
            "width": [32, 32],
            "dim": [32, 64],
            "last": [0.9, 0.9],
            "floor": [0.0, 0.1],
            "state": "censored",
        }
    )
    assert [check.holds for check in rank_checks(rank.assign(half_floor=0.85))] == [
        True,
        False,
        True,
    ]


def test_parts_that_are_missing_are_left_out():
    def run_of(run):
        config = run.config
        return (
            made().make(run)
            if config.model.width in (32, 64) and config.threshold is not None
            else None
        )

    outcome = make(SETTINGS, MadeRuns(make=run_of))
    assert set(outcome.tables) == {"rates", "rules"}
    assert {both.law.exponents.keys() == {"width"} for both in outcome.laws} == {True}
    shallow = {run.identity for name in ("heads", "depth") for run in SETTINGS.studies()[name].runs}
    only = make(
        SETTINGS, MadeRuns(make=lambda run: made().make(run) if run.identity in shallow else None)
    )
    assert set(only.tables) == {"starts", "depth"}


def test_the_interval_of_a_correlation_covers_it():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        x = rng.standard_normal(40)
        _, low, high = correlation(x, 0.5 * x + 0.75**0.5 * rng.standard_normal(40))
        covered += low < 0.5 < high
    assert covered >= 180  # 95% of 200, less three standard deviations


def test_models_of_one_width_share_a_program_and_what_is_recorded_is_borrowed():
    studies = FIGURES["emergo/capacity"].studies()
    assert studies["rank 32"].base.model == studies["width 32"].base.model
    assert {run.identity for run in studies["luck"].runs[:5]} <= {
        run.identity for run in studies["width 256"].runs
    }
    shared = {run.identity for run in FIGURES["zucchet2025/fig13"].runs()}
    assert {run.identity for run in studies["depth"].runs} <= shared
