"""The fitter is first shown to recover known laws from synthetic runs."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import linregress

from emergo.core.errors import InputError
from emergo.measure import Published, compare, fit_law, law_json

from .synthetic import censor, synthetic


@settings(max_examples=25)
@given(st.floats(0.01, 100), st.floats(0.1, 2), st.floats(-2, -0.1))
def test_a_noiseless_law_is_recovered_exactly(C, length, dim):
    law = fit_law(synthetic(0, noise=0.0, C=C, length=length, dim=dim), resamples=200)
    assert pytest.approx(C, rel=1e-6) == law.C
    assert law.exponents["length"] == pytest.approx(length, abs=1e-8)
    assert law.exponents["dim"] == pytest.approx(dim, abs=1e-8)


def test_one_exponent_equals_scipy():
    table = synthetic(1)
    law = fit_law(table, x=["dim"])
    theirs = linregress(np.log(table["dim"]), np.log(table["plateau"]))
    assert law.exponents["dim"] == pytest.approx(theirs.slope, rel=1e-10)
    assert pytest.approx(np.exp(theirs.intercept), rel=1e-10) == law.C
    assert law.r2 == pytest.approx(theirs.rvalue**2, rel=1e-10)


def test_a_law_that_misses_its_cells_shows_in_the_spread():
    table = synthetic(2, noise=0.1)
    law = fit_law(table)
    assert law.spread == pytest.approx(
        0.1, rel=0.2
    )  # standard deviations of 60 and 48 numbers: errors of 9% and 10%
    assert law.seed_spread == pytest.approx(0.1, rel=0.2)
    cells = table.assign(log=np.log(table["plateau"])).groupby(["length", "dim"])["log"]
    assert law.seed_spread == pytest.approx(np.sqrt(cells.var().mean()), rel=1e-10), (
        "cells of one size: the mean variance"
    )
    bent = fit_law(table.assign(plateau=table["plateau"] * np.where(table["dim"] == 32, 2, 1)))
    assert bent.seed_spread == pytest.approx(law.seed_spread, rel=1e-10)
    assert bent.spread > 3 * law.spread
    assert math.isnan(fit_law(synthetic(0, seeds=1)).seed_spread)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """200 data sets of five seeds per cell, 400 resamples each. 95% nominal; so few seeds leave it
    a few points short."""
    hits = []
    for seed in range(200):
        law = fit_law(synthetic(seed), resamples=400)
        hits.append(
            [
                law.ci95["length"][0] < 0.8 < law.ci95["length"][1],
                law.ci95["dim"][0] < 1.3 < law.ci95["dim"][1],
            ]
        )
    coverage = np.mean(hits, axis=0)
    assert (coverage > 0.89).all()
    assert (coverage < 0.99).all()


def test_dropping_censored_runs_is_biased_and_using_them_is_not():
    dropped = []
    used = []
    for seed in range(40):
        law = fit_law(censor(synthetic(seed), 0.3), resamples=400)
        assert law.censored > 0
        assert law.with_censored is not None
        dropped.append(law.exponents["dim"])
        used.append(law.with_censored.exponents["dim"])
    error = np.std(used) / np.sqrt(len(used))
    assert np.mean(dropped) < 1.3 - 0.03
    assert abs(np.mean(used) - 1.3) < 3 * error
    assert abs(np.mean(used) - 1.3) < 0.5 * abs(np.mean(dropped) - 1.3)


def test_a_law_says_what_censored_runs_change():
    law = fit_law(censor(synthetic(0), 0.3), resamples=400)
    assert law.with_censored is not None
    assert f"note: least squares leave out {law.censored} censored runs" in repr(law)
    assert law.with_censored.formula in repr(law)
    assert "note" not in repr(fit_law(synthetic(0), resamples=400))


def test_censored_intervals_cover_the_truth():
    hits = []
    for seed in range(60):
        beside = fit_law(censor(synthetic(seed), 0.3), resamples=800).with_censored
        assert beside is not None
        hits.append(beside.ci95["length"][0] < 0.8 < beside.ci95["length"][1])
    assert np.mean(hits) > 0.85


def test_tied_exponents():
    """Fig. 2 right: 2α = β = γ."""
    table = pd.DataFrame(
        [(T, d, p) for T in (64, 128) for d in (16, 64) for p in (0.0, 0.2)],
        columns=["length", "dim", "repeat"],
    )
    factor = np.sqrt(table["repeat"] ** 2 * table["dim"] + (1 - table["repeat"]) ** 2)
    table["plateau"] = 1.7 * (np.sqrt(table["dim"]) * table["length"] / factor) ** 1.1
    law = fit_law(table, x=["dim^0.5*length/repeat_factor"])
    assert pytest.approx(1.7, rel=1e-8) == law.C
    assert law.exponents == pytest.approx(
        {"dim": 0.55, "length": 1.1, "repeat_factor": -1.1}, rel=1e-8
    )
    np.testing.assert_allclose(law.predict(table), table["plateau"], rtol=1e-8)


def test_fixed_exponents_are_taken_as_given():
    law = fit_law(synthetic(0), x=["dim"], fixed={"length": 0.8})
    assert law.exponents["length"] == 0.8
    assert law.ci95["length"] == (0.8, 0.8)
    assert law.exponents["dim"] == pytest.approx(1.3, abs=0.1)


def test_seeds_are_resampled_within_cells_and_cells_where_there_is_one_run():
    assert fit_law(synthetic(0)).ci_kind == "seeds"
    assert fit_law(synthetic(0, seeds=1)).ci_kind == "cells"


@pytest.mark.parametrize("terms", [["dim", "length"], ["dim", "length/burst"]])
def test_a_few_doubled_cells_do_not_collapse_the_intervals(terms):
    """Cells are told apart by their columns, not by the terms, and runs are resampled only where
    every cell has several."""
    table = synthetic(0, seeds=1).assign(burst=1)
    table = pd.concat(
        [table, table.assign(length=table["length"] * 2, burst=2)[:6]], ignore_index=True
    )
    doubled = pd.concat([table, table[:1]], ignore_index=True)
    for rows in (table, doubled):
        law = fit_law(rows, x=terms)
        assert law.ci_kind == "cells"
        assert law.ci95["dim"][1] - law.ci95["dim"][0] > 0.1


def test_the_same_seed_gives_the_same_intervals():
    one, two, other = (fit_law(synthetic(0), seed=s).ci95 for s in (0, 0, 1))
    assert one == two
    assert one != other


def test_failed_runs_are_counted_and_left_out():
    table = synthetic(0).assign(state="reached")
    table.loc[3, "state"] = "failed"
    table.loc[5, "plateau"] = math.nan
    law = fit_law(table)
    assert (law.failed, law.runs) == (2, len(table) - 2)


def test_as_many_numbers_as_runs_leave_the_intervals_open():
    law = fit_law(pd.DataFrame({"dim": [2, 4], "plateau": [3, 6]}), x=["dim"])
    assert law.exponents["dim"] == pytest.approx(1)
    assert all(math.isnan(v) for pair in law.ci95.values() for v in pair)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"dim": [], "plateau": []}, {"x": ["dim"]}, "is empty"),
        ({"dim": [4, 4, 4], "plateau": [1, 2, 3]}, {"x": ["dim"]}, "'dim' is constant"),
        (
            {"dim": [4, 8], "length": [2, 3], "plateau": [1, 2]},
            {},
            "2 usable runs, fewer than the 3 numbers",
        ),
        ({"dim": [4], "plateau": [1]}, {"x": ["dim"]}, "1 usable run, fewer than the 2 numbers"),
        ({"dim": [2, 4, 8], "length": [2, 4, 8], "plateau": [1, 2, 3]}, {}, "vary together"),
        ({"dim": [2, 4, 8], "plateau": [1, 2, 3]}, {"x": []}, "no exponent to fit"),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3]},
            {"x": ["dim", "dim^2"]},
            "'dim' appears in more than one term",
        ),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3]},
            {"x": ["dim"], "fixed": {"dim": 1.0}},
            "more than one term",
        ),
        (
            {"dim": [2, 4, 8], "plateau": [1, -2, 3]},
            {"x": ["dim"]},
            "column 'plateau' must be positive",
        ),
        ({"dim": [2, 4, 8], "plateau": [5, 5, 5]}, {"x": ["dim"]}, "'plateau' is constant"),
        (
            {"dim": [2, 4, 8], "length": [2, 2, 3], "plateau": [1, 2, 3]},
            {"x": ["dim"], "fixed": {"length": math.nan}},
            "fixed exponent of 'length' must be a finite number below 1000 in size, got nan$",
        ),
        ({"dim": [2, 4, 8], "plateau": [1, 2, 3]}, {"x": ["dim^1e400"]}, "finite number"),
        ({"dim": [2, 4, 8], "plateau": [math.nan] * 3}, {"x": ["dim"]}, "no run with a 'plateau'"),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3]},
            {"x": ["dim"], "resamples": 3},
            "resamples must be at least",
        ),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3], "censored": [False, True, True]},
            {"x": ["dim"]},
            "without its censored runs",
        ),
    ],
)
def test_tables_that_cannot_be_fitted_are_named(table, options, message):
    with pytest.raises(InputError, match=message):
        fit_law(pd.DataFrame(table), **options)


@pytest.mark.usefixtures("unchecked")
def test_one_term_needs_no_list_and_a_law_needs_a_table():
    table: Any = {"dim": [2, 4, 8], "plateau": [12, 48, 192]}
    assert fit_law(pd.DataFrame(table), x="dim").exponents == pytest.approx({"dim": 2.0})
    with pytest.raises(
        InputError, match=r"a law is fitted to a table of pandas, such as runs\.table, got a dict"
    ):
        fit_law(table, x="dim")


@pytest.mark.parametrize("exponent", [math.nan, math.inf, -math.inf, 1e4])
def test_fixed_exponents_must_be_finite(exponent):
    with pytest.raises(
        InputError, match=r"^the fixed exponent of 'length' must be a finite number .*got [^\n]*$"
    ):
        fit_law(synthetic(0), x=["dim"], fixed={"length": exponent})


def test_a_law_as_json_has_both_fits():
    law = law_json(fit_law(censor(synthetic(0), 0.2).assign(state="reached"), resamples=400))
    assert law["method"] == "least squares"
    assert law["with_censored"]["method"] == "censored maximum likelihood"
    assert law["with_censored"]["runs"] == law["runs"] + law["censored"]
    exact = law_json(fit_law(pd.DataFrame({"dim": [2, 4], "plateau": [3, 6]}), x=["dim"]))
    assert exact["ci95"]["dim"] == [None, None]
    assert "with_censored" not in exact


@pytest.mark.parametrize(
    ("printed", "agrees", "word"),
    [
        (Published("right", 2.0, {"length": 0.8, "dim": 1.3}), True, "within"),
        (Published("steeper", 2.0, {"length": 1.2, "dim": 1.3}), False, "exponent of length"),
        (Published("twice", 4.0, {"length": 0.8, "dim": 1.3}), False, "level 0.5"),
    ],
)
def test_agreement_with_a_published_law(printed, agrees, word):
    table = synthetic(0, noise=0.05)
    agreement = compare(fit_law(table), table, printed)
    assert agreement.agrees is agrees
    assert word in agreement.why


def test_a_published_law_at_some_values():
    assert Published("a", 2.0, {"length": 0.5, "dim": 2.0}).at(length=16, dim=3) == pytest.approx(
        72
    )
