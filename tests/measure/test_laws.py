"""Fits of synthetic runs with a known law, invalid input, and comparison with published laws."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_the_spread_shows_that_a_law_does_not_describe_its_cells():
    table = synthetic(2, noise=0.1)
    law = fit_law(table)
    # Standard deviations of 60 and 48 numbers have errors of 9% and 10%.
    assert law.spread == pytest.approx(0.1, rel=0.2)
    assert law.seed_spread == pytest.approx(0.1, rel=0.2)
    cells = table.assign(log=np.log(table["plateau"])).groupby(["length", "dim"])["log"]
    assert law.seed_spread == pytest.approx(np.sqrt(cells.var().mean()), rel=1e-10)
    bent = fit_law(table.assign(plateau=table["plateau"] * np.where(table["dim"] == 32, 2, 1)))
    assert bent.seed_spread == pytest.approx(law.seed_spread, rel=1e-10)
    assert bent.spread > 3 * law.spread
    assert math.isnan(fit_law(synthetic(0, seeds=1)).seed_spread)


def covered(law, name, truth):
    low, high = law.ci95[name]
    return low < truth < high


def test_intervals_have_their_nominal_coverage():
    """200 data sets with five seeds per cell. So few seeds cost a few of the 95 percent."""
    laws = [fit_law(synthetic(seed), resamples=400) for seed in range(200)]
    for name, truth in (("length", 0.8), ("dim", 1.3)):
        assert 0.89 < np.mean([covered(law, name, truth) for law in laws]) < 0.99


def test_leaving_out_censored_runs_is_biased_and_using_them_is_not():
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


def test_repr_shows_the_fit_with_censored_runs():
    law = fit_law(censor(synthetic(0), 0.3), resamples=400)
    assert law.with_censored is not None
    first, *intervals, note, second, _, _, _ = repr(law).splitlines()
    assert note.startswith(f"note: least squares leave out {law.censored} censored runs")
    assert law.best is law.with_censored
    assert first.startswith(law.best.formula), "the fit that uses censored runs comes first"
    assert second.startswith(law.formula)
    assert [line.split()[0] for line in intervals] == ["C", "dim", "length"]
    assert "note" not in repr(fit_law(synthetic(0), resamples=400))


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


def test_cells_are_resampled_if_they_spread_more_than_seeds():
    """In the first table, the means of all cells lie on the law."""
    table = synthetic(0, noise=0.0)
    exact = table.assign(plateau=table["plateau"] * np.exp(0.1 * (table["seed"] - 2)))
    assert fit_law(exact).ci_kind == "seeds"
    bent = exact.assign(plateau=exact["plateau"] * np.where(exact["dim"] == 32, 1.3, 1))
    assert fit_law(bent).ci_kind == "cells"
    assert fit_law(synthetic(0, seeds=1)).ci_kind == "cells"


def test_intervals_hold_if_cells_miss_the_law():
    """Over seeds alone they would cover 30% to 60% here (benchmarks/coverage.py)."""
    laws = []
    for seed in range(100):
        off = np.random.default_rng(1000 + seed).normal(size=12).repeat(5)
        table = synthetic(seed, noise=0.1)
        laws.append(
            fit_law(table.assign(plateau=table["plateau"] * np.exp(0.1 * off)), resamples=200)
        )
    for name, truth in (("length", 0.8), ("dim", 1.3)):
        assert np.mean([covered(law, name, truth) for law in laws]) > 0.88


@pytest.mark.parametrize("terms", [["dim", "length"], ["dim", "length/burst"]])
def test_a_few_doubled_cells_do_not_collapse_the_intervals(terms):
    """Cells are defined by their columns, not by the terms. Runs are resampled only if every cell
    has several."""
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


def test_an_exact_fit_has_no_intervals():
    law = fit_law(pd.DataFrame({"dim": [2, 4], "plateau": [3, 6]}), x=["dim"])
    assert law.exponents["dim"] == pytest.approx(1)
    assert all(math.isnan(v) for pair in law.ci95.values() for v in pair)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"dim": [], "plateau": []}, {"x": ["dim"]}, "no run with a 'plateau'"),
        ({"dim": [4, 4, 4], "plateau": [1, 2, 3]}, {"x": ["dim"]}, "'dim' is constant"),
        (
            {"dim": [4, 8], "length": [2, 3], "plateau": [1, 2]},
            {},
            "2, fewer than the 3 numbers",
        ),
        ({"dim": [2, 4, 8], "length": [2, 4, 8], "plateau": [1, 2, 3]}, {}, "vary together"),
        ({"dim": [2, 4, 8], "plateau": [1, 2, 3]}, {"x": []}, "no exponent to fit"),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3]},
            {"x": ["dim", "dim^2"]},
            "'dim' appears in more than one term",
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
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3]},
            {"x": ["dim"], "resamples": 3},
            "resamples must be at least",
        ),
        (
            {"dim": [2, 4, 8], "plateau": [1, 2, 3], "censored": [False, True, True]},
            {"x": ["dim"]},
            "that are not censored: 1",
        ),
    ],
)
def test_tables_that_cannot_be_fitted_are_named(table, options, message):
    with pytest.raises(InputError, match=message):
        fit_law(pd.DataFrame(table), **options)


def test_one_term_needs_no_list():
    table = pd.DataFrame({"dim": [2, 4, 8], "plateau": [12, 48, 192]})
    assert fit_law(table, x="dim").exponents == pytest.approx({"dim": 2.0})


def test_json_has_the_terms_in_order():
    table = synthetic(0).assign(burst=1.0)
    table.loc[table.index % 2 == 0, "burst"] = 2.0
    table["size"] = 3.0 + table["seed"]
    law = fit_law(table, x=["length^2/burst", "dim"], fixed={"size": 0.5}, resamples=400)
    rows = law_json(law)["terms"]
    assert [row["term"] for row in rows] == ["length^2/burst", "dim", "size"]
    assert [row["fixed"] for row in rows] == [False, False, True]
    assert 2 * rows[0]["exponent"] == pytest.approx(law.exponents["length"])
    assert -rows[0]["exponent"] == pytest.approx(law.exponents["burst"])
    np.testing.assert_allclose(np.multiply(2, rows[0]["ci95"]), law.ci95["length"])
    assert rows[1]["ci95"] == list(law.ci95["dim"])
    assert rows[2] == {"term": "size", "exponent": 0.5, "ci95": [0.5, 0.5], "fixed": True}


def test_json_has_both_fits():
    law = law_json(fit_law(censor(synthetic(0), 0.2).assign(state="reached"), resamples=400))
    assert law["method"] == "least squares"
    assert law["with_censored"]["method"] == "censored maximum likelihood"
    assert law["with_censored"]["runs"] == law["runs"] + law["censored"]
    exact = law_json(fit_law(pd.DataFrame({"dim": [2, 4], "plateau": [3, 6]}), x=["dim"]))
    assert exact["ci95"]["dim"] == [None, None]
    assert "with_censored" not in exact


@pytest.mark.parametrize(
    ("printed", "noise", "verdict", "word"),
    [
        (Published("right", 2.0, {"length": 0.8, "dim": 1.3}), 0.05, "agrees", "within"),
        (Published("steep", 2.0, {"length": 1.2, "dim": 1.3}), 0.05, "disagrees", "exponent of le"),
        (Published("twice", 4.0, {"length": 0.8, "dim": 1.3}), 0.05, "disagrees", "level 0.50 ["),
        (Published("right", 2.0, {"length": 0.8, "dim": 1.3}), 1.0, "undecided", "not wholly wi"),
    ],
)
def test_agreement_with_a_published_law(printed, noise, verdict, word):
    table = synthetic(0, noise=noise)
    agreement = compare(fit_law(table), table, printed)
    assert agreement.verdict == verdict
    assert word in agreement.why


@pytest.mark.parametrize("odd", [1e308, 1e-308])
def test_a_law_of_absurd_numbers_is_a_law(odd):
    """The level is not determined; its interval would exceed the largest number."""
    table = pd.DataFrame({"dim": [1.0, 2, 3, 4], "plateau": [1.0, odd, 4, 4], "state": "reached"})
    law = law_json(fit_law(table.assign(censored=False), "plateau", ["dim"], resamples=100))
    assert np.isfinite(law["ci95"]["C"]).all()
    json.dumps(law, allow_nan=False)
