"""The stages of flows and trained models: laws and checks, on made-up tables."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from emergo.papers.experiments import stages
from emergo.papers.yuksel2026._chains import ADAMW

from ..by_hand import STEPS, measured, result

SMOKE = stages.FIGURE.presets["smoke"]


def rows(part, stage, time_of, state="reached", derived=np.nan):
    """Yield three seeds of every trained cell."""
    for cell in stages.Settings().trained.cells:
        for seed, noise in enumerate((0.97, 1.0, 1.03)):
            row = {"part": part, "stage": stage, "seed": seed, "time": noise * time_of(cell)}
            row |= {"derived": derived, "censored": state == "censored", "state": state}
            yield cell.columns | row


def first(cell):
    return 3 * cell.length**1.2 * cell.span**-0.5 * cell.importance**-1.0


def second(cell):
    return 30 * cell.length**0.8 * cell.span * (cell.importance**2 - 1) ** 0.7


TABLE = pd.DataFrame([*rows("sgd", 1, first), *rows("sgd", 2, second)])
NOTHING = TABLE[:0]


@pytest.fixture(scope="module")
def laws():
    return stages.laws_of(TABLE)


def test_laws_are_recovered(laws):
    exponents = [laws["sgd", 1].exponents[n] for n in ("length", "span", "importance")]
    assert exponents == pytest.approx([1.2, -0.5, -1.0], abs=0.02)
    assert laws["sgd", 2].exponents["gap"] == pytest.approx(0.7, abs=0.02)
    assert stages.laws_of(TABLE, "derived") == {}
    assert stages.laws_of(TABLE[:2]) == {}


def test_exponents_are_compared_with_the_derived_ones(laws):
    law = laws["sgd", 1]
    other = dataclasses.replace(law, exponents={**law.exponents, "length": 0.9, "span": 0.0})
    derived = {("logit", 2): law, ("preconditioned", 2): other}
    for one in (law, other):
        (check,) = stages.stage_checks(NOTHING, {("sgd", 1): law}, {("sgd", 1): one})
        assert check.holds is (one is law)
        (check,) = stages.stage_checks(NOTHING, {("logit", 2): one}, derived)
        assert check.holds is (one is law)


def test_a_stronger_first_group_is_found_sooner_and_left_later(laws):
    two = laws["sgd", 2]
    turned = dataclasses.replace(two, exponents={**two.exponents, "gap": -0.7})
    for one in (two, turned):
        (check,) = stages.stage_checks(NOTHING, laws | {("sgd", 2): one}, {})
        assert check.holds is (one is two)


def test_the_level_ignores_censored_runs():
    reached = rows("sgd", 1, lambda cell: 20.0, derived=10.0)
    every = pd.DataFrame([*reached, *rows("sgd", 1, lambda cell: 1.0, "censored", 1.0)])
    (check,) = stages.stage_checks(every, {}, {})
    assert check.measured == pytest.approx(2.0, rel=1e-3)
    assert not check.holds
    (check,) = stages.stage_checks(every.assign(time=12.0, derived=10.0), {}, {})
    assert check.holds
    assert not [*stages.stage_checks(every[every["censored"]], {}, {})]


def test_stages_of_trained_runs_end_at_half_of_the_weight():
    study = next(iter(dataclasses.replace(SMOKE, optimizers=(ADAMW,)).studies().values()))
    lags = np.zeros((len(STEPS), 1, 2, 2))
    lags[STEPS > 100, 0, 0, 0] = 1.0  # one head finds the first group, none finds the second
    run = result(study.runs[0], np.ones(len(STEPS)), np.zeros((len(STEPS), 2, 2)), lags)
    one, two = stages.trained_rows(measured(run), 256)
    assert 100 < one["time"] < 105
    assert (one["stage"], one["state"], one["length"]) == (1, "reached", 4)
    assert (two["time"], two["censored"]) == (2000, True)


@pytest.mark.slow
def test_the_derived_first_stage_scales_as_in_the_flow():
    """Steps are inversely proportional to the learning rate and, without damping, to T √D."""
    star = dataclasses.replace(SMOKE.trained, length=(4, 6), importance=(2.0,))
    studies = dataclasses.replace(SMOKE, trained=star).studies().values()
    short, long = (study.base for study in studies)
    fast = short.replace(optimizer__learning_rate=2 * short.optimizer.learning_rate)
    steps = stages.derived_first(short, 0, 256)
    assert steps == pytest.approx(2 * stages.derived_first(fast, 0, 256))
    sizes = [config.task.spec.inputs + config.task.spec.length for config in (short, long)]
    expected = np.sqrt(sizes[1] / sizes[0]) * 6 / 4
    noise = 1.2  # each signal is measured on 256 other sequences
    measured = stages.derived_first(long, 0, 256) / steps
    assert expected / noise < measured < 1.3 * expected * noise


@pytest.mark.slow
def test_a_single_location_is_one_head_with_one_group():
    difference, ratio = stages.compare_single(6, 16, 1)
    assert difference < 1e-6
    assert ratio == pytest.approx(1, abs=1e-6)
