"""One transition, two papers: the laws of the stages and what they are held against."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Plot

from emergo.papers.experiments import stages
from emergo.papers.yuksel2026._chains import chain_of

from ..by_hand import STEPS, measured, result

SMOKE = stages.FIGURE.presets["smoke"]


def rows(part, stage, time_of, state="reached", derived=np.nan):
    """Three seeds of every trained cell; `time_of` a cell."""
    for cell in stages.Settings().trained.cells:
        for seed, noise in enumerate((0.97, 1.0, 1.03)):
            row = {
                "part": part,
                "stage": stage,
                "seed": seed,
                "time": noise * time_of(cell),
                "derived": derived,
            }
            yield cell.columns | row | {"censored": state == "censored", "state": state}


def first(cell):
    return 3 * cell.length**1.2 * cell.span**-0.5 * cell.importance**-1.0


def second(cell):
    return 30 * cell.length**0.8 * cell.span * (cell.importance**2 - 1) ** 0.7


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame([*rows("sgd", 1, first), *rows("sgd", 2, second)])


@pytest.fixture(scope="module")
def laws(table):
    return stages.laws_of(table)


def test_laws_are_those_of_their_table(table, laws):
    law = laws["sgd", 1]
    np.testing.assert_allclose(
        [law.exponents[n] for n in ("length", "span", "importance")], [1.2, -0.5, -1.0], atol=0.02
    )
    assert laws["sgd", 2].exponents["gap"] == pytest.approx(0.7, abs=0.02)
    assert stages.laws_of(table, "derived") == {}
    assert stages.laws_of(table[:2]) == {}  # too few to fit


def test_exponents_are_held_against_the_derived_ones(table, laws):
    law = laws["sgd", 1]
    other = dataclasses.replace(law, exponents={**law.exponents, "length": 0.9, "span": 0.0})
    nothing = table[:0]
    for derived in (law, other):
        (check,) = stages.stage_checks(nothing, {("sgd", 1): law}, {("sgd", 1): derived})
        assert check.holds is (derived is law)
    own = {("logit", 2): law, ("preconditioned", 2): other}
    for own_law in (law, other):
        (check,) = stages.stage_checks(nothing, {("logit", 2): own_law}, own)
        assert check.holds is (own_law is law)


def test_a_stronger_first_group_is_found_sooner_and_left_later(table, laws):
    two = laws["sgd", 2]
    turned = dataclasses.replace(two, exponents={**two.exponents, "gap": -0.7})
    for second in (two, turned):
        (check,) = stages.stage_checks(table[:0], laws | {("sgd", 2): second}, {})
        assert check.holds is (second is two)


def test_the_level_is_that_of_the_runs_that_came_so_far():
    every = pd.DataFrame(
        [
            *rows("sgd", 1, lambda cell: 20.0, derived=10.0),
            *rows("sgd", 1, lambda c: 1.0, "censored", 1.0),
        ]
    )
    (check,) = stages.stage_checks(every, {}, {})
    assert check.measured == pytest.approx(2.0, rel=1e-3)
    assert not check.holds
    assert stages.stage_checks(every.assign(time=12.0, derived=10.0), {}, {})[0].holds
    assert stages.stage_checks(every[every["censored"]], {}, {}) == []


def test_stages_of_trained_runs_are_when_a_head_has_half_of_its_weight_there(monkeypatch):
    monkeypatch.setattr(stages, "derived_first", lambda config, seed, sequences: 42.0)
    study = next(iter(SMOKE.studies().values()))
    lags = np.zeros((len(STEPS), 1, 2, 2))
    lags[STEPS > 100, 0, 0, 0] = (
        1.0  # a head finds the first group between steps 100 and 105; none finds the second
    )
    run = result(study.runs[0], np.ones(len(STEPS)), np.zeros((len(STEPS), 2, 2)), lags)
    one, two = stages.trained_rows(measured(run), 256)
    assert 100 < one["time"] < 105
    assert (one["stage"], one["state"], one["derived"], one["length"]) == (1, "reached", 42.0, 4)
    assert (two["time"], two["censored"]) == (2000, True)


def test_a_star_differs_from_its_base_in_one_number():
    star = stages.Star(stages.Cell(64, 2, 1.7), (16, 64), (1, 2), (1.7, 2.2))
    assert star.cells == [(16, 2, 1.7), (64, 2, 1.7), (64, 1, 1.7), (64, 2, 2.2)]
    table = pd.DataFrame([cell.columns for cell in star.cells])
    assert star.along(table, "span")["span"].tolist() == [2, 1]


def test_every_cell_is_trained_with_every_optimizer():
    settings = stages.FIGURE.presets["paper"]
    studies = settings.studies()
    assert len(studies) == 2 * len(settings.trained.cells)
    assert {run.seed for run in stages.FIGURE.runs("paper")} == set(range(5))
    configs = {run.config for run in stages.FIGURE.runs("paper")}
    assert {
        (config.threshold, config.overtrain, chain_of(config).generated) for config in configs
    } == {(0.15, 0.1, 1)}


@pytest.mark.slow
def test_the_derived_first_stage_scales_as_the_flow_says():
    """Twice the learning rate, half the steps; without damping to speak of, T √D, and more with
    it."""
    star = dataclasses.replace(SMOKE.trained, length=(4, 6), importance=(2.0,))
    settings = dataclasses.replace(SMOKE, trained=star)
    short, long = (study.base for study in settings.studies().values())
    fast = short.replace(optimizer__learning_rate=2 * short.optimizer.learning_rate)
    steps = stages.derived_first(short, 0, 256)
    assert steps == pytest.approx(2 * stages.derived_first(fast, 0, 256))
    sizes = [config.task.spec.inputs + config.task.spec.length for config in (short, long)]
    again = np.sqrt(sizes[1] / sizes[0]) * 6 / 4
    signals = 1.2  # of 256 sequences each, other ones
    assert again / signals < stages.derived_first(long, 0, 256) / steps < 1.3 * again * signals


def test_a_row_of_exponents_for_every_theory_and_measurement(laws):
    axes = Plot().subplots()
    stages.draw_exponents(axes, laws, {("sgd", 1): laws["sgd", 1]}, "length", ["sgd"])
    rows = {
        label.get_text(): float(y)
        for y, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    }
    assert len(axes.get_yticks()) == 2 + 5 + 3
    assert list(rows)[:3] == [stages.STAGES[1], "zucchet2025, flow", "zucchet2025, Fig. 3"]
    means = [np.asarray(line.get_xydata()).mean(0) for line in axes.lines[:-1]]
    drawn = {round(float(y), 6): float(x) for x, y in means}
    assert drawn[rows["zucchet2025, flow"]] == 1.0
    assert drawn[rows["zucchet2025, Fig. 3"]] == 0.8
    assert drawn[rows["trained, SGD"]] == pytest.approx(laws["sgd", 2].exponents["length"])
    assert len(drawn) == 4, "the flows have no law here"


@pytest.mark.slow
def test_the_single_location_is_one_head_with_one_group():
    difference, ratio = stages.compare_single(6, 16, 1)
    assert difference < 1e-6
    assert ratio == pytest.approx(1, abs=1e-6)
