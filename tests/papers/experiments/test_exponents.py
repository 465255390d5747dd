"""Where exponents come from: the variants, measured and derived exponents, and checks, on made-up
runs."""

import functools

import numpy as np
import pytest

from emergo.models import ToyAttention
from emergo.papers.experiments import exponents
from emergo.papers.experiments.exponents import ADAM, BASE, ENDS, SGD, Settings, make
from emergo.theory import assembly_plateau, cells, plateau
from emergo.training import Result

from ..made_runs import MadeRuns, evaluations, falling

CHANGED = ("removed/embedding of constant size", "removed/embedding", "removed/positions")
SETTINGS = Settings(
    BASE,
    {SGD: (f"path/{exponents.TOY}", *ENDS, *CHANGED), ADAM: (*ENDS, *CHANGED)},
    seeds=2,
)


@functools.cache
def derived(config):
    task = config.task
    rate = config.optimizer.learning_rate
    if isinstance(config.model, ToyAttention):
        return float(plateau(cells(task.length, task.dim), "exact").time) / rate
    name = config.optimizer.name
    return assembly_plateau(config.model, task.length, task.dim, rate, name)


def run_of(run, at, answers=True):
    """Make a run whose attention passes one half at a step, and whose loss falls if it answers."""
    step = evaluations(run.config.steps)
    loss = falling(step, at, 8.0, floor=0.0 if answers else 0.3)
    last = int(np.argmax(loss <= 0.1)) + 1 if (loss <= 0.1).any() else len(step)
    attention = 1 / (1 + (at / np.maximum(step, 1)) ** 8)
    curves = {"step": step, "loss": loss, "attention": attention[:, None, None]}
    return Result.measured(run, {n: values[:last] for n, values in curves.items()}, None, "by hand")


def checks_of(plateau_of):
    def make_run(run):
        return run_of(run, plateau_of(run) * 1.03**run.seed, bool(run.config.model != CROWDED))

    return make(SETTINGS, MadeRuns(make=make_run))


CROWDED = exponents.variants(BASE)["removed/embedding"].model


def test_the_path_leads_from_the_toy_model_to_the_transformer():
    every = exponents.variants(BASE)
    assert every[ENDS[0]].model == exponents.FULL
    assert every[ENDS[1]].model == exponents.TOKENS
    assert len({config.model for config in every.values()}) >= len(every) - 3
    others = {name: config for name, config in every.items() if "/" in name}
    assert {name.partition("/")[0] for name in others} == set(exponents.GROUPS)


@pytest.fixture(scope="module")
def as_derived():
    return checks_of(lambda run: derived(run.config))


def test_derived_exponents_are_recovered(as_derived):
    """Runs that follow the formula are off by what evaluations every 25 steps blur."""
    table = as_derived.tables["exponents"].set_index("part")
    table = table[[not part.endswith("removed/embedding") for part in table.index]]
    for term in exponents.CELL:
        np.testing.assert_allclose(table[term], table[f"{term}_derived"], atol=0.06)
    np.testing.assert_allclose(table["over_derived"], 1.0, atol=0.1)


def test_models_that_never_answer_are_measured_by_attention(as_derived):
    table = as_derived.tables["exponents"].set_index("part")
    row = table.loc[f"{SGD} removed/embedding"]
    assert row["dim"] == pytest.approx(row["dim_derived"], abs=0.06)
    assert as_derived.tables["runs"].query("part == 'sgd removed/embedding'")["censored"].all()


def test_expectations_hold_for_runs_that_follow_the_formula(as_derived):
    judged = [check for check in as_derived.checks if check.holds is not None]
    assert [check.name for check in judged if not check.holds] == []
    assert len(judged) == 7


def test_every_check_can_fail():
    """Exponents that no component changes, or changes the wrong way."""

    def other(run):
        task = run.config.task
        wrong = 1.4 if run.config.model != exponents.FULL else 0.7
        return 8 * task.dim**wrong * task.length ** (2 - wrong)

    judged = [check for check in checks_of(other).checks if check.holds is not None]
    assert [check.name for check in judged if check.holds] == []


def test_half_of_the_rate_is_compared_with_the_rate():
    name = f"{SGD} {ENDS[0]}"
    part = exponents.pd.DataFrame({"dim": 8, "length": 16, "seed": [0, 1], "plateau": [100.0, 110]})
    for factor, holds in ((2.0, True), (1.5, False)):
        slow = part.assign(plateau=part["plateau"] * factor)
        (check,) = exponents.half_checks({name: part, f"half {name}": slow})
        assert check.holds is holds
        assert check.measured[0][0] == pytest.approx(factor)


def test_missing_parts_are_left_out():
    def make_run(run):
        wanted = run.config.model == exponents.FULL and run.config.optimizer.name == SGD
        return run_of(run, derived(run.config)) if wanted else None

    outcome = make(SETTINGS, MadeRuns(make=make_run))
    assert outcome.tables["exponents"]["part"].tolist() == [f"{SGD} {ENDS[0]}"]
    assert "changes" not in outcome.tables
