"""Test curves from rows with restarts, wrong order, repeated steps and mixed-up runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.logs._records import Cells, Records, to_curves


def records(steps, labelled=False, **metrics):
    """Return rows; a metric is a list of values, with None where it was not evaluated."""
    cells = {}
    for name, values in metrics.items():
        rows = [i for i, value in enumerate(values) if value is not None]
        cells[name] = Cells(np.array(rows, int), np.array([values[i] for i in rows], float))
    return Records("a" if labelled else None, np.array(steps, float), cells, {}, labelled=labelled)


def points(curve):
    return dict(zip(curve.index.tolist(), curve.tolist(), strict=True))


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=30, unique=True))
def test_rows_in_any_order_are_sorted(steps):
    """Steps go back in every second row, which is too often for restarts."""
    steps = sorted(steps)
    low = steps[: len(steps) // 2]
    high = steps[len(steps) // 2 :]
    zigzag = [step for pair in zip(high, low, strict=False) for step in pair] + high[len(low) :]
    curves, note = to_curves(records(zigzag, loss=[2.0 * step for step in zigzag]), "log")
    assert points(curves["loss"]) == {float(step): 2.0 * step for step in steps}
    assert note is None


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.lists(st.integers(5, 60), min_size=6, max_size=6),
)
def test_a_restart_replaces_the_abandoned_branch(kept, grown):
    """Compare with a dictionary that replays the branches."""
    steps = []
    values = []
    expected = {}
    end = grown[0] + 20
    for branch, start in enumerate([0, *(end * k // 21 for k in kept)]):
        start = max(start, 1) if branch else 0
        expected = {step: value for step, value in expected.items() if step < start}
        for step in range(start, start + grown[branch]):
            expected[step] = steps.append(step) or values.append(branch) or branch
    curves, note = to_curves(records(steps, loss=values), "log")
    assert points(curves["loss"]) == expected
    assert (note is None) == (sorted(steps) == steps)


def test_an_abandoned_branch_is_left_out_of_all_metrics():
    """The restart is visible in the training loss only. The test loss at step 100 is older."""
    steps = [0, 0, 20, 40, 60, 80, 100, 100, 60, 80]
    train = [9, None, 8, 7, 6, 5, 4, None, 6.5, 5.5]
    test = [None, 9, None, None, None, None, None, 4, None, None]
    curves, note = to_curves(records(steps, train=train, test=test), "log.csv")
    assert points(curves["train"]) == {0: 9, 20: 8, 40: 7, 60: 6.5, 80: 5.5}
    assert points(curves["test"]) == {0: 9}
    assert note is not None
    assert (
        note == "log.csv: it was restarted (steps go back to 60); 4 values from before are left out"
    )
    alone = records(steps, train=train, test=test)._replace(wanted=["test"])
    curves, note = to_curves(alone, "log.csv")
    assert list(curves) == ["test"]
    assert points(curves["test"]) == {0: 9}
    assert "; 1 values from before" in (note or "")


def test_metrics_in_separate_blocks_of_rows_are_not_a_restart():
    curves, note = to_curves(
        records([0, 1, 2, 3, 0, 1, 2, 3], a=[1, 2, 3, 4] + [None] * 4, b=[None] * 4 + [5, 6, 7, 8]),
        "log",
    )
    assert points(curves["a"]) == {0: 1, 1: 2, 2: 3, 3: 4}
    assert points(curves["b"]) == {0: 5, 1: 6, 2: 7, 3: 8}
    assert note is None


def test_the_last_value_of_a_step_counts():
    curves, _ = to_curves(records([0, 1, 1, 2, 3], loss=[1, 0, 1, 1, 1]), "log")
    assert points(curves["loss"]) == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0, 1, 2, 3, 0, 1, 2, 3], "after step 3 steps begin again at 0: more than one run"),
        ([0, 1, 2, 3, 4, 0, 1], "after step 4 steps begin again at 0"),
        ([0, 0, 1, 1, 2, 2, 3, 3], "most steps have several values"),
        ([3, 0, 2, 1, 0, 3, 1, 2], "most steps have several values"),
    ],
)
def test_mixed_up_runs_are_an_error(steps, message):
    values = np.random.default_rng(0).random(len(steps))
    with pytest.raises(
        InputError, match=f"log: .*{message}.*name the column that tells runs apart"
    ):
        to_curves(records(steps, loss=values.tolist()), "log")


def test_a_run_with_a_name_may_start_again_and_equal_rows_twice_are_one():
    curves, note = to_curves(
        records([0, 1, 2, 3, 0, 1], labelled=True, loss=[1, 2, 3, 4, 5, 6]), "log"
    )
    assert points(curves["loss"]) == {0: 5, 1: 6}
    assert note is not None
    curves, _ = to_curves(records([0, 0, 1, 1, 2, 2], loss=[1, 1, 2, 2, 3, 3]), "log")
    assert points(curves["loss"]) == {0: 1, 1: 2, 2: 3}
