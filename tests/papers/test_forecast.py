"""emergo/forecast: which runs are followed, how they are judged, and that the table that ships is what the records give."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo.engine import Ramp, Switch
from emergo.measure import read_table
from emergo.measure._forecast_table import FILE, fit_table, table_data
from emergo.papers import RunSource
from emergo.papers.emergo._forecast_judge import QUANTILES, factor, false_alarms, lead, longer_than, summarise
from emergo.papers.emergo._forecast_moments import CUTS, SIZES, TORCH, _changes, fit_moments, follow_table
from emergo.papers.emergo.forecast import PYTORCH, checks_of, recorded_runs
from emergo.studies import read_records


def moment(run="a", now=500.0, plateau=1000.0, censored=False, said=(700, 800, 900, 1000, 1200, 1500, 4000)):
    about = {"run": run, "cell": run[0], "group": SIZES, "level": "2", "now": now, "plateau": plateau, "censored": censored}
    baselines = {"again": 2 * now, "law": 900.0, "seeds": np.nan}
    return about | baselines | dict(zip(QUANTILES, said, strict=True))


def test_errors_are_factors_either_way():
    assert factor(pd.Series([500.0, 2000.0]), pd.Series([1000.0, 1000.0])) == pytest.approx(2)
    assert np.isnan(factor(pd.Series([np.nan]), pd.Series([1000.0])))


def test_a_summary_counts_what_was_said_of_whom():
    silent = [np.nan] * 7
    rows = [moment(), moment(now=250.0, said=silent), moment("b", plateau=1600.0), moment("c", plateau=3000.0, censored=True)]
    rows += [moment("d", plateau=1400.0, censored=True), moment("e", said=silent)]
    (row,) = summarise(pd.DataFrame(rows)).to_dict("records")
    assert (row["runs"], row["moments"], row["told"], row["negatives"]) == (5, 4, 2, 2)
    assert row["held80"] == 0.5
    assert row["held95"] == 1.0
    assert row["false_alarms"] == 0.5  # of d the interval ends after its last step
    assert row["lead"] == 0.5  # 0.5 of a, 0.69 of b, none of e
    names = [check.name for check in checks_of(pd.DataFrame([row]))]
    assert len(names) == 3
    assert not any("nan" in name for name in names)


def test_stricter_intervals_lead_less_and_raise_fewer_alarms():
    rows = pd.DataFrame([moment(), moment("c", plateau=3000.0, censored=True)])
    ended, open_ended = rows[~rows["censored"]], rows[rows["censored"]]
    assert (lead(ended, 2.0), false_alarms(open_ended, 2.0)) == (0.5, 1.0)
    assert (lead(ended, 1.5), false_alarms(open_ended, 1.5)) == (0.0, 0.0)


def test_the_law_knows_that_the_plateau_is_not_over():
    assert longer_than(1.0, np.log(1000), 0.2) == pytest.approx(1000)
    assert longer_than(1000.0, np.log(1000), 0.2) == pytest.approx(1000 * np.exp(0.2 * 0.6745), rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "changes"),
    [
        (Switch(0.4, 0.0, at=500), True),
        (Switch(0.4, 0.0, at=2000), False),
        (Switch(0.4, 0.0, at=0), False),
        (Ramp(1.0, 0.0, begin=500, end=600), True),
        (Ramp(1.0, 0.0, begin=1500, end=1600), False),
    ],
)
def test_runs_whose_data_changes_on_the_way_are_left_out(schedule, changes):
    assert _changes(schedule, until=1000.0) is changes


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
def test_the_table_that_ships_is_what_the_records_give():
    runs = [run for run in recorded_runs(RunSource("emergo/forecast", records=read_records())) if run.group == SIZES]
    shipped = json.loads(FILE.read_text())
    assert shipped["runs"] == len(runs)
    now = table_data(fit_table(fit_moments(runs)))
    for kind, table in shipped["kinds"].items():
        assert now[kind]["coefficients"] == pytest.approx(table["coefficients"], abs=2e-4)  # rounded to 1e-4
        assert [entry and entry["runs"] for entry in now[kind]["ranges"]] == [e and e["runs"] for e in table["ranges"]]
