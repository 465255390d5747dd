"""Training in tables: one that moves while it goes on, and one of what came out."""

import contextlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._terminal import duration, memory, plateau_words, table
from ..engine import Progress, Run
from ..studies import Result
from ..tasks import MarkovChain

ROWS = 15
"""The most cells that the moving table shows one by one."""


class Axes(NamedTuple):
    """What tells the cells of a grid apart; runs of one cell differ in their seed."""

    length: int
    dim: int
    """Or the size of the vocabulary."""
    burst: float
    repeat: float
    learning_rate: float

    @classmethod
    def of(cls, run: Run) -> "Axes":
        task = run.config.task
        if isinstance(task, MarkovChain):
            return cls(task.length, task.vocabulary, 1.0, 0.0, run.config.optimizer.learning_rate)
        return cls(task.length, task.inputs, task.burst, task.repeat, run.config.optimizer.learning_rate)

    def words(self) -> list[str]:
        return [f"{value:g}" for value in self]


def progress_line(now: Progress, before: int = 0) -> str:
    """How far training is, in one line. `before` runs were finished when it began."""
    left = "" if now.seconds_left is None else f", about {duration(now.seconds_left)} left"
    failed = f", {now.failed} failed" if now.failed else ""
    return f"{now.done + before} of {now.total + before} runs{failed}, {now.rate:,.0f} steps/s, {memory(now.bytes)}{left}"


def progress_table(now: Progress, before: int = 0, rows: int = ROWS) -> Group:
    """How far training is, and a row a cell in training: how many runs, at which steps, with which test losses.

    Of more than `rows` cells the last ones share a row, so that the table fits a screen however many runs there are.
    """
    cells: dict[Axes, list[tuple[int, float]]] = {}
    for run, step, loss in now.running:
        cells.setdefault(Axes.of(run), []).append((step, loss))
    made = table("length", "dim", "burst", "repeat", "rate", "training", "step", "loss min", "median", "max")
    shown = sorted(cells)[: rows if len(cells) <= rows else rows - 1]
    for axes in shown:
        made.add_row(*axes.words(), *_seen(cells.pop(axes)))
    if cells:
        rest = list(itertools.chain.from_iterable(cells.values()))
        made.add_row(f"{len(cells)} more", "", "", "", "", *_seen(rest), style="dim")
    line = Text(progress_line(now, before), no_wrap=True, overflow="ellipsis")
    return Group(line, made) if now.running else Group(line)


def _seen(running: Sequence[tuple[int, float]]) -> list[str]:
    steps, losses = [step for step, _ in running], [loss for _, loss in running]
    step = f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}"
    spread = (min(losses), statistics.median(losses), max(losses))
    return [f"{len(running)}", step, *(f"{x:.3f}" if x < 1000 else f"{x:.0e}" for x in spread)]


@contextlib.contextmanager
def live_progress(before: int = 0, console: Console | None = None, every: float = 10.0) -> Iterator[Callable[[Progress], None]]:
    """What to hand to `progress` of [`emergo.studies.run_all`][]: the table on standard error, where that is a terminal.

    Elsewhere a line at most every `every` seconds.
    """
    console = Console(file=sys.stderr) if console is None else console
    if console.is_terminal:
        with Live("compiling", console=console, transient=True) as live:
            yield lambda now: live.update(progress_table(now, before))
        return
    said = time.monotonic()

    def say(now: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= every:
            said = time.monotonic()
            console.print(progress_line(now, before), soft_wrap=True, highlight=False)

    yield say


def cell_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row a cell: how many runs, their median, smallest and largest plateau, how many are censored and how many failed.

    A censored run counts with the last step observed: a largest plateau that is one, and a median that rests on one (`bound`),
    are lower bounds. A failed run has no plateau.
    """
    cells: dict[Axes, list[Result]] = {}
    for result in results:
        cells.setdefault(Axes.of(result.run), []).append(result)
    rows = []
    for axes, members in sorted(cells.items()):
        plateaus = [r.emergence.time for r in members if not math.isnan(r.emergence.time)]
        censored = sum(r.emergence.censored for r in members)
        rows.append(
            axes._asdict()
            | {
                "runs": len(members),
                "plateau": statistics.median(plateaus) if plateaus else None,
                "plateau_min": min(plateaus, default=None),
                "plateau_max": max(plateaus, default=None),
                "bound": censored > 0 and 2 * censored >= len(plateaus),
                "censored": censored,
                "failed": sum(r.emergence.state == "failed" for r in members),
            }
        )
    return rows


def cell_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows of [`emergo.report.cell_rows`][] for reading."""
    made = table("length", "dim", "burst", "repeat", "rate", "runs", "plateau", "min-max", "censored", "failed")
    for row in rows:
        axes = Axes(**{name: row[name] for name in Axes._fields})
        made.add_row(*axes.words(), str(row["runs"]), *plateau_words(row), str(row["censored"]), str(row["failed"]))
    return made
