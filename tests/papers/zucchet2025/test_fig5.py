"""Figures 5 and 16: speed-ups with intervals, and overfitting, on hand-made curves."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from emergo.papers.zucchet2025 import fig5_16_17 as fig5
from emergo.training import Result


def test_the_interval_of_a_gain_is_that_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    logs = {1.0: rng.normal(3, 0.1, 4), 2.0: rng.normal(2, 0.1, 4)}
    rows = [
        {"part": "in_context", "amount": a, "seed": seed, "test": math.exp(x)}
        for a, xs in logs.items()
        for seed, x in enumerate(xs)
    ]
    table = pd.DataFrame(rows).assign(test_censored=False)
    found = fig5.speed_up(table, "in_context", "test")
    theirs = ttest_rel(logs[1.0], logs[2.0]).confidence_interval()
    assert found is not None
    gain, _ = found
    assert math.log(gain.high / gain.low) == pytest.approx(theirs.high - theirs.low, rel=1e-10)
    assert gain.low < math.exp(np.mean(logs[1.0]) - np.mean(logs[2.0])) < gain.high
    late = fig5.speed_up(table.assign(test_censored=table["amount"] == 2), "in_context", "test")
    assert late is not None
    assert math.isnan(late[0].high), "a bound has no interval"


def test_a_gain_needs_runs_without_repetition_and_grokking_runs_that_get_there():
    study = fig5.FIGURE_5.presets["laptop"]["in_context"].replace(seeds=1)

    def result(run, test, train):
        step = np.arange(0, 2001, 25)
        curves = {
            name: (step >= at).astype(float)
            for name, at in (("accuracy", test), ("accuracy_repeated", train))
        }
        return Result.measured(run, curves | {"step": step, "loss": 0.0 * step}, None, "cpu")

    runs = study.runs  # the hardest first, all of one size: bursts 1, 2, 3
    parts = {
        "in_context": [
            result(run, at, at / 3) for run, at in zip(runs, (1200, 400, 1500), strict=True)
        ]
    }
    table = fig5.times(parts)
    found = fig5.speed_up(table, "in_context", "test")
    assert found is not None
    gain, amount = found
    assert (gain.times, amount) == (pytest.approx(3, rel=0.1), 2.0)
    assert math.isnan(gain.low), "one seed"
    assert fig5.speed_up(table[table["amount"] > 1], "in_context", "test") is None
    assert fig5.speed_up(table, "across_samples", "test") is None
    assert [check.holds for check in fig5.overfitting(table, 3.0)] == [True, True]
    never, at_once = (fig5.times({"in_context": [result(runs[2], at, 400)]}) for at in (1e9, 400))
    assert [check.holds for check in fig5.overfitting(never, 3.0)] == [True, False]
    assert "at least" in fig5.overfitting(never, 3.0)[0].name
    assert [check.holds for check in fig5.overfitting(at_once, 3.0)] == [False, False]
    assert fig5.overfitting(table, 99.0) == []
