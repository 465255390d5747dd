"""How far training is: a table that moves while it goes on."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .. import _terminal
from .._terminal import duration, memory, table
from ..engine import Progress, Run
from ._axes import config_columns

ROWS = 15  # the most rows of the moving table, so that it fits a screen however many runs there are


def progress_line(now: Progress) -> str:
    """How far training is, in one line."""
    left = "" if now.seconds_left is None else f", about {duration(now.seconds_left)} left"
    failed = f", {now.failed} failed" if now.failed else ""
    return f"{now.done} of {now.total} runs{failed}, {now.rate:,.0f} steps/s, {memory(now.bytes)}{left}"


def varying_columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """What tells these runs apart but for their seeds: the fields of their configs that differ, with each run's value."""
    rows = [config_columns(run.config) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: values for name, values in columns.items() if len(set(map(repr, values))) > 1}


def progress_table(now: Progress) -> Group:
    """How far training is, and one row per cell in training: how many runs, at which steps, with which test losses. Of too
    many cells the last ones share a row."""
    line = Text(progress_line(now), no_wrap=True, overflow="ellipsis")
    if not now.running:
        return Group(line)
    columns = varying_columns([run for run, _, _ in now.running])
    cells: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for i, (_, step, loss) in enumerate(now.running):
        cells.setdefault(tuple(_words(values[i]) for values in columns.values()), []).append((step, loss))
    shown = table(*columns, "training", "step", "loss min", "median", "max")
    for cell in list(cells)[: ROWS if len(cells) <= ROWS else ROWS - 1]:
        shown.add_row(*cell, *_spread(cells.pop(cell)))
    if cells:
        rest = list(itertools.chain.from_iterable(cells.values()))
        shown.add_row(f"{len(cells)} more", *[""] * (len(columns) - 1), *_spread(rest), style="dim")
    return Group(line, shown)


def _words(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _spread(running: Sequence[tuple[int, float]]) -> list[str]:
    steps, losses = zip(*running, strict=True)
    step = f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}"
    spread = (min(losses), statistics.median(losses), max(losses))
    return [f"{len(running)}", step, *(f"{x:.3f}" if x < 1000 else f"{x:.0e}" for x in spread)]


@contextlib.contextmanager
def live_progress(console: Console | None = None, every: float = 10.0) -> Iterator[Callable[[Progress], None]]:
    """What to hand to `progress` of a study: the table on standard error, where that is a terminal; elsewhere a line at most
    every `every` seconds."""
    console = console or _terminal.console(stderr=True)
    if console.is_terminal:
        with Live("compiling", console=console, transient=True) as live:
            yield lambda now: live.update(progress_table(now))
        return
    last = time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            console.print(progress_line(now), soft_wrap=True, highlight=False)

    yield show
