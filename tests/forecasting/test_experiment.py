"""The experiment emergo/forecast: followed runs, measures of quality, and the shipped table."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo.forecasting._table import FILE, fit_table
from emergo.forecasting.experiment._judge import (
    QUANTILES,
    false_alarms,
    lead,
    longer_than,
    summarise,
)
from emergo.forecasting.experiment._moments import (
    CUTS,
    SIZES,
    TORCH,
    changes,
    fit_moments,
    follow_table,
)
from emergo.forecasting.experiment.figure import PYTORCH, checks_of, recorded_runs
from emergo.measure import read_table
from emergo.papers import RunSource
from emergo.store import read_records
from emergo.training import Ramp, Switch

FORECAST = (700, 800, 900, 1000, 1200, 1500, 4000)
SILENT = [np.nan] * 7


def moment(run="a", now=500.0, plateau=1000.0, censored=False, forecast=FORECAST):
    about = {"run": run, "cell": run[0], "group": SIZES, "level": "2", "now": now}
    about |= {"plateau": plateau, "censored": censored}
    about |= {"again": 2 * now, "law": 900.0, "seeds": np.nan}
    return about | dict(zip(QUANTILES, forecast, strict=True))


def test_summary_of_moments():
    rows = [
        moment(),
        moment(now=250.0, forecast=SILENT),
        moment("b", plateau=1600.0),
        moment("c", plateau=3000.0, censored=True),
        moment("d", plateau=1400.0, censored=True),
        moment("e", forecast=SILENT),
    ]
    (row,) = summarise(pd.DataFrame(rows)).to_dict("records")
    assert (row["runs"], row["moments"], row["told"], row["negatives"]) == (5, 4, 2, 2)
    assert (row["held80"], row["held95"]) == (0.5, 1.0)
    assert row["false_alarms"] == 0.5  # the interval of d ends after its last step
    assert row["lead"] == 0.5  # a: 0.5, b: 0.69, e: no forecast
    names = [check.name for check in checks_of(pd.DataFrame([row]))]
    assert len(names) == 3
    assert not any("nan" in name for name in names)


def test_narrow_intervals_lead_less_and_raise_fewer_alarms():
    ended = pd.DataFrame([moment()])
    negative = pd.DataFrame([moment("c", plateau=3000.0, censored=True)])
    for widest, expected in ((2.0, (0.5, 1.0)), (1.5, (0.0, 0.0))):
        assert (lead(ended, widest), false_alarms(negative, widest)) == expected


def test_law_is_conditioned_on_the_elapsed_time():
    assert longer_than(1.0, np.log(1000), 0.2) == pytest.approx(1000)
    expected = 1000 * np.exp(0.2 * 0.6745)
    assert longer_than(1000.0, np.log(1000), 0.2) == pytest.approx(expected, rel=1e-3)


def test_runs_with_a_changing_distribution_are_detected():
    changing = [Switch(0.4, 0.0, at=500), Ramp(1.0, 0.0, begin=500, end=600)]
    constant = [Switch(0.4, 0.0, at=2000), Switch(0.4, 0.0, at=0)]
    constant += [Ramp(1.0, 0.0, begin=1500, end=1600)]
    assert all(changes(schedule, until=1000.0) for schedule in changing)
    assert not any(changes(schedule, until=1000.0) for schedule in constant)


def test_runs_are_followed_until_they_emerge():
    runs = follow_table(read_table(PYTORCH), TORCH, 0.1)
    assert len(runs) == 18
    assert sum(run.censored for run in runs) == 6
    emerged = next(run for run in runs if not run.censored)
    counts = [emerged.evaluations(cut) for cut in CUTS]
    assert counts[0] is not None
    assert counts[-1] is None
    moments = fit_moments(runs)
    assert set(moments["kind"]) >= {"attention", "entropy"}
    assert np.isfinite(moments["left"]).all()


@pytest.mark.slow
def test_shipped_table_is_reproduced_from_the_records():
    runs = recorded_runs(RunSource("emergo/forecast", records=read_records()))
    runs = [run for run in runs if run.group == SIZES]
    shipped = json.loads(FILE.read_text())
    assert shipped["runs"] == len(runs)
    now = fit_table(fit_moments(runs))
    for kind, table in shipped["kinds"].items():
        assert now[kind]["coefficients"] == pytest.approx(table["coefficients"], abs=2e-4)
        counts = [entry and entry["runs"] for entry in table["ranges"]]
        assert [entry and entry["runs"] for entry in now[kind]["ranges"]] == counts
