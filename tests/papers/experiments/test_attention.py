"""Forms of attention: laws and checks, on made-up runs."""

import numpy as np
import pytest

from emergo.models import Transformer
from emergo.papers.experiments import attention
from emergo.papers.experiments.attention import FORMS, NEUTRAL, Settings, make
from emergo.papers.transformers import PAPER, shallow

from ..made_runs import MadeRuns, evaluations, falling, finished

BASE = shallow(PAPER).replace(steps=20_000)
SETTINGS = Settings(BASE, seeds=2, deep=attention.DEEP, windows=(32, 48), borrow=True)


def plateau_of(run):
    """The law of all made-up runs: 2 d^1.3 T^0.6, and 3% more for the second seed."""
    task = run.config.task
    return 2 * task.dim**1.3 * task.length**0.6 * 1.03**run.seed


def two_drops(run, first):
    """Make a run whose loss falls by the fraction `first` and later by the rest."""
    step = evaluations(run.config.steps)
    loss = first * falling(step, 400, 20.0) + (1 - first) * falling(step, 4000, 20.0)
    return finished(run, loss)


def one_drop(run, at, sharp=12.0):
    return finished(run, falling(evaluations(run.config.steps), at, sharp))


@pytest.fixture(scope="module")
def outcome():
    def make_run(run):
        model = run.config.model
        if model.window:
            return two_drops(run, model.window / run.config.task.length)
        return one_drop(run, plateau_of(run) * (3 if model.attention == "linear" else 1))

    return make(SETTINGS, MadeRuns(make=make_run))


def test_laws_are_recovered(outcome):
    laws = {both.name: both.law for both in outcome.laws}
    assert set(laws) == {*FORMS, attention.FIXED_FORM, *attention.BORROWED}
    for name, law in laws.items():
        exponents = [law.exponents["dim"], law.exponents["length"]]
        np.testing.assert_allclose(exponents, [1.3, 0.6], atol=0.02, err_msg=name)
    assert pytest.approx(3, rel=0.05) == laws["linear"].C / laws["softmax"].C


def test_expectations_hold(outcome):
    assert [check.holds for check in outcome.checks] == [True] * len(outcome.checks)
    names = " ".join(check.name for check in outcome.checks)
    expected = (*NEUTRAL, "linear", "sigmoid", "top 8", "window of 32", "window of 48")
    assert all(name in names for name in expected)
    assert len(outcome.tables["forms"]) == len(FORMS) + 1
    assert (outcome.tables["forms"]["share"] > 0.7).all()
    hidden = outcome.tables["windows"].groupby("window")["hidden"].first()
    np.testing.assert_allclose(hidden, [0.5, 0.25])


def test_every_check_can_fail():
    """Runs without a plateau, fast linear attention, and a different law for each form."""

    def make_run(run):
        task = run.config.task
        model = run.config.model
        if model.window:  # one drop, or two with an unexpected level between them
            return two_drops(run, 0.9 if model.window == 32 else 1.0)
        if model.attention == "sigmoid":
            return one_drop(run, 3 * task.dim * task.length**0.6 * 1.03**run.seed, sharp=1.0)
        neutral = model.positions == "rope" or model.attention == "biased"
        factor = 0.5 if model.top_k or model.attention == "linear" else 1.0
        factor = 2.0 if neutral or model.temperature == "learned" else factor
        return one_drop(run, plateau_of(run) * factor, sharp=1.0)

    checks = make(SETTINGS, MadeRuns(make=make_run)).checks
    assert not any(check.holds for check in checks)
    assert len(checks) == 9


def test_missing_parts_are_left_out():
    def make_run(run):
        config = run.config
        wanted = config.model == Transformer(layers=1, heads=1) and config.task.length == 32
        if not wanted or config.steps != 20_000:
            return None
        return one_drop(run, 100.0 * config.task.dim)

    outcome = make(SETTINGS, MadeRuns(make=make_run))
    assert [both.name for both in outcome.laws] == ["softmax"]
    assert set(outcome.laws[0].law.exponents) == {"dim"}
    assert len(outcome.checks) == 1


def test_a_form_that_never_learns_has_no_law():
    def make_run(run):
        if run.config.model.attention == "linear":
            return finished(run, np.full(len(evaluations(run.config.steps)), 0.5))
        return one_drop(run, 40.0 * run.config.task.dim)

    outcome = make(Settings(BASE, ("softmax", "linear"), seeds=2), MadeRuns(make=make_run))
    assert [both.name for both in outcome.laws] == ["softmax"]
    reached = outcome.tables["forms"].set_index("form")["reached"].to_dict()
    assert reached == {"softmax": 12, "linear": 0}
