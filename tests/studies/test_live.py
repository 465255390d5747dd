"""Tables of training, without a terminal and without training."""

import io

import pandas as pd
import pytest
from rich.console import Console

from emergo.engine import Config, Optimizer, Progress, Result, Run
from emergo.measure import Emergence, State
from emergo.studies import _live, cell_summary, live_progress
from emergo.studies._live import POINTS, LiveTable, progress_line, sparkline, varying_columns
from emergo.tasks import SingleLocation


def run(dim=4, seed=0, rate=1e-3):
    return Run(Config(SingleLocation(16, dim), optimizer=Optimizer(learning_rate=rate), precision="fp32"), seed)


def progress(running, done=0, failed=0, left=None, memory=10**8):
    return Progress(500, done, failed, running, 10_000, 10.0, left, memory)


def lines(view, width=100):
    file = io.StringIO()
    Console(file=file, width=width).print(view)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def shown(height=40, width=100):
    return LiveTable(Console(file=io.StringIO(), force_terminal=True, width=width, height=height))


def result(run, state: State = "reached", plateau=90.0, reason=None):
    return Result(run, state, Emergence(plateau, plateau, plateau, state), 100, None, {}, None, reason)


def words(table):
    """The rows of the table, without bar and heads."""
    rows = lines(table.view())
    return [row.split() for row in rows[2:]]


def test_a_cell_in_training_shows_its_losses_so_far():
    table = shown()
    table.begin([run(dim, seed) for dim in (4, 8) for seed in range(2)])
    for step, loss in ((0, 1.0), (25, 1.0), (50, 0.5), (75, 0.01)):
        table.training(progress([(run(4, seed), step, loss) for seed in range(2)], left=40.0))
    bar, heads, *_ = lines(table.view())
    assert "0 of 500 runs, 1,000 steps/s, 100 MB, about 40 s left" in bar
    assert heads.split() == ["dim", "runs", "plateau", "step", "loss", "over", "training", "forecast"]
    training, waiting = words(table)
    assert training[:6] == ["4", "0", "of", "2", "75", "0.010"]
    assert training[6][0] == "█"
    assert training[6][-1] == "▁"
    assert waiting == ["8", "0", "of", "2", "waiting"]


def test_cells_that_are_done_have_their_plateaus_and_failures_their_reasons():
    table = shown()
    runs = [run(dim, seed) for dim in (4, 8, 16) for seed in range(3)]
    table.begin(runs, lambda: {runs[0].identity: {"state": "reached", "plateau": 100.0}})
    table.ended(result(runs[1], plateau=300.0))
    table.ended(result(runs[2], plateau=120.0))
    for censored in runs[3:5]:
        table.ended(result(censored, "censored", 500.0))
    table.ended(result(runs[5], "failed", float("nan"), "the loss is not finite"))
    table.training(progress([(runs[6], 25, 2e9)], done=6, failed=1))
    four, eight, sixteen, failure = words(table)
    assert four == ["4", "3", "of", "3", "120"]
    assert eight == ["8", "3", "of", "3,", "1", "failed", ">500"]
    assert sixteen[:6] == ["16", "0", "of", "3", "25", "2e+09"]
    assert " ".join(failure) == "failed: dim 8, seed 2: the loss is not finite"
    assert "6 of 500 runs, 1 failed" in lines(table.view())[0]


def test_five_hundred_runs_fit_a_screen():
    """In a window of 20 lines: those in training are there, the others are counted."""
    table = shown(height=20)
    runs = [run(dim, seed) for dim in range(1, 101) for seed in range(5)]
    table.begin(runs)
    table.training(progress([(run(dim, seed), 100 * seed, 1.0 + seed) for dim in (50, 99) for seed in range(5)]))
    rows = lines(table.view(), width=80)
    assert len(rows) <= 20
    cells = [row.split()[0] for row in rows[2:-1]]
    assert {"50", "99"} <= set(cells)
    assert cells == sorted(cells, key=int), "in the order of their values"
    assert rows[-1] == f"{100 - len(cells)} more cells: {100 - len(cells)} waiting"
    assert not any("…" in line for line in rows)


