"""Forecasts of emergo's own runs."""

import json

import numpy as np
import pytest

import emergo as em
from emergo.forecasting import RunForecasts, described_goal
from emergo.training import Progress, Result, Run

from ..study.tiny import tiny

STEP = np.arange(0, 2001, 25)


def curves_until(step: int) -> dict[str, np.ndarray]:
    """Curves of a run whose loss falls by a factor of 100 around step 2100."""
    kept = STEP[step >= STEP]
    loss = 0.5 * np.exp(-4.6 / (1 + np.exp((2100 - kept) / 250)))
    attention = np.full((len(kept), 1, 1), 0.01)
    return {"step": kept, "loss": loss, "attention": attention}


def one_run(**changes) -> Run:
    return tiny(seeds=1, **changes).runs[0]


def result(run: Run) -> Result:
    return Result.measured(run, curves_until(2000), None, "made up")


def progress(runs, step, curves, seconds=1.0) -> Progress:
    running = [(run, step, 0.5) for run in runs]
    return Progress(len(runs), 0, 0, running, step, seconds, None, 1, curves)


def test_runs_are_forecast_by_the_threshold_of_their_task():
    (found,) = em.forecast([result(one_run()), result(one_run(threshold=None))])
    assert (found.state, found.threshold, found.metric) == ("forecast", 0.02, "loss")
    with pytest.raises(em.InputError, match="by the threshold of their task"):
        em.forecast([], below=0.1)  # pyright: ignore


def test_finished_runs_have_emerged():
    runs = tiny(seeds=2, steps=200, threshold=0.2).run()
    states = ["emerged" if run.state == "reached" else "no signal" for run in runs]
    assert [found.state for found in em.forecast(runs)] == states


def test_the_goal_of_a_description():
    config = one_run().config.describe()
    assert described_goal(config) == ("loss", 0.02, "below")
    for other in ({"threshold": None}, {"task": {"type": "mine:Own"}}):
        assert "nothing tells when" in described_goal(config | other)
    assert "does not say what task" in described_goal(config | {"task": None})


def test_a_run_is_forecast_again_after_progress():
    run = one_run()
    looks = []

    def curves(asked: Run):
        looks.append(asked)
        return curves_until(step)

    forecasts = RunForecasts()
    for step, expected in ((1000, 1), (1025, 1), (1050, 2), (2000, 3), (2000, 3)):
        notes = forecasts.update(progress([run], step, curves))
        assert len(looks) == expected
    note = notes[run.identity]
    assert note.text.startswith("~")
    assert note.step == pytest.approx(2100, rel=0.1)
    data = json.loads(json.dumps(note.data, allow_nan=False))
    assert (data["state"], data["words"]) == ("forecast", note.text)
    assert [len(part) for part in data["curve"]] == [40, 40]
    assert data["curve"][0][-1] == 2000
    assert forecasts.update(progress([], 2000, curves)) == {}


def test_forecasts_of_many_runs_are_limited_in_rate():
    many = [Run(one_run().config, seed) for seed in range(100)]
    looks = []

    def curves(asked: Run):
        looks.append(asked.seed)
        return curves_until(1000)

    forecasts = RunForecasts()
    for chunk in range(501):  # a chunk takes 0.1 s
        forecasts.update(progress(many, 1000 + chunk, curves, 0.1 * chunk))
    assert len(looks) == pytest.approx(10 + 5 * 50, abs=1)
    counts = [looks.count(seed) for seed in range(100)]
    assert (min(counts), max(counts)) == (2, 3)
