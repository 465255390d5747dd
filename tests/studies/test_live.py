"""Tables of training, without a terminal and without training."""

import io

import pandas as pd
import pytest
from rich.console import Console

from emergo.engine import Config, Optimizer, Progress, Run
from emergo.studies import cell_summary, live_progress
from emergo.studies._live import progress_line, progress_table, varying_columns
from emergo.tasks import SingleLocation


def run(dim=4, seed=0, rate=1e-3):
    return Run(Config(SingleLocation(16, dim), optimizer=Optimizer(learning_rate=rate), precision="fp32"), seed)


def progress(running, done=0, failed=0, left=None, memory=10**8):
    return Progress(500, done, failed, running, 10_000, 10.0, left, memory)


def lines(renderable, width=100):
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_five_hundred_runs_fit_a_screen():
    running = [(run(dim, seed), 100 * seed, 1.0 + seed) for dim in range(1, 101) for seed in range(5)]
    rows = lines(progress_table(progress(running)), width=80)
    assert len(rows) == 17  # a line, the heads, 14 cells and the rest
    assert rows[0] == "0 of 500 runs, 1,000 steps/s, 100 MB"
    assert rows[2].split() == ["1", "5", "0-400", "1.000", "3.000", "5.000"]
    assert rows[-1].split() == ["86", "more", "430", "0-400", "1.000", "3.000", "5.000"]
    assert not any("…" in line for line in rows)


@pytest.mark.parametrize("cells", [1, 14, 15, 16])
def test_a_row_is_summarised_only_where_it_must_be(cells):
    rows = lines(progress_table(progress([(run(dim), 25, 0.5) for dim in range(1, cells + 1)])))
    assert len(rows) == 2 + min(cells, 15)
    assert ("more" in rows[-1]) == (cells > 15)


def test_cells_differ_in_more_than_the_dim():
    running = [(run(rate=1e-3), 25, 2e9), (run(rate=1e-4), 50, 0.5)]
    rows = lines(progress_table(progress(running)))
    assert [row.split()[0] for row in rows[2:]] == ["0.001", "0.0001"]
    assert rows[2].split()[-1] == "2e+09"


def test_nothing_in_training_is_one_line():
    assert len(lines(progress_table(progress([], done=500)))) == 1


def test_all_of_it_is_one_line():
    line = progress_line(progress([], done=10, failed=2, left=4000.0, memory=3 * 10**9))
    assert line == "10 of 500 runs, 2 failed, 1,000 steps/s, 3.0 GB, about 67 min left"


def test_a_terminal_gets_the_table_and_is_left_clean():
    file = io.StringIO()
    with live_progress(console=Console(file=file, force_terminal=True, width=100)) as show:
        show(progress([(run(), 25, 0.5)]))
        show(progress([(run(), 50, 0.25)]))
    text = file.getvalue()
    assert "compiling" in text
    assert "0.250" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_elsewhere_lines_come_seldom():
    file = io.StringIO()
    for every, count in ((1000.0, 0), (0.0, 2)):
        with live_progress(Console(file=file, width=20), every) as show:
            show(progress([], done=1))
            show(progress([], done=2))
        assert len(file.getvalue().splitlines()) == count
    assert file.getvalue().splitlines() == ["1 of 500 runs, 1,000 steps/s, 100 MB", "2 of 500 runs, 1,000 steps/s, 100 MB"]


def test_columns_are_those_in_which_runs_differ():
    assert varying_columns([run(4), run(8), run(4, seed=3)]) == {"dim": [4, 8, 4]}
    assert varying_columns([run(), run(seed=1)]) == {}


def table(rows):
    """A table of runs: (dim, plateau, state)."""
    frame = pd.DataFrame(rows, columns=["dim", "plateau", "state"])
    return frame.assign(censored=frame["state"] == "censored")


def test_cells_sum_up_their_runs():
    some = [(4, 100, "reached"), (4, 60, "reached"), (4, 80, "reached"), (4, 200, "censored")]
    failed = [(2, float("nan"), "failed")] * 2
    none, four = cell_summary(table([*some, *failed]), ["dim"], [(4,)] * 5 + [(2,)] * 2 + [(8,)])
    assert (none["dim"], none["runs"], none["failed"], none["censored"], none["plateau"]) == (2, 2, 2, 0, None)
    assert (four["dim"], four["planned"], four["runs"], four["failed"], four["censored"]) == (4, 5, 4, 0, 1)
    assert (four["plateau"], four["plateau_min"], four["plateau_max"], four["bound"]) == (90, 60, 200, False)
    assert cell_summary(table([]), ["dim"]) == []
    [whole] = cell_summary(table(some), [])
    assert whole["runs"] == 4


@pytest.mark.parametrize(("censored", "bound"), [(1, False), (2, True), (3, True)])
def test_a_median_that_rests_on_censored_runs_is_a_bound(censored, bound):
    rows = [(4, 200, "censored") if i < censored else (4, 100, "reached") for i in range(4)]
    [cell] = cell_summary(table(rows), ["dim"])
    assert cell["bound"] is bound
