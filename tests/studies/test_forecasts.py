"""Forecasts of runs in training."""

import numpy as np
import pytest

from emergo.engine import Progress, Run
from emergo.studies import Runs
from emergo.studies._claims import _FORECAST
from emergo.studies._forecasts import Goal, RunForecasts, Told, described_goal, forecast_run, goal_of
from emergo.studies._reader import checker
from emergo.studies._status import soonest

from .tiny import tiny

STEP = np.arange(0, 2001, 25)


def curves_until(step: int) -> dict[str, np.ndarray]:
    """Attention that diverges at step 3000, of a run with a flat loss."""
    from scipy.special import erfinv

    kept = STEP[step >= STEP]
    attention = 0.01 * np.exp(erfinv(kept / 3000) ** 2)
    return {"step": kept, "loss": np.full(len(kept), 0.5), "attention": attention.reshape(-1, 1, 1)}


def run(**changes) -> Run:
    return tiny(seeds=1, **changes).runs[0]


def test_a_run_is_forecast_by_its_own_threshold_and_from_probes_if_its_task_says_so(monkeypatch):
    found = forecast_run(run(), curves_until(2000))
    assert found is not None
    assert (found.state, found.threshold, found.signal) == ("forecast", 0.02, "attention_0_0")
    monkeypatch.setattr(type(run().config.task), "forecast_probes", False)
    without = forecast_run(run(), curves_until(2000))
    assert without is not None
    assert without.state == "no signal"
    assert forecast_run(run(threshold=None), curves_until(2000)) is None


def test_the_goal_of_a_described_run_is_that_of_the_run():
    config = run().config
    goal = goal_of(config.task, config.threshold)
    assert goal == described_goal(config.describe()) == Goal("loss", 0.02, "below", True)
    assert "no threshold" in described_goal(config.describe() | {"threshold": None})
    assert "mine:Own is not one of emergo's" in described_goal({"task": {"type": "mine:Own"}, "threshold": 0.1})
    assert "does not say what task" in described_goal({"task": None, "threshold": 0.1})


def test_what_others_are_told_has_the_form_of_a_claim():
    forecast = forecast_run(run(), curves_until(2000))
    assert forecast is not None
    told = Told(2000, forecast).to_json()
    checker(_FORECAST)(told, "forecast")
    assert (told["state"], told["words"]) == ("forecast", str(forecast))
    assert len(told["curve"][0]) == len(told["curve"][1]) == 40
    assert told["curve"][0][-1] == 2000


def test_a_run_is_looked_at_again_when_it_has_got_further():
    one, looks = run(), []

    def curves(asked: Run):
        looks.append(asked)
        return curves_until(step)

    forecasts = RunForecasts()
    for step, expected in ((1000, 1), (1025, 1), (1050, 2), (2000, 3), (2000, 3)):
        told = forecasts.update(Progress(1, 0, 0, [(one, step, 0.5)], step, 1.0, None, 1, curves))
        assert len(looks) == expected
    assert told[one.identity].words.startswith("~")
    assert forecasts.update(Progress(1, 1, 0, [], 2000, 1.0, None, 1)) == {}


def test_of_many_runs_a_few_are_looked_at_a_second_in_turn():
    many, looks = [Run(run().config, seed) for seed in range(100)], []

    def curves(asked: Run):
        looks.append(asked.seed)
        return curves_until(1000)

    forecasts = RunForecasts()
    for chunk in range(501):  # of a tenth of a second
        running = [(one, 1000 + chunk, 0.5) for one in many]
        forecasts.update(Progress(100, 0, 0, running, 1000, 0.1 * chunk, None, 1, curves))
    assert len(looks) == pytest.approx(10 + 5 * 50, abs=1)
    counts = [looks.count(seed) for seed in range(100)]
    assert (min(counts), max(counts)) == (2, 3)


def test_of_several_forecasts_the_soonest_is_shown():
    assert soonest([], 1) == ""
    assert soonest([("no signal", None)], 1) == "no signal"
    assert soonest([("~5,000", 5000.0)], 1) == "~5,000"
    assert soonest([("~5,000", 5000.0), ("~900", 900.0), ("no signal", None)], 3) == "2 of 3, first ~900"


def test_finished_runs_say_when_they_emerged():
    runs = tiny(seeds=2, steps=200, threshold=0.2).run()
    assert isinstance(runs, Runs)
    assert [found.state for found in runs.forecast()] == [{"reached": "emerged"}.get(r.state, "no signal") for r in runs]
