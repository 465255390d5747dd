"""Repetition used and then dropped: what a run repeats, how much sooner a cell is, and which way to
repeat was best."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from emergo import theory
from emergo.papers import FIGURES, source_for
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
from emergo.study import Study

PAPER = FIGURES["emergo/schedule"].presets["paper"]
SMOKE = FIGURES["emergo/schedule"].presets["smoke"]


def kinds(part: Study) -> set[Repetition]:
    return {Repetition.of(run.config) for run in part.runs}


def test_every_part_says_what_it_repeats():
    parts = PAPER.studies()
    assert {(r.kind, r.amount) for r in kinds(parts["kept"])} == {("none", 0.0)} | {
        ("kept", p) for p in PAPER.repeats
    }
    assert kinds(parts["switched"]) == {
        Repetition("switched", p, at, at) for p in PAPER.repeats for at in PAPER.at
    }
    assert {r.kind for r in kinds(parts["T = 128, d = 64"])} == {"none", "switched", "kept"}
    assert {(r.kind, r.amount) for r in kinds(parts["recall, policy"])} == {
        ("policy", b) for b in (4.0, 8.0, 16.0)
    }
    expected = {
        Repetition("switched" if end == 0 else "faded", b, at, end or at)
        for b, at, end in PAPER.drops
    }
    assert kinds(parts["recall"]) == expected
    assert {r.kind for r in kinds(PAPER.references()["recall, constant"])} == {"none", "kept"}


def test_recorded_runs_are_used():
    """60 runs of the switched part, and all that other figures keep."""
    source = source_for(FIGURES["emergo/schedule"])
    switched = PAPER.studies()["switched"].runs
    assert len(switched) - len(source.missing(switched, curves=True)) >= 60
    assert not any(source.missing(study.runs) for study in PAPER.references().values())


def test_a_burst_ends_at_once_or_fades():
    at_once = fading(8.0, 100, 0)
    fades = fading(8.0, 100, 300)
    assert [float(at_once.value(step, ())) for step in (0, 99, 100)] == pytest.approx(
        [8.0, 8.0, ONCE], abs=1e-6
    )
    assert [float(fades.value(step, ())) for step in (100, 200, 300)] == pytest.approx(
        [8.0, 4.0, ONCE], abs=1e-5
    )


def cell(*times: float, **columns: object) -> pd.DataFrame:
    usual = {
        "cell": "T = 256, d = 64",
        "signed": False,
        "kind": "kept",
        "amount": 0.4,
        "at": 0,
        "end": 0,
    }
    return pd.DataFrame(
        {"time": times, "censored": False, "seed": range(len(times))} | usual | columns
    )


def test_an_effect_has_the_interval_of_welchs_t():
    slow = np.array([9.0, 12.0, 10.0, 14.0])
    fast = np.array([3.0, 4.0, 3.5])
    expected = ttest_ind(np.log(slow), np.log(fast), equal_var=False).confidence_interval()
    found = effect(cell(*slow), cell(*fast))
    assert found.times == pytest.approx(math.exp(np.log(slow).mean() - np.log(fast).mean()))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    assert math.isnan(effect(cell(2.0), cell(1.0)).low), "one seed has no spread"


def test_the_best_of_each_way_is_chosen_and_the_policy_is_not():
    runs = [cell(100, 110, kind="none", amount=0.0), cell(60, 50), cell(70, 80, amount=0.2)]
    runs += [
        cell(40, 45, kind="switched", amount=0.8, at=30, end=30),
        cell(90, 95, kind="switched", amount=0.8, at=10, end=10),
    ]
    runs += [cell(55, 65, kind="policy", amount=0.5), cell(20, 30, kind="policy", amount=0.8)]
    runs += [cell(1, 2, cell="T = 256, d = 64, random sign", signed=True)]
    every = methods_table(pd.concat(runs, ignore_index=True), PAPER)
    signed = every[every["cell"].str.endswith("random sign")].set_index("method")
    assert signed["time"].to_dict() == {"none": 105, "best constant": 1.5}, (
        "no repetition is the same with any sign"
    )
    table = every[every["cell"] == "T = 256, d = 64"].set_index("method")
    assert table["time"].to_dict() == {
        "none": 105,
        "best constant": 55,
        "best switch": 42.5,
        "policy": 60,
    }
    assert table["at"]["best switch"] == 30
    assert table["gain"]["policy"] == pytest.approx(math.sqrt(100 * 110 / (55 * 65)))
    assert table["over_constant"]["best constant"] == 1


def test_a_gain_of_censored_runs_is_no_gain():
    """All of the policy's runs were given up at 45: twice as soon as without, at most."""
    runs = [
        cell(90, 95, kind="none", amount=0.0),
        cell(45, 45, kind="policy", amount=0.5, censored=True),
    ]
    runs += [
        cell(45, 30, kind="switched", at=8, end=8, censored=[True, False]),
        cell(44, 44, kind="switched", at=9, end=9),
    ]
    table = methods_table(pd.concat(runs, ignore_index=True), PAPER)
    bounds = table.set_index("method")["gain_bound"]
    assert bounds.to_dict() == {
        "none": "",
        "best constant": "",
        "best switch": "",
        "policy": "at most",
    }
    assert table.set_index("method")["at"]["best switch"] == 9, (
        "a cell with a censored run is behind one without"
    )
    holds = {
        check.name.split(": ")[1].split(" over")[0]: check.holds for check in method_checks(table)
    }
    assert holds["best switch"]
    assert not holds["policy"]


def test_the_levels_of_a_bias_are_told_from_those_of_nothing_learned():
    levels = [
        cell(1.0, 1.0, amount=p, test_level=(1 + p * p) / 2, train_level=(1 - p * p) / 2)
        for p in (0.4, 0.8, 1.0)
    ]
    assert all(check.holds for check in level_checks(pd.concat(levels)))
    flat = [each.assign(test_level=0.5, train_level=0.5) for each in levels]
    assert not any(check.holds for check in level_checks(pd.concat(flat)))


def test_the_flow_is_held_against_the_closed_form():
    flow = flow_table(SMOKE)
    assert set(flow["bias"]) == {False, True}
    none = flow[flow["at"] == 0]["plateau"] * float(
        theory.takeoff_time(theory.cells(SMOKE.length, SMOKE.dim))
    )
    assert none.to_numpy() == pytest.approx(
        float(theory.plateau(theory.cells(SMOKE.length, SMOKE.dim), threshold=0.8).time)
    )
    off = flow.assign(derived=flow["derived"] + 0.2)
    assert not any(check.holds for check in flow_checks(off.assign(takeoff=flow["derived"])))
