"""Initial scale or rounding: differences between heads, on made-up curves."""

import numpy as np
import pandas as pd
import pytest

from emergo.papers.experiments import rounding
from emergo.papers.yuksel2026._chains import ChainRuns

from ..by_hand import STEPS, STUDY, measured, result

SCALES = np.array([1e-3, 1e-6, 1e-9, 1e-12])
SMALLEST = STUDY.replace(model__scale=1e-12).runs[0]
STEADY = -30 + STEPS / 40
FALLING = -30 + 0.8 * np.sqrt(STEPS)


def grown(log, run=STUDY.runs[0]):
    """Make a run whose heads differ by exp(log), up to 0.1."""
    shares = np.full((len(STEPS), 3, 3), 0.3)
    shares[:, 0, 0] += np.exp(np.minimum(log, np.log(0.1)))
    return result(run, np.ones(len(STEPS)), shares)


def change(log):
    return rounding.growth_change(measured(grown(log)))


def test_growth_of_differences():
    assert change(STEADY)[0] == pytest.approx(1, abs=0.02)
    falling, expected = change(FALLING)
    assert falling == pytest.approx(expected, abs=0.03)
    assert expected < 0.75
    assert np.isnan(change(np.full(len(STEPS), -30.0))).all()


def test_heads_that_merge_and_heads_that_are_always_identical():
    shares = np.full((len(STEPS), 3, 3), 0.2)
    merging = shares.copy()
    merging[:100, 0, 0] = 0.6
    zero = STUDY.replace(model__scale=0.0).runs[0]
    for run, attention, expected in (
        (zero, shares, (True, False, 0.0)),
        (STUDY.runs[0], merging, (False, True, 1e-9)),
    ):
        row = rounding.row_of(measured(result(run, np.ones(len(STEPS)), attention)))
        assert (row["identical"], row["merged"], row["scale"]) == expected
        assert np.isnan(row["second"])


def table_of(fp32, fp64):
    """Make a table of second stages by scale; scale 0 lacks it."""
    rows = []
    for precision, times in (("fp32", fp32), ("fp64", fp64)):
        for scale, time in zip([*SCALES, 0.0], [*times, np.nan], strict=True):
            row = {"precision": precision, "scale": scale, "second": time}
            rows.append(row | {"identical": scale == 0})
    return pd.DataFrame(rows)


def test_checks_hold_for_a_logarithmic_second_stage():
    times = 100 - 30 * np.log10(SCALES)
    table = table_of(times * [1, 1, 0.8, 0.7], times)
    checks = [*rounding.rounding_checks(table, ChainRuns([grown(FALLING, SMALLEST)]))]
    assert [check.holds for check in checks] == [True] * 4
    assert checks[2].measured == pytest.approx({"1e-09": 0.8, "1e-12": 0.7})


def test_checks_can_fail():
    times = np.array([100.0, 500.0, 90.0, 400.0])
    table = table_of(times, times).assign(identical=False)
    checks = rounding.rounding_checks(table, ChainRuns([grown(STEADY, SMALLEST)]))
    assert not any(check.holds for check in checks)


def test_a_missing_second_stage_makes_the_mean_nan():
    stage = rounding.second_stage(table_of([1, 2, 3, np.nan], [1, 2, 3, 4]), "fp32")
    assert stage.index.tolist() == [*SCALES, 0.0]
    assert stage.isna().tolist() == [False, False, False, True, True]
