"""Displays of progress, without a terminal and without training."""

import io

from rich.console import Console

from emergo.measure import Emergence, State
from emergo.store.claims import Note
from emergo.study import live_progress
from emergo.study._live import LiveTable
from emergo.tasks import SingleLocation
from emergo.training import Config, Optimizer, Progress, Result, Run


def run(dim=4, seed=0, rate=1e-3):
    optimizer = Optimizer(learning_rate=rate)
    return Run(Config(SingleLocation(16, dim), optimizer=optimizer, precision="fp32"), seed)


def progress(running, done=0, failed=0, left=None, memory=10**8):
    return Progress(500, done, failed, running, 10_000, 10.0, left, memory)


def lines(view, width=100):
    file = io.StringIO()
    Console(file=file, width=width).print(view)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def live_table(height=40, forecaster=None):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height)
    return LiveTable(console, forecaster)


def result(run, state: State = "reached", plateau=90.0, reason=None):
    emergence = Emergence(plateau, plateau, plateau, state)
    return Result(run, state, emergence, 100, None, {}, None, reason)


def words(table):
    """Return the rows of the table, without bar and heads."""
    return [row.split() for row in lines(table.view())[2:]]


def test_a_cell_in_training_shows_its_losses_so_far():
    table = live_table()
    table.begin([run(dim, seed) for dim in (4, 8) for seed in range(2)])
    for step, loss in ((0, 1.0), (25, 1.0), (50, 0.5), (75, 0.01)):
        table.training(progress([(run(4, seed), step, loss) for seed in range(2)], left=40.0))
    bar, heads, *_ = lines(table.view())
    assert "0 of 500 runs, 1,000 steps/s, 100 MB, about 40 s left" in bar
    assert heads.split() == ["dim", "runs", "plateau", "step", "loss", "over", "training"]
    training, waiting = words(table)
    assert training[:6] == ["4", "0", "of", "2", "75", "0.01"]
    assert training[6][0] == "█"
    assert training[6][-1] == "▁"
    assert waiting == ["8", "0", "of", "2", "waiting"]


class Oracle:
    """A forecaster that expects every run to emerge at step 100."""

    def update(self, now):
        return {run.identity: Note("step 100", 100.0) for run, _, _ in now.running}


def test_with_a_forecaster_there_is_a_column_of_forecasts():
    table = live_table(forecaster=Oracle())
    runs = [run(4), run(8)]
    table.begin(runs)
    table.training(progress([(each, 25, 0.5) for each in runs]))
    assert lines(table.view())[1].split()[-1] == "forecast"
    assert [row[-2:] for row in words(table)] == [["step", "100"]] * 2


def test_a_narrow_window_keeps_axes_runs_and_plateaus():
    table = live_table(forecaster=Oracle())
    table.begin([run(4), run(8)])
    table.training(progress([(run(4), 25, 0.5)]))

    def heads(width):
        printed = map(str.split, lines(table.view(), width))
        return next(words for words in printed if words[0] == "dim")

    assert heads(40) == ["dim", "runs", "plateau", "step", "loss"]
    assert heads(24) == ["dim", "runs", "plateau"]


def test_cells_that_are_done_have_their_plateaus_and_failures_their_reasons():
    table = live_table()
    runs = [run(dim, seed) for dim in (4, 8, 16) for seed in range(3)]
    table.begin(runs, {runs[0].identity: {"state": "reached", "plateau": 100.0}})
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


def test_five_hundred_runs_fit_a_window_of_twenty_lines():
    table = live_table(height=20)
    table.begin([run(dim, seed) for dim in range(1, 101) for seed in range(5)])
    running = [(run(dim, seed), 100 * seed, 1.0 + seed) for dim in (50, 99) for seed in range(5)]
    table.training(progress(running))
    rows = lines(table.view(), width=80)
    assert len(rows) <= 20
    cells = [row.split()[0] for row in rows[2:-1]]
    assert {"50", "99"} <= set(cells)  # those in training
    assert cells == sorted(cells, key=int)
    assert rows[-1] == f"{100 - len(cells)} more cells"
    assert not any("…" in line for line in rows)


def test_the_bar_shows_what_is_done_at_least():
    """Two of ten runs have ended, and two more are half way to their last step."""
    table = live_table()
    runs = [run(seed=seed) for seed in range(10)]
    table.begin(runs)
    half = runs[0].config.steps // 2
    running = [(runs[2], half, 1.0), (runs[3], half, 1.0)]
    table.training(Progress(10, 2, 0, running, 10, 1.0, None, 1))
    assert "30%" in lines(table.view())[0]


def test_the_time_left_is_extrapolated_before_training_estimates_it(monkeypatch):
    """Two of ten runs were finished before; four ended in 40 s, so the other four take 40 s."""
    clock = iter([90.0, 100.0, 140.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    runs = [run(seed=seed) for seed in range(10)]
    table = live_table()
    table.begin(runs, {r.identity: {"state": "reached", "plateau": 9.0} for r in runs[:2]})
    table.training(Progress(10, 6, 0, [], 10, 1.0, None, 5 * 10**6))
    monkeypatch.undo()
    assert "6 of 10 runs, 10 steps/s, 5 MB, about 40 s left" in lines(table.view())[0]


def test_other_work_has_one_bar_each():
    table = live_table()
    for step in range(4):
        table("SGD", step / 9, f"step {step} of 9")
    table("drawing", 0.5)
    first, second = lines(table.view())
    assert first.split()[-2:] == ["100%", "SGD"]
    assert second.split()[-2:] == ["50%", "drawing"]


def test_a_terminal_gets_the_table_and_its_cursor_back():
    file = io.StringIO()
    with live_progress(Console(file=file, force_terminal=True, width=100)) as watch:
        watch.begin([run()])
        watch.training(progress([(run(), 25, 0.5)]))
        watch.training(progress([(run(), 50, 0.25)]))
    text = file.getvalue()
    assert "0.25" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_other_output_gets_a_line_now_and_then():
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