def test_runs_that_were_not_announced_are_shown_too():
    table = shown()
    table.training(progress([(run(rate=1e-3), 25, 0.5), (run(rate=1e-4), 50, 0.5)]))
    assert [row[0] for row in words(table)] == ["0.0001", "0.001"]


def test_runs_without_a_threshold_are_done_without_a_plateau():
    table = shown()
    table.begin([run()])
    table.ended(result(run(), "trained", float("nan")))
    table.training(progress([], done=1))
    assert words(table) == [["1", "of", "1", "done"]]


def test_the_bar_is_what_is_done_at_least():
    """Two of ten runs, and two more are half way to their last step."""
    table, runs = shown(), [run(seed=seed) for seed in range(10)]
    table.begin(runs)
    half = runs[0].config.steps // 2
    now = Progress(10, 2, 0, [(runs[2], half, 1.0), (runs[3], half, 1.0)], 10, 1.0, None, 1)
    table.training(now)
    assert "30%" in lines(table.view())[0]


def test_the_time_left_is_guessed_from_what_ended_where_the_engine_has_no_guess(monkeypatch):
    """Ten runs, two of them there before; four ended in 40 s, so that the other four take 40 s."""
    clock, runs, table = iter([100.0, 140.0, 140.0]), [run(seed=seed) for seed in range(10)], shown()
    monkeypatch.setattr(_live.time, "monotonic", lambda: next(clock))
    table.begin(runs, lambda: {r.identity: {"state": "reached", "plateau": 9.0} for r in runs[:2]})
    table.training(Progress(10, 6, 0, [], 10, 1.0, None, 5 * 10**6))
    assert "6 of 10 runs, 10 steps/s, 5 MB, about 40 s left" in lines(table.view())[0]


def test_what_is_no_training_has_one_bar_each():
    table = shown()
    for step in range(4):
        table("SGD", step / 9, f"step {step} of 9")
    table("drawing", 0.5)
    first, second = lines(table.view())
    assert first.split()[-2:] == ["100%", "SGD"]
    assert second.split()[-2:] == ["50%", "drawing"]


@pytest.mark.parametrize(
    ("values", "bars"),
    [([1.0, 1.0, 0.5, 0.0], "██▅▁"), ([float("nan"), 2.0], " █"), ([0.0, 0.0], "  "), ([], "")],
)
def test_sparklines_stand_over_zero(values, bars):
    assert sparkline(values) == bars


def test_long_training_keeps_few_points():
    table = shown()
    for step in range(3 * POINTS):
        table.training(progress([(run(), step, 1.0)]))
    assert len(table.losses[run().identity]) <= POINTS


def test_all_of_it_is_one_line():
    line = progress_line(progress([], done=10, failed=2, left=4000.0, memory=3 * 10**9))
    assert line == "10 of 500 runs, 2 failed, 1,000 steps/s, 3.0 GB, about 67 min left"


def test_a_terminal_gets_the_table_and_is_left_clean():
    file = io.StringIO()
    with live_progress(console=Console(file=file, force_terminal=True, width=100)) as watch:
        watch.begin([run()])
        watch.training(progress([(run(), 25, 0.5)]))
        watch.training(progress([(run(), 50, 0.25)]))
    text = file.getvalue()
    assert "0.250" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_elsewhere_lines_come_seldom():
    file = io.StringIO()
    for every, count in ((1000.0, 0), (0.0, 3)):
        with live_progress(Console(file=file, width=20), every) as watch:
            watch.begin([run()])
            watch("flows", 0.5, "[1] of 2")
            watch.training(progress([], done=1))
            watch.training(progress([], done=2))
        assert len(file.getvalue().splitlines()) == count
    rate = "1,000 steps/s, 100 MB"
    assert file.getvalue().splitlines() == [
        "emergo: flows: [1] of 2",
        f"emergo: 1 of 500 runs, {rate}",
        f"emergo: 2 of 500 runs, {rate}",
    ]


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
