"""Coupled circuits: what is given, and laws and checks on tables made by hand."""

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
from emergo.training import Result

PATTERN = "layers.1.pattern"
TOKENS = jnp.array([[3, 5, 7, 4, 3]])  # the query, 3, stands first, and its value, 5, second


def matched(copied, gain=8.0):
    tap = Tap(batch=Batch(TOKENS, None))
    tap.taken["layers.0.pattern"] = jnp.asarray(copied)[None, None]
    value = jnp.full((1, 2, 5, 5), 0.2)
    return Match(PATTERN, head=0, gain=gain).change(PATTERN, value, tap)


def test_selecting_that_is_given_finds_the_value_once_its_key_has_been_copied():
    to_previous = np.eye(5, k=-1)
    to_previous[0, 0] = 1
    attention = matched(to_previous)
    # Position 0 is the key itself, which looks at itself, and 1 its value: both hold a copy of the
    # query.
    np.testing.assert_allclose(attention[0, 0, -1, :2], 0.5, atol=1e-3)
    first = np.eye(5)[[1, 0, 1, 1, 1]]  # only the value looks at the key
    assert matched(first)[0, 0, -1].argmax() == 1
    assert matched(first)[0, 0, -1, 1] > 0.99
    np.testing.assert_allclose(matched(np.full((5, 5), 0.2))[0, 0, -1], 0.2, atol=1e-6)
    np.testing.assert_array_equal(attention[0, 1], np.full((5, 5), 0.2, np.float32))
    np.testing.assert_array_equal(attention[0, 0, :-1], np.full((4, 5), 0.2, np.float32))
    with pytest.raises(InputError, match="compares whole-number tokens with the query"):
        Match(PATTERN).new_from(jnp.ones((1, 1, 5, 5)), Tap())


def table_of(times, seeds=2, state="reached"):
    """One row per part, cell and seed; `times(part, pairs, tokens)`."""
    rows = []
    for part in PARTS:
        for pairs in (4, 8, 16):
            for tokens in (32, 64, 128):
                for seed in range(seeds):
                    time = times(part, pairs, tokens) * (
                        1 + 0.01 * seed * len(part) / pairs
                    )  # seeds scatter
                    row = {
                        "part": part,
                        "pairs": pairs,
                        "vocabulary": tokens,
                        "seed": seed,
                        "learning_rate": 1e-3,
                    }
                    row |= {"plateau": time, "censored": state != "reached", "state": state}
                    rows.append(row | {"copying": 0.9 * time, "selecting": time})
    return pd.DataFrame(rows)


def multiplying(part, pairs, tokens):
    return {BOTH: pairs**2, SELECTING: pairs, COPYING: pairs, NEITHER: 1.0}[part] * tokens**0.5


def adding(part, pairs, tokens):
    return {BOTH: 2 * pairs - 1, SELECTING: pairs, COPYING: pairs, NEITHER: 1.0}[part] * tokens**0.5


def checks_of(table):
    ratios = coupled.compared(table)
    exponents = coupled.exponent_table(table)
    alone = coupled.copying_checks(coupled.copying_alone(table))
    every = [
        *coupled.ratio_checks(ratios),
        *alone,
        *coupled.falling_checks(exponents),
        *coupled.together_check(table),
    ]
    return {check.name: check for check in every}


def test_circuits_that_multiply_are_told_from_circuits_that_add():
    multiply = checks_of(table_of(multiplying))
    add = checks_of(table_of(adding))
    less = "exponent of pairs when both form less that with copying given, and its interval"
    assert multiply[less].measured[0] == pytest.approx(1, abs=0.05)
    assert multiply[less].holds
    assert add[less].measured[0] == pytest.approx(0, abs=0.15)
    assert not add[less].holds
    mean = "steps when both form over those of the two alone, added: geometric mean"
    assert add[mean].measured == pytest.approx(1, abs=0.02)
    assert multiply[mean].measured > 2
    alone = next(check for name, check in add.items() if "copying takes beyond" in name)
    assert alone.measured[0] == pytest.approx(np.log(15 / 3) / np.log(4), abs=0.05), "pairs less 1"
    falling = next(
        check
        for name, check in multiply.items()
        if name.startswith("exponent of pairs when both form, with")
    )
    assert [row[0] for row in falling.measured] == pytest.approx([2, 2, 2], abs=0.05)
    assert not falling.holds
    apart = next(check for name, check in multiply.items() if "half way" in name)
    assert apart.holds
    assert apart.measured == pytest.approx([1 / 0.9] * 3)


