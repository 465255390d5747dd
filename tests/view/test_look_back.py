"""Test forecasts of finished runs at earlier steps."""

import dataclasses
import json

import pandas as pd
import pytest

import emergo as em
from emergo.view._answers import look_back


@pytest.fixture
def runs(catalog):
    return catalog.get("made up")


def test_a_forecast_equals_em_forecast_on_the_log_so_far(runs):
    answer = look_back(runs, runs.runs[1], moments=12)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    moment = next(moment for moment in answer["moments"] if moment["state"] == "forecast")
    table = pd.DataFrame(runs.curves.read(runs.runs[1]))
    known = em.forecast(table[table["step"] <= moment["at"]], below=answer["threshold"])
    assert (moment["words"], moment["why"], moment["step"]) == (str(known), known.why, known.step)
    assert moment["intervals"]["80%"] == list(known.intervals[80])


def test_forecasts_end_where_the_run_emerged(runs):
    answer = look_back(runs, runs.runs[1])
    states = [moment["state"] for moment in answer["moments"]]
    assert states.index("emerged") == len(states) - 1
    assert answer["came"] == pytest.approx(runs.columns["plateau"][1])
    at = [moment["at"] for moment in answer["moments"]]
    assert at == sorted(set(at))
    failed = look_back(runs, runs.runs[runs.columns["state"].index("failed")])
    assert (failed["came"], failed["moments"][-1]["why"]) == (None, "loss is not finite any more")


def test_a_run_without_forecasts_has_a_reason(runs):
    unknown_task = dataclasses.replace(runs, config=lambda identity: {})
    assert look_back(unknown_task, runs.runs[1]) == {
        "moments": [],
        "why": "the folder does not say what task this run has",
    }
    config = {"task": {"type": "Recall"}, "threshold": 0.9}
    recall = dataclasses.replace(runs, config=lambda identity: config)
    assert "curve of accuracy was not kept" in look_back(recall, runs.runs[1])["why"]
    with pytest.raises(em.InputError, match="no run"):
        look_back(runs, "../../etc")


def test_the_catalog_caches_forecasts(catalog, runs):
    first = catalog.look_back("made up", runs.runs[1])
    assert catalog.look_back("made up", runs.runs[1]) is first
