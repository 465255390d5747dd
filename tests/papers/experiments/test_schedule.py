"""Repetition that is used and then dropped: settings, effects and the choice of methods."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from emergo import theory
from emergo.papers import FIGURES
from emergo.papers.experiments._repetition import Repetition, effect
from emergo.papers.experiments.schedule import (
    ONCE,
    fading,
    flow_checks,
    flow_table,
    level_checks,
    method_checks,
    methods_table,
)

PRESETS = FIGURES["emergo/schedule"].presets
PAPER: Any = PRESETS["paper"]
SMOKE = PRESETS["smoke"]
CELL = "T = 256, d = 64"


def test_the_repetition_of_every_part():
    parts = PAPER.studies() | PAPER.references()
    found = {name: {Repetition.of(run.config) for run in part.runs} for name, part in parts.items()}
    kinds = {name: {each.kind for each in some} for name, some in found.items()}
    assert found["kept"] == {("none", 0.0, 0, 0), *(("kept", p, 0, 0) for p in PAPER.repeats)}
    assert found["switched"] == {("switched", p, at, at) for p in PAPER.repeats for at in PAPER.at}
    assert found["recall, policy"] == {("policy", b, 0, 0) for b in (4.0, 8.0, 16.0)}
    assert found["recall"] == {
        ("faded" if end else "switched", b, at, end or at) for b, at, end in PAPER.drops
    }
    assert found["recall, confirmed"] == {
        ("switched", burst, 1000 * at, 1000 * at)
        for burst, at in ((4.0, 24), (4.0, 28), (8.0, 20), (8.0, 24), (8.0, 28))
    }
    assert kinds["T = 128, d = 64"] == {"none", "switched", "kept"}
    assert kinds["recall, constant"] == {"none", "kept"}


def test_a_burst_ends_at_once_or_fades():
    at_once = [float(fading(8.0, 100, 0).value(step, ())) for step in (0, 99, 100)]
    assert at_once == pytest.approx([8.0, 8.0, ONCE], abs=1e-6)
    fades = [float(fading(8.0, 100, 300).value(step, ())) for step in (100, 200, 300)]
    assert fades == pytest.approx([8.0, 4.0, ONCE], abs=1e-5)


def cell(*times: float, **columns: object) -> pd.DataFrame:
    usual = {"cell": CELL, "signed": False, "kind": "kept", "amount": 0.4, "at": 0, "end": 0}
    measured = {"time": times, "censored": False, "seed": range(len(times))}
    return pd.DataFrame(measured | usual | columns)


def methods_of(*cells: pd.DataFrame) -> pd.DataFrame:
    return methods_table(pd.concat(cells, ignore_index=True))


def test_an_effect_is_paired_by_seed():
    """The fourth run of the slow cell has no partner."""
    slow = np.array([9.0, 12.0, 10.0, 14.0])
    fast = np.array([3.0, 4.0, 3.5])
    expected = ttest_rel(np.log(slow[:3]), np.log(fast)).confidence_interval()
    found = effect(cell(*slow), cell(*fast))
    assert found[1:3] == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.times == pytest.approx(math.sqrt(found.low * found.high))
    assert math.isnan(effect(cell(2.0), cell(1.0)).low), "the spread of one seed is unknown"


def test_the_best_run_of_each_method_is_chosen_but_not_the_policy():
    every = methods_of(
        cell(100, 110, kind="none", amount=0.0),
        cell(60, 50),
        cell(70, 80, amount=0.2),
        cell(40, 45, kind="switched", amount=0.8, at=30, end=30),
        cell(90, 95, kind="switched", amount=0.8, at=10, end=10),
        cell(55, 65, kind="policy", amount=0.5),
        cell(20, 30, kind="policy", amount=0.8),
        cell(1, 2, cell=f"{CELL}, random sign", signed=True),
    )
    signed = every[every["cell"] != CELL].set_index("method")["time"].to_dict()
    assert signed == {"none": 105, "best constant": 1.5}
    table = every[every["cell"] == CELL].set_index("method")
    expected = {"none": 105, "best constant": 55, "best switch": 42.5, "policy": 60}
    assert table["time"].to_dict() == expected
    assert table["at"]["best switch"] == 30
    assert table["gain"]["policy"] == pytest.approx(math.sqrt(100 * 110 / (55 * 65)))
    assert table["over_constant"]["best constant"] == 1


def test_a_gain_of_censored_runs_is_an_upper_bound():
    table = methods_of(
        cell(90, 95, kind="none", amount=0.0),
        cell(45, 45, kind="policy", amount=0.5, censored=True),
        cell(45, 30, kind="switched", at=8, end=8, censored=[True, False]),
        cell(44, 44, kind="switched", at=9, end=9),
    )
    by = table.set_index("method")
    assert by["gain_bound"]["policy"] == "at most"
    assert set(by["gain_bound"].drop("policy")) == {""}
    assert by["at"]["best switch"] == 9  # cells without censored runs rank first
    holds = {check.name: check.holds for check in method_checks(table)}
    assert holds[f"{CELL}: best switch over the best constant, times sooner"]
    assert not holds[f"{CELL}: policy over no repetition, times sooner, at most"]


def test_levels_of_a_bias():
    levels = [
        cell(1.0, 1.0, amount=p, test_level=(1 + p * p) / 2, train_level=(1 - p * p) / 2)
        for p in (0.4, 0.8, 1.0)
    ]
    table = pd.concat(levels)
    assert all(check.holds for check in level_checks(table))
    flat = table.assign(test_level=0.5, train_level=0.5)
    assert not any(check.holds for check in level_checks(flat))


def test_the_flow_agrees_with_the_closed_form():
    flow = flow_table(SMOKE)
    assert set(flow["bias"]) == {False, True}
    sizes = theory.cells(SMOKE.length, SMOKE.dim)
    none = flow[flow["at"] == 0]["plateau"] * float(theory.takeoff_time(sizes))
    expected = float(theory.plateau(sizes, threshold=0.8).time)
    assert none.to_numpy() == pytest.approx(expected)
    off = flow.assign(derived=flow["derived"] + 0.2, takeoff=flow["derived"])
    assert not any(check.holds for check in flow_checks(off))
