"""What would have been said of a finished run."""

import dataclasses
import json

import pandas as pd
import pytest

import emergo as em
from emergo.view._look_back import look_back


@pytest.fixture
def runs(catalog):
    (only,) = catalog.sets().values()
    return only


def test_each_moment_is_what_emergo_forecast_says_of_the_log_so_far(runs):
    told = look_back(runs, runs.runs[1], moments=12)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    moment = next(moment for moment in told["moments"] if moment["state"] == "forecast")
    table = pd.DataFrame(runs.curves.read(runs.runs[1]))
    known = em.forecast(table[table["step"] <= moment["at"]], below=told["threshold"], probes=told["probes"])
    assert (moment["words"], moment["why"], moment["step"]) == (str(known), known.why, known.step)
    assert moment["intervals"]["80%"] == list(known.intervals[80])


def test_it_ends_where_the_run_emerged(runs):
    told = look_back(runs, runs.runs[1])
    assert [moment["state"] for moment in told["moments"]].index("emerged") == len(told["moments"]) - 1
    assert told["came"] == pytest.approx(runs.columns["plateau"][1])
    at = [moment["at"] for moment in told["moments"]]
    assert at == sorted(set(at))
    failed = look_back(runs, runs.runs[runs.columns["state"].index("failed")])
    assert (failed["came"], failed["moments"][-1]["why"]) == (None, "loss is not finite any more")


def test_where_there_is_none_it_says_why(runs):
    untold = dataclasses.replace(runs, config=lambda identity: {})
    assert look_back(untold, runs.runs[1]) == {"moments": [], "why": "the folder does not say what task this run has"}
    recall = dataclasses.replace(runs, config=lambda identity: {"task": {"type": "Recall"}, "threshold": 0.9})
    assert look_back(recall, runs.runs[1])["why"] == "no curve of accuracy was kept of this run"
    with pytest.raises(em.InputError, match="no run"):
        look_back(runs, "../../etc")


def test_it_is_made_once(catalog, runs, monkeypatch):
    first = catalog.look_back("made up", runs.runs[1])
    monkeypatch.setattr("emergo.view._catalog.look_back", lambda *_: pytest.fail("made again"))
    assert catalog.look_back("made up", runs.runs[1]) is first
