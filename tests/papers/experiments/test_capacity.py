"""Width, learning rate, rank and start: laws and checks, on made-up runs."""

import numpy as np
import pandas as pd
import pytest

from emergo.models import Transformer
from emergo.papers.experiments.capacity import (
    Settings,
    laws_of,
    make,
    operations_of_step,
    rank_checks,
    rate_checks,
)
from emergo.papers.transformers import PAPER
from emergo.tasks import SingleLocation
from emergo.theory import rank_floor
from emergo.training import Config

from ..made_runs import MadeRuns, evaluations, falling, finished

pytestmark = pytest.mark.usefixtures("fast_paths")

BASE = PAPER.replace(task__length=64, task__dim=32, steps=20_000)
SETTINGS = Settings(BASE, seeds=2, lucky=8)


def made(width_power=1.0, luck=-2.0, heads=0.9, above=0.02):
    """Make runs with plateaus 0.05/(rate width^power), but at least 400 steps.

    - `luck`: the effect of the alignment at the start on log plateau.
    - `heads`: the factor of the plateau per doubling of heads.
    - `above`: the last loss minus the floor of its rank.
    """

    def make_run(run):
        task = run.config.task
        model = run.config.model
        start = 0.2 * np.sin(1 + 5 * run.seed)
        speed = run.config.optimizer.learning_rate * 256 * (model.width / 256) ** width_power
        at = max(1900 * 0.0256 / speed, 400) * np.exp(luck * start)
        at *= heads ** np.log2(model.heads / 4) * (task.dim / 32) ** 1.3
        floor = 0.0
        if run.config.threshold is None:
            floor = 0.5 * float(rank_floor(model.width, task.dim)) + above
        return finished(run, falling(evaluations(run.config.steps), at, floor=floor), start)

    return MadeRuns(make=make_run)


@pytest.fixture(scope="module")
def outcome():
    return make(SETTINGS, made())


@pytest.mark.slow
def test_exponents_of_width_are_recovered(outcome):
    laws = {both.name: both.law.exponents["width"] for both in outcome.laws}
    assert laws["steps, the same rate"] == pytest.approx(-1, abs=0.02)
    assert laws["steps, rate in proportion to 1/width"] == pytest.approx(0, abs=0.02)
    assert abs(laws["steps, best rate of each width"]) < 0.05
    assert laws["operations, best rate of each width"] > 1.5


def test_expectations_hold(outcome):
    (failed,) = [check.name for check in outcome.checks if not check.holds]
    assert "the floor of half the width" in failed  # these runs reach the floor of the width
    assert len(outcome.checks) == 15


def test_a_run_may_belong_to_several_rules(outcome):
    rules = outcome.tables["rules"]
    at = rules[rules["width"] == 256].groupby("rule")["learning_rate"].first()
    assert at["fixed"] == at["scaled"] == 1e-4 < at["best"]
    assert len(rules) == 3 * 2 * 6


def test_operations_of_a_step():
    """Width 8, hidden width 32, two layers, batch 2 of 4 tokens; biases do not count."""
    task = SingleLocation(4, 2, position="random", indicator=True)
    config = Config(task, Transformer(width=8, heads=2), batch=2, precision="fp32")
    weights = 3 * 8 + 2 * (4 * 8 * 8 + 2 * 8 * 32) + 8 * 2
    assert operations_of_step(config) == 6 * weights * 2 * 4


def test_every_check_can_fail():
    outcome = make(SETTINGS, made(width_power=-2.0, luck=2.0, heads=1.2, above=-0.05))
    passed = [check.name for check in outcome.checks if check.holds]
    assert len(passed) == 2
    assert passed[0] == "exponent of width of the operations, best rate"
    assert "where the floor is below half" in passed[1]


def test_a_larger_model_may_pay_and_a_narrow_one_may_learn_nothing():
    widths = np.repeat([32, 64, 128], 3)
    plateau = 1e9 * widths**-3.0 * np.tile([0.9, 1.0, 1.1], 3)
    rules = pd.DataFrame({"width": widths, "plateau": plateau, "state": "reached"})
    rules = rules.assign(operations=plateau * widths**2, seed=np.tile([0, 1, 2], 3))
    best = rules.assign(rule="best", censored=False)
    (operations,) = rate_checks(best, {both.name: both.law for both in laws_of(best)})
    assert operations.measured == pytest.approx(-1)
    assert not operations.holds
    shares = [*rate_checks(pd.concat([best, rules.assign(rule="fixed")]), {})]
    assert [check.measured for check in shares] == pytest.approx([0, 0])
    assert not any(check.holds for check in shares)
    rank = pd.DataFrame({"width": [32, 32], "dim": [32, 64], "floor": [0.0, 0.1]})
    rank = rank.assign(last=0.9, half_floor=0.85, state="censored")
    assert [check.holds for check in rank_checks(rank)] == [True, False, True]


def test_missing_parts_are_left_out():
    every = made().make
    shallow = {run.identity for name in ("heads", "depth") for run in SETTINGS.studies()[name].runs}

    def small(run):
        return run.config.model.width in (32, 64) and run.config.threshold is not None

    for kept, tables in (
        (small, {"rates", "rules"}),
        (lambda run: run.identity in shallow, {"starts", "depth"}),
    ):
        source = MadeRuns(make=lambda run, kept=kept: every(run) if kept(run) else None)
        assert set(make(SETTINGS, source).tables) == tables
