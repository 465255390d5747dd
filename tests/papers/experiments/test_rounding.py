"""Initial scale or rounding: what tells heads apart, on curves made by hand."""

import numpy as np
import pandas as pd
import pytest

from emergo.papers.experiments import rounding
from emergo.papers.yuksel2026._chains import ChainRuns

from ..by_hand import STEPS, STUDY, measured, result


def grown(log, run=STUDY.runs[0]):
    """A run whose heads differ by the exponential of `log`, until they differ by 0.1."""
    shares = np.full((len(STEPS), 3, 3), 0.3)
    shares[:, 0, 0] += np.exp(np.minimum(log, np.log(0.1)))
    return result(run, np.ones(len(STEPS)), shares)


def change(log):
    return rounding.growth_change(measured(grown(log)))


def test_the_growth_of_differences():
    steady, _ = change(-30 + STEPS / 40)
    assert abs(steady - 1) < 0.02
    falling, expected = change(-30 + 0.8 * np.sqrt(STEPS))
    assert abs(falling - expected) < 0.03
    assert expected < 0.75
    assert np.isnan(change(np.full(len(STEPS), -30.0))).all()  # never came apart


def test_rows_tell_heads_that_became_one_from_heads_that_always_were():
    shares = np.full((len(STEPS), 3, 3), 0.2)
    alike = result(STUDY.replace(model__scale=0.0).runs[0], np.ones(len(STEPS)), shares)
    merging = shares.copy()
    merging[:100, 0, 0] = 0.6
    (one, other) = (
        rounding.row_of(measured(r)) for r in (alike, result(STUDY.runs[0], STEPS / 1.0, merging))
    )
    assert (one["identical"], one["merged"], one["scale"]) == (True, False, 0.0)
    assert (other["identical"], other["merged"], other["scale"]) == (False, True, 1e-9)
    assert np.isnan(one["second"])


SCALES = np.array([1e-3, 1e-6, 1e-9, 1e-12])


def table_of(fp32, fp64):
    """Second stages by scale, and scale 0 without one."""
    rows = []
    for precision, times in (("fp32", fp32), ("fp64", fp64)):
        for scale, time in zip([*SCALES, 0.0], [*times, np.nan], strict=True):
            rows.append(
                {
                    "method": "adamw",
                    "precision": precision,
                    "scale": scale,
                    "second": time,
                    "identical": scale == 0,
                }
            )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def falling():
    return ChainRuns([grown(-30 + 0.8 * np.sqrt(STEPS), STUDY.replace(model__scale=1e-12).runs[0])])


def test_checks_of_a_second_stage_that_is_logarithmic_in_the_scale(falling):
    times = 100 - 30 * np.log10(SCALES)
    early = times * [1, 1, 0.8, 0.7]
    assert [
        check.holds for check in rounding.rounding_checks("adamw", table_of(early, times), falling)
    ] == [True] * 4
    ratios = rounding.rounding_checks("adamw", table_of(early, times), falling)[2].measured
    assert ratios == pytest.approx({"1e-09": 0.8, "1e-12": 0.7})


def test_these_checks_can_fail():
    steady = ChainRuns([grown(-30 + STEPS / 40, STUDY.replace(model__scale=1e-12).runs[0])])
    times = np.array([100.0, 500.0, 90.0, 400.0])
    table = table_of(times, times).assign(identical=False)
    assert not any(check.holds for check in rounding.rounding_checks("adamw", table, steady))


def test_a_run_without_a_second_stage_leaves_no_mean():
    table = table_of([1, 2, 3, np.nan], [1, 2, 3, 4])
    stage = rounding.second_stage(table, "adamw", "fp32")
    assert stage.index.tolist() == [*SCALES, 0.0]
    assert stage.isna().tolist() == [False, False, False, True, True]


def test_every_scale_is_trained_in_both_precisions():
    settings = rounding.FIGURE.presets["laptop"]
    parts = {tuple(name.split()): study for name, study in settings.studies().items()}
    assert set(parts) == {
        (method, precision) for method in ("adamw", "sgd") for precision in ("fp32", "fp64")
    }
    for (method, precision), study in parts.items():
        assert {getattr(run.config.model, "scale", None) for run in study.runs} == set(
            settings.scales
        )
        assert {(run.config.optimizer.label, run.config.precision) for run in study.runs} == {
            (method, precision)
        }
