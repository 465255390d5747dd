"""Coupled circuits: interventions, and laws and checks on made-up tables."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from emergo.core.contract import Batch, Tap
from emergo.core.errors import InputError
from emergo.papers import FIGURES
from emergo.papers.experiments import coupled
from emergo.papers.experiments.coupled import BOTH, COPYING, NEITHER, PARTS, SELECTING, Match
from emergo.study import Study
from emergo.training import Result

PATTERN = "layers.1.pattern"
TOKENS = jnp.array([[3, 5, 7, 4, 3]])  # the query, 3, stands first; its value, 5, second


def matched(copied, gain=8.0):
    tap = Tap(batch=Batch(TOKENS, None))
    tap.taken["layers.0.pattern"] = jnp.asarray(copied)[None, None]
    value = jnp.full((1, 2, 5, 5), 0.2)
    return Match(PATTERN, head=0, gain=gain).change(PATTERN, value, tap)


def test_match_selects_the_value_once_its_key_is_copied():
    to_previous = np.eye(5, k=-1)
    to_previous[0, 0] = 1
    attention = matched(to_previous)
    # Position 0, the key, attends to itself, and position 1, its value, to the key: both have
    # copied the query.
    np.testing.assert_allclose(attention[0, 0, -1, :2], 0.5, atol=1e-3)
    assert matched(np.eye(5)[[1, 0, 1, 1, 1]])[0, 0, -1, 1] > 0.99  # only the value attends to it
    np.testing.assert_allclose(matched(np.full((5, 5), 0.2))[0, 0, -1], 0.2, atol=1e-6)
    np.testing.assert_array_equal(attention[0, 1], np.full((5, 5), 0.2, np.float32))
    np.testing.assert_array_equal(attention[0, 0, :-1], np.full((4, 5), 0.2, np.float32))
    with pytest.raises(InputError, match="compares whole-number tokens with the query"):
        Match(PATTERN).new_from(jnp.ones((1, 1, 5, 5)), Tap())


def table_of(times, state="reached"):
    """Make one row per part, cell and seed; `times(part, pairs, tokens)`."""
    rows = []
    for part, pairs, tokens, seed in itertools.product(PARTS, (4, 8, 16), (32, 64, 128), (0, 1)):
        time = times(part, pairs, tokens) * (1 + 0.01 * seed * len(part) / pairs)
        row = {"part": part, "pairs": pairs, "vocabulary": tokens, "seed": seed}
        row |= {"learning_rate": 1e-3, "plateau": time, "state": state}
        row |= {"censored": state != "reached", "copying": 0.9 * time, "selecting": time}
        rows.append(row)
    return pd.DataFrame(rows)


def multiplying(part, pairs, tokens):
    return {BOTH: pairs**2, SELECTING: pairs, COPYING: pairs, NEITHER: 1.0}[part] * tokens**0.5


def adding(part, pairs, tokens):
    return {BOTH: 2 * pairs - 1, SELECTING: pairs, COPYING: pairs, NEITHER: 1.0}[part] * tokens**0.5


def checks_of(table):
    every = [
        *coupled.ratio_checks(coupled.compared(table)),
        *coupled.copying_checks(coupled.copying_alone(table)),
        *coupled.falling_checks(coupled.exponent_table(table)),
        *coupled.together_check(table),
    ]
    return {check.name: check for check in every}


def only(checks, words):
    """Return the first check whose name contains these words."""
    return next(check for name, check in checks.items() if words in name)


def test_circuits_that_multiply_and_circuits_that_add():
    multiply = checks_of(table_of(multiplying))
    add = checks_of(table_of(adding))
    for checks, exponent, holds in ((multiply, 1, True), (add, 0, False)):
        check = only(checks, "less that with copying given")
        assert check.measured[0] == pytest.approx(exponent, abs=0.15)
        assert check.holds is holds
    assert only(add, "geometric mean").measured == pytest.approx(1, abs=0.02)
    assert only(multiply, "geometric mean").measured > 2
    alone = only(add, "copying takes beyond").measured[0]
    assert alone == pytest.approx(np.log(15 / 3) / np.log(4), abs=0.05), "pairs less 1"
    falling = only(multiply, "exponent of pairs when both form, with")
    assert [row[0] for row in falling.measured] == pytest.approx([2, 2, 2], abs=0.05)
    assert not falling.holds
    assert only(multiply, "half way").holds
    assert only(multiply, "half way").measured == pytest.approx([1 / 0.9] * 3)


def test_falling_exponents_and_circuits_that_form_apart():
    """Exact power laws whose exponent is 2, 1.5 and 1, so that only seeds scatter."""
    size = {BOTH: 2.0, SELECTING: 1.0, COPYING: 1.0, NEITHER: 0.1}
    table = table_of(
        lambda part, pairs, tokens: size[part] * pairs ** (4.5 - math.log2(tokens) / 2)
    )
    checks = checks_of(table.assign(selecting=3 * table["copying"]))
    falling = [check.holds for name, check in checks.items() if name.endswith(" tokens")]
    assert falling == [True] * 3
    assert not only(checks, "half way").holds


def test_cells_with_a_censored_run_are_not_compared():
    table = table_of(multiplying)
    late = (table["part"] == BOTH) & (table["pairs"] == 16) & (table["seed"] == 0)
    table = table.assign(state=np.where(late, "censored", "reached"), censored=late)
    assert {*coupled.compared(table)["pairs"]} == {4, 8}
    assert checks_of(table_of(multiplying, state="censored")) == {}


def test_the_best_rate_has_the_most_emerged_seeds_and_then_the_earliest():
    fast = table_of(multiplying)
    slow = fast.assign(learning_rate=3e-4, plateau=2 * fast["plateau"])
    stuck = (fast["part"] == BOTH) & (fast["pairs"] == 16) & (fast["seed"] == 1)
    fast = fast.assign(state=np.where(stuck, "censored", "reached"), censored=stuck)
    best = coupled.at_best_rates(pd.concat([fast, slow], ignore_index=True))
    assert len(best) == len(fast)
    slower = (best["part"] == BOTH) & (best["pairs"] == 16)
    assert {*best["learning_rate"][slower]} == {3e-4}
    assert {*best["learning_rate"][~slower]} == {1e-3}


@pytest.mark.parametrize("part", PARTS)
def test_times_of_circuits_that_are_not_provided(part):
    step = np.arange(0, 1000, 100)
    base = FIGURES["emergo/coupled"].presets["laptop"].base
    run = Study.of(base.replace(interventions=PARTS[part]), seeds=1).runs[0]
    rise = np.where(step >= 500, 0.8, 0.1)
    # Shape: evaluations, layers, heads.
    heads = np.stack([np.zeros(10), rise], -1)[:, None].repeat(2, 1)
    curves = {"step": step, "accuracy": np.where(step >= 600, 1.0, 0.02), "loss": 0.0 * step}

    def measured(circuit):
        return Result.measured(
            run, curves | {"copying": circuit, "selecting": circuit}, None, "cpu"
        )

    never = coupled.circuit_times(measured(0 * heads + 0.5))
    assert all(map(math.isnan, never.values()))
    row = coupled.run_table([measured(heads)]).iloc[0]
    assert row["part"] == part
    assert math.isnan(row["copying"]) == (part == SELECTING)
    assert math.isnan(row["selecting"]) == (part == NEITHER)
    assert row[["copying", "selecting"]].dropna().between(401, 500).all()
    assert 500 < row["early"] <= row["plateau"] <= 600
