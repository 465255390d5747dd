"""Tables of training, without a terminal and without training."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

from emergo.engine import Config, History, Optimizer, Progress, Run, State
from emergo.report import cell_rows, cell_table, duration, live_progress, progress_line, progress_table
from emergo.studies import Result
from emergo.tasks import SingleLocation


def run(dim=4, seed=0, rate=1e-3):
    return Run(Config(SingleLocation(16, dim), optimizer=Optimizer(learning_rate=rate), precision="fp32"), seed)


def progress(running, done=0, failed=0, left=None, memory=10**8):
    return Progress(500, done, failed, running, 10_000, 10.0, left, memory)


def lines(renderable, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # pyright: ignore[reportAttributeAccessIssue]


def test_five_hundred_runs_fit_a_screen():
    running = [(run(dim, seed), 100 * seed, 1.0 + seed) for dim in range(1, 101) for seed in range(5)]
    found = lines(progress_table(progress(running)), width=80)
    assert len(found) == 17  # a line, the heads, 14 cells and the rest
    assert found[0] == "0 of 500 runs, 1,000 steps/s, 100 MB"
    assert found[2].split() == ["16", "1", "1", "0", "0.001", "5", "0-400", "1.000", "3.000", "5.000"]
    assert found[-1].split() == ["86", "more", "430", "0-400", "1.000", "3.000", "5.000"]
    assert not any("…" in line for line in found)


@pytest.mark.parametrize("cells", [1, 14, 15, 16])
def test_a_row_is_summarised_only_where_it_must_be(cells):
    found = lines(progress_table(progress([(run(dim), 25, 0.5) for dim in range(1, cells + 1)])))
    assert len(found) == 2 + min(cells, 15)
    assert ("more" in found[-1]) == (cells > 15)


def test_cells_differ_in_more_than_the_dim():
    running = [(run(rate=1e-3), 25, 2e9), (run(rate=1e-4), 50, 0.5)]
    found = lines(progress_table(progress(running)))
    assert [row.split()[4] for row in found[2:]] == ["0.0001", "0.001"]
    assert found[3].split()[-1] == "2e+09"


def test_nothing_in_training_is_one_line():
    assert len(lines(progress_table(progress([], done=500)))) == 1


def test_the_line_counts_runs_that_were_there():
    found = progress_line(progress([], done=10, failed=2, left=4000.0, memory=3 * 10**9), before=5)
    assert found == "15 of 505 runs, 2 failed, 1,000 steps/s, 3.0 GB, about 67 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (100, "2 min"), (5000, "83 min"), (33_000, "9 h"), (3e6, "35 d")],
)
def test_durations_are_readable(seconds, words):
    assert duration(seconds) == words


def test_a_terminal_gets_the_table_and_is_left_clean():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with live_progress(console=console) as show:
        show(progress([(run(), 25, 0.5)]))
        show(progress([(run(), 50, 0.25)]))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "compiling" in text
    assert "0.250" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_elsewhere_lines_come_seldom():
    console = Console(file=io.StringIO(), width=20)
    for every, count in ((1000.0, 0), (0.0, 2)):
        with live_progress(3, console, every) as show:
            show(progress([], done=1))
            show(progress([], done=2))
        said = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
        assert len(said) == count
    assert said == ["4 of 503 runs, 1,000 steps/s, 100 MB", "5 of 503 runs, 1,000 steps/s, 100 MB"]


def result(seed, last, state: State = "reached", dim=4, end=100):
    curves = {"step": np.array([0, end]), "loss": np.array([1.1, last])}
    return Result.of(History(run(dim, seed), state, end if state == "failed" else None, curves, "cpu"))


def test_cells_sum_up_their_runs():
    failed = [result(seed, math.nan, "failed", dim=2) for seed in range(2)]
    some = [result(0, 0.1), result(1, 0.1, end=60), result(2, 0.1, end=80), result(3, 0.9, "exhausted", end=200)]
    rows = cell_rows([*some, *failed])
    assert [row["dim"] for row in rows] == [2, 4]
    none, four = rows
    assert (none["runs"], none["failed"], none["censored"], none["plateau"]) == (2, 2, 0, None)
    assert (four["runs"], four["failed"], four["censored"], four["bound"]) == (4, 0, 1, False)
    assert four["plateau"] == pytest.approx(90)
    assert (four["plateau_min"], four["plateau_max"]) == (pytest.approx(60), 200)
    shown = lines(cell_table(rows))
    assert shown[1].split()[-4:] == ["-", "-", "0", "2"]
    assert shown[2].split()[-4:] == ["90", "60->200", "1", "0"]


@pytest.mark.parametrize(("censored", "bound"), [(1, False), (2, True), (3, True)])
def test_a_median_that_rests_on_censored_runs_is_a_bound(censored, bound):
    runs = [result(s, 0.9, "exhausted", end=200) if s < censored else result(s, 0.1) for s in range(4)]
    [row] = cell_rows(runs)
    assert row["bound"] is bound
    assert (">" in lines(cell_table([row]))[1].split()[-4]) is bound
