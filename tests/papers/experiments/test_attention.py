"""Forms of attention: laws and checks, on runs made by hand."""

import numpy as np
import pytest

from emergo.models import Transformer
from emergo.papers.transformers import PAPER, shallow
from emergo.papers.experiments import attention
from emergo.papers.experiments.attention import FORMS, NEUTRAL, Settings, make

from ..made_runs import MadeRuns, evaluations, falling, finished

SETTINGS = Settings(
    shallow(PAPER).replace(steps=20_000),
    seeds=2,
    deep=attention.DEEP,
    windows=(32, 48),
    borrow=True,
)


def made(slower, by_form=lambda model: 1.0, sharp=12.0):
    """Plateaus 2 d^1.3 T^0.6, with another seed 3% longer: `slower` for linear attention, `by_form`
    for others. With a window the first of two drops is that of the sequences in reach."""

    def run_of(run):
        task = run.config.task
        model = run.config.model
        step = evaluations(run.config.steps)
        at = 2 * task.dim**1.3 * task.length**0.6 * 1.03**run.seed
        at *= slower if model.attention == "linear" else by_form(model)
        if model.window:
            reach = model.window / task.length
            return finished(
                run, reach * falling(step, 400, 20.0) + (1 - reach) * falling(step, 4000, 20.0)
            )
        return finished(run, falling(step, at, sharp))

    return MadeRuns(make=run_of)


@pytest.fixture(scope="module")
def outcome():
    return make(SETTINGS, made(slower=3.0))


def test_laws_are_those_of_the_plateaus(outcome):
    laws = {both.name: both.law for both in outcome.laws}
    assert set(laws) == {
        *FORMS,
        attention.FIXED_FORM,
        "two layers, four heads",
        "fixed position",
        "SGD",
    }
    for name, law in laws.items():
        np.testing.assert_allclose(
            [law.exponents["dim"], law.exponents["length"]], [1.3, 0.6], atol=0.02, err_msg=name
        )
    assert pytest.approx(3, rel=0.05) == laws["linear"].C / laws["softmax"].C


def test_what_is_expected_holds_of_such_runs(outcome):
    assert [check.holds for check in outcome.checks] == [True] * len(outcome.checks)
    names = " ".join(check.name for check in outcome.checks)
    assert all(
        name in names
        for name in (*NEUTRAL, "linear", "sigmoid", "top 8", "window of 32", "window of 48")
    )
    assert len(outcome.tables["forms"]) == len(FORMS) + 1
    assert (outcome.tables["forms"]["share"] > 0.7).all()
    np.testing.assert_allclose(
        outcome.tables["windows"].groupby("window")["hidden"].first(), [0.5, 0.25]
    )


def test_every_check_can_fail():
    """Falls without a plateau, linear attention that is fast, and forms of which each has another
    law."""

    def by_form(model):
        other = (
            model.positions == "rope"
            or model.attention == "biased"
            or model.temperature == "learned"
        )
        return 2.0 if other else 0.5 if model.top_k else 1.0

    source = made(slower=0.5, by_form=by_form, sharp=1.0)

    def run_of(run):
        task = run.config.task
        model = run.config.model
        step = evaluations(run.config.steps)
        if model.attention == "sigmoid":
            return finished(
                run, falling(step, 3 * task.dim * task.length**0.6 * 1.03**run.seed, 1.0)
            )
        if model.window:  # one drop, or two with another level between them
            share = 0.1 if model.window == 32 else 0.0
            return finished(
                run, (1 - share) * falling(step, 400, 20.0) + share * falling(step, 4000, 20.0)
            )
        return source.make(run)

    outcome = make(SETTINGS, MadeRuns(make=run_of))
    # Of a window of 48 there is no level to be checked: its runs fall once.
    assert [check.holds for check in outcome.checks if "window of 32: runs" not in check.name] == [
        False
    ] * (len(outcome.checks) - 1)


def test_parts_that_are_missing_are_left_out():
    def run_of(run):
        config = run.config
        if (
            config.model != Transformer(layers=1, heads=1)
            or config.task.length > 32
            or config.steps != 20_000
        ):
            return None
        return finished(run, falling(evaluations(config.steps), 100.0 * config.task.dim))

    outcome = make(SETTINGS, MadeRuns(make=run_of))
    assert [both.name for both in outcome.laws] == ["softmax"]
    assert set(outcome.laws[0].law.exponents) == {"dim"}
    assert len(outcome.checks) == 1


def test_a_form_that_never_learns_has_no_law():
    def run_of(run):
        stuck = run.config.model.attention == "linear"
        step = evaluations(run.config.steps)
        return finished(
            run, np.full(len(step), 0.5) if stuck else falling(step, 40.0 * run.config.task.dim)
        )

    few = Settings(SETTINGS.base, ("softmax", "linear"), seeds=2)
    outcome = make(few, MadeRuns(make=run_of))
    assert [both.name for both in outcome.laws] == ["softmax"]
    assert outcome.tables["forms"].set_index("form")["reached"].to_dict() == {
        "softmax": 12,
        "linear": 0,
    }
