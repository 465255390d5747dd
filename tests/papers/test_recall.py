"""The emergence of recall, on hand-made curves."""

import math

import numpy as np
import pytest

from emergo.papers._panels import strongest
from emergo.papers._recall import PAPER, criteria, passed
from emergo.training import Result, Run


def test_a_lucky_last_evaluation_is_no_emergence_but_the_end_of_a_run_that_has_learned_is():
    run = Run(PAPER, 0)
    step = np.arange(0, 500, 100)
    mark = 0.5

    def passing(accuracy, failed=None):
        curves = {"step": step, "accuracy": np.array(accuracy), "loss": np.zeros(5)}
        return passed(Result.measured(run, curves, failed, "cpu"), curves["accuracy"], mark)

    assert passing([0, 0, 0, 0, 0.6]) == (400.0, 400.0, math.inf, "censored")
    assert passing([0, 0, 0, 0, 0.95]).state == "reached"
    assert passing([0, 0, 0, 0, 0.0], 350).state == "failed"
    assert passing([0, 0.6, 0.6, 0.6, 0.6], 450).time == pytest.approx(100 * 0.5 / 0.6)


def test_guessing_a_value_of_the_context_is_no_recall():
    step = np.arange(0, 1000, 100)
    accuracy = np.where(step >= 200, 1 / 8, 0.0) + np.where(step >= 600, 0.5, 0.0)
    result = Result.measured(
        Run(PAPER.replace(task__pairs=8), 0),
        {"step": step, "accuracy": accuracy, "loss": 1 - accuracy},
        None,
        "cpu",
    )
    times = criteria(result)
    assert 100 < times["plain"].time <= 200
    assert 500 < times["corrected"].time <= 600


def test_the_papers_criterion_counts_a_lucky_evaluation():
    step = np.arange(0, 1000, 100)
    accuracy = np.where((step == 200) | (step >= 600), 0.5, 0.0)
    curves = {"step": step, "accuracy": accuracy, "loss": 1 - accuracy}
    times = criteria(Result.measured(Run(PAPER, 0), curves, None, "cpu"))
    assert 100 < times["first"].time <= 200
    assert 500 < times["plain"].time <= 600


def test_the_strongest_head_is_that_which_ends_highest():
    heads = np.array([[[0.9, 0.1]], [[0.5, 0.2]], [[0.1, 0.8]]])  # evaluations x layers x heads
    curves = {
        "step": np.arange(3),
        "accuracy": np.zeros(3),
        "loss": np.zeros(3),
        "selecting": heads,
    }
    assert strongest(Result.measured(Run(PAPER, 0), curves, None, "cpu"), "selecting").tolist() == [
        0.1,
        0.2,
        0.8,
    ]