def test_an_exponent_that_falls_and_circuits_that_form_apart():
    def offset(part, pairs, tokens):
        return multiplying(part, pairs, 1) + tokens

    table = table_of(offset)
    checks = checks_of(table.assign(selecting=3 * table["copying"]))
    falling = [check for name, check in checks.items() if name.startswith("exponent of pairs when")]
    assert [check.holds for check in falling if "tokens" in check.name] == [True] * 3
    assert not next(check for name, check in checks.items() if "half way" in name).holds


def test_a_cell_with_a_run_that_did_not_emerge_is_not_compared():
    table = table_of(multiplying)
    late = (table["part"] == BOTH) & (table["pairs"] == 16) & (table["seed"] == 0)
    ratios = coupled.compared(
        table.assign(state=np.where(late, "censored", "reached"), censored=late)
    )
    assert {*ratios["pairs"]} == {4, 8}
    assert checks_of(table_of(multiplying, state="censored")) == {}


def test_the_best_rate_has_the_most_seeds_that_emerge_and_then_the_earliest():
    fast = table_of(multiplying)
    slow = fast.assign(learning_rate=3e-4, plateau=2 * fast["plateau"])
    stuck = (fast["part"] == BOTH) & (fast["pairs"] == 16) & (fast["seed"] == 1)
    fast = fast.assign(state=np.where(stuck, "censored", "reached"), censored=stuck)
    best = coupled.at_best_rates(pd.concat([fast, slow], ignore_index=True))
    assert len(best) == len(fast)
    taken = best.groupby(coupled.CELL)["learning_rate"].agg(["min", "max"])
    assert (taken["min"] == taken["max"]).all()
    slower = best[(best["part"] == BOTH) & (best["pairs"] == 16)]
    assert {*slower["learning_rate"]} == {3e-4}
    assert (taken["max"] == 1e-3).sum() == len(taken) - 3


def test_circuits_are_half_way_where_they_are_not_held():
    step = np.arange(0, 1000, 100)
    for part, interventions in PARTS.items():
        config = (
            FIGURES["emergo/coupled"].presets["laptop"].base.replace(interventions=interventions)
        )
        rise = np.where(step >= 500, 0.8, 0.1)
        heads = np.stack([np.zeros(10), rise], -1)[:, None].repeat(
            2, 1
        )  # evaluations, layers, heads
        curves = {"step": step, "accuracy": np.where(step >= 600, 1.0, 0.02), "loss": 0.0 * step}
        run = coupled.Study.of(config, seeds=1).runs[0]
        result = Result.measured(run, curves | {"copying": heads, "selecting": heads}, None, "cpu")
        flat = dict.fromkeys(("copying", "selecting"), 0 * heads + 0.5)
        never = coupled.circuit_times(Result.measured(run, curves | flat, None, "cpu"))
        assert all(map(math.isnan, never.values())), "what does not rise has not formed"
        times = coupled.circuit_times(result)
        assert coupled.part_of(result) == part
        assert math.isnan(times["copying"]) == (part == SELECTING)
        assert math.isnan(times["selecting"]) == (part == NEITHER)
        assert all(400 < time <= 500 for time in times.values() if not math.isnan(time))
        row = coupled.run_table([result]).iloc[0]
        assert 500 < row["early"] <= row["plateau"] <= 600


def test_all_parts_share_a_program_for_each_number_of_pairs():
    settings = FIGURES["emergo/coupled"].presets["paper"]
    studies = settings.studies()
    assert list(studies)[:4] == [f"{part}, 8 pairs" for part in PARTS]
    given = [study.base.interventions for study in studies.values()]
    assert {tuple((type(i), i.tap, i.head) for i in each) for each in given} == {
        tuple((type(i), i.tap, i.head) for i in PARTS[BOTH])
    }
