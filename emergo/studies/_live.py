"""What a person sees while something is computed: one display for `emergo train`, `figure`, `study` and `demo`."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .. import _terminal
from .._terminal import duration, memory, table
from ..engine import Progress, Result, Run
from ._axes import config_columns
from ._forecasts import RunForecasts
from ._status import soonest

FEWEST_ROWS = 6  # of the table, however low the window is
FAILURES = 3  # the last ones are shown with their reasons
POINTS = 400  # of the loss of a run that are kept
SPARK, BARS = 18, "▁▂▃▄▅▆▇█"
Columns = Mapping[str, Sequence[Any]]
Rows = Mapping[str, Mapping[str, Any]]  # finished runs by identity, with `state` and `plateau`


class Watcher:
    """Is told what is being computed; this one says nothing of it."""

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        """What is being done that is no training of runs, the share of it that is done, and words that change meanwhile."""

    def begin(self, runs: Sequence[Run], finished: Callable[[], Rows] = dict, columns: Columns | None = None) -> None:
        """These runs are about to be trained, but for those that are finished. `columns` tell them apart, with one value for
        each run; by default the fields that differ."""

    def training(self, now: Progress) -> None:
        """How far training is; called after every chunk."""

    def ended(self, result: Result) -> None:
        """A run has ended."""


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


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of bars over zero; a value that is not finite is a gap."""
    top = max((value for value in values if np.isfinite(value)), default=0.0)
    heights = [round(max(value, 0.0) / top * (len(BARS) - 1)) if np.isfinite(value) and top > 0 else -1 for value in values]
    return "".join(BARS[height] if height >= 0 else " " for height in heights)


@dataclasses.dataclass
class _Cell:
    """Runs that differ only in their seeds."""

    words: tuple[str, ...]
    planned: int = 0
    plateaus: list[float] = dataclasses.field(default_factory=list)
    censored: int = 0
    failed: int = 0
    running: list[str] = dataclasses.field(default_factory=list)
    touched: int = 0  # when something last happened here, as a count

    @property
    def ended(self) -> int:
        return len(self.plateaus) + self.failed

    def end(self, state: str, plateau: float) -> None:
        if state == "failed":
            self.failed += 1
        else:
            self.plateaus.append(plateau)
            self.censored += state == "censored"

    def plateau(self) -> str:
        known = [plateau for plateau in self.plateaus if np.isfinite(plateau)]
        if not known:
            return "done" if self.plateaus else ""  # of runs without a threshold
        return f"{'>' if self.censored and 2 * self.censored >= len(known) else ''}{statistics.median(known):.0f}"


class LiveTable(Watcher):
    """A bar with the time left, one row per cell (done with its plateau, in training with its loss so far), and failures."""

    def __init__(self, console: Console) -> None:
        self.console, self.since = console, time.monotonic()
        self.stages: dict[str, tuple[float, str]] = {}
        self.cells: dict[tuple[Any, ...], _Cell] = {}
        self.cell_of: dict[str, _Cell] = {}  # by identity of a run
        self.columns: list[str] = []
        self.losses: dict[str, list[tuple[int, float]]] = {}  # of the runs in training
        self.forecasts = RunForecasts()
        self.failures: list[str] = []
        self.now: Progress | None = None
        self.at, self.events, self.before = self.since, 0, 0  # before: how many runs were finished when training began
        self.body: RenderableType = Text("compiling", style="dim")

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        self.stages |= {earlier: (1.0, "") for earlier in self.stages if earlier != what}
        self.stages[what] = (share, detail)

    def begin(self, runs: Sequence[Run], finished: Callable[[], Rows] = dict, columns: Columns | None = None) -> None:
        columns = varying_columns(runs) if columns is None else columns
        self.columns, self.cells, self.cell_of, self.now, self.stages = list(columns), {}, {}, None, {}
        values = list(zip(*columns.values(), strict=True)) or [()] * len(runs)
        for run, row in zip(runs, values, strict=True):
            cell = self.cells.setdefault(row, _Cell(tuple(map(_words, row))))
            cell.planned += 1
            self.cell_of[run.identity] = cell
        self.cells = dict(sorted(self.cells.items(), key=lambda item: [_order(value) for value in item[0]]))
        for identity, outcome in finished().items():
            if identity in self.cell_of:
                self.cell_of[identity].end(outcome["state"], float(outcome["plateau"]))
        self.since, self.before = time.monotonic(), sum(cell.ended for cell in self.cells.values())
        self._draw()

    def ended(self, result: Result) -> None:
        identity = result.run.identity
        self.losses.pop(identity, None)
        if identity not in self.cell_of:
            return
        cell = self.cell_of[identity]
        self.events += 1
        cell.end(result.state, result.plateau.time)
        cell.touched = self.events
        if result.state == "failed":
            where = ", ".join(f"{name} {word}" for name, word in zip(self.columns, cell.words, strict=True))
            self.failures.append(f"{f'{where}, ' if where else ''}seed {result.run.seed}: {result.reason or 'failed'}")

    def training(self, now: Progress) -> None:
        if not all(run.identity in self.cell_of for run, _, _ in now.running):
            self.begin([run for run, _, _ in now.running])
        self.now, self.at = now, time.monotonic()
        for cell in self.cells.values():
            cell.running = []
        for run, step, loss in now.running:
            losses = self.losses.setdefault(run.identity, [])
            if not losses or step > losses[-1][0]:
                losses.append((step, loss))
            if len(losses) > POINTS:
                del losses[1::2]
            self.cell_of[run.identity].running.append(run.identity)
        self.forecasts.update(now)
        self._draw()

    def _share(self) -> float:
        """At least: most runs end before their last step."""
        if self.now is None or not self.now.total:
            return 0.0
        partly = sum(step / run.config.steps for run, step, _ in self.now.running)
        return min(1.0, (self.now.done + partly) / self.now.total)

    def _left(self) -> float | None:
        """Seconds: as the engine guesses, once a run of its call has ended; else by what ended while this was shown."""
        if self.now is None:
            return None
        passed, done = time.monotonic() - self.at, self.now.done - self.before
        if self.now.seconds_left is not None:
            return max(self.now.seconds_left - passed, 0.0)
        return (self.at - self.since) * (self.now.total - self.now.done) / done if done else None

    def _draw(self) -> None:
        """The table as it is now. Where not all cells fit, those in training come first, then what was last to end."""
        room = max(FEWEST_ROWS, self.console.height - 5 - len(self.stages) - min(len(self.failures), FAILURES))
        rank = sorted(self.cells.values(), key=lambda cell: (not cell.running, -cell.touched))
        shown = {id(cell) for cell in (rank if len(rank) <= room else rank[: room - 1])}
        rows = table(
            *self.columns, "runs", "plateau", "step", "loss", "over training", "forecast", left=("over training", "forecast")
        )
        for cell in self.cells.values():
            if id(cell) in shown:
                rows.add_row(*cell.words, *self._row(cell), style="" if cell.running or cell.ended else "dim")
        rest = [cell for cell in rank if id(cell) not in shown]
        parts: list[RenderableType] = [rows] if self.cells else []
        if rest:
            done = sum(cell.ended >= cell.planned for cell in rest)
            begun = sum(bool(cell.running) for cell in rest)
            counts = [(done, "done"), (begun, "in training"), (len(rest) - done - begun, "waiting")]
            more = ", ".join(f"{count} {what}" for count, what in counts if count)
            parts.append(Text(f"{len(rest)} more cells: {more}", style="dim", no_wrap=True, overflow="ellipsis"))
        last = [f"failed: {words}" for words in self.failures[-FAILURES:]]
        parts += [Text(words, style="red", no_wrap=True, overflow="ellipsis") for words in last]
        self.body = Group(*parts)

    def _row(self, cell: _Cell) -> list[str]:
        runs = f"{cell.ended} of {cell.planned}{f', {cell.failed} failed' if cell.failed else ''}"
        if not cell.running:
            return [runs, cell.plateau(), "" if cell.ended else "waiting", "", "", ""]
        curves = [self.losses[identity] for identity in cell.running]
        steps, last = [curve[-1][0] for curve in curves], [curve[-1][1] for curve in curves]
        loss = statistics.median(last)
        number = f"{loss:.3f}" if loss < 1000 else f"{loss:.0e}"
        step = f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}"
        told = [self.forecasts.told[identity] for identity in cell.running if identity in self.forecasts.told]
        forecast = soonest([(one.words, one.step) for one in told], len(cell.running))
        return [runs, cell.plateau(), step, number, sparkline(_median_curve(curves)), forecast]

    def view(self) -> RenderableType:
        """What is on the screen; the time left goes on between chunks."""
        lines: list[RenderableType] = []
        for what, (share, detail) in self.stages.items():
            lines.append(_bar(share, f"{what}{f': {detail}' if detail else ''}"))
        if self.now is not None:
            now = dataclasses.replace(self.now, seconds_left=self._left())
            lines.append(_bar(self._share(), progress_line(now)))
        elif self.cells:
            lines.append(_bar(0.0, f"compiling, {duration(time.monotonic() - self.since)}"))
        return Group(*lines, self.body) if self.cells or not lines else Group(*lines)


def _median_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """The median loss of several runs at steps that are evenly spread up to the furthest of them."""
    grid = np.linspace(0, max(curve[-1][0] for curve in curves), SPARK)
    columns = [np.array(curve, float).T for curve in curves]
    values = np.array([np.interp(grid, steps, losses, right=np.nan) for steps, losses in columns])
    return [float(np.nanmedian(column)) if np.isfinite(column).any() else np.nan for column in values.T]


def _bar(share: float, words: str) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=24)
    row.add_column(width=4, justify="right")
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=1.0, completed=share, width=24), f"{share:.0%}", words)
    return row


def _words(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return (not number, float(value) if number else 0.0, str(value))


class SeldomLines(Watcher):
    """Where there is no terminal: a line at most every `every` seconds."""

    def __init__(self, console: Console, every: float) -> None:
        self.console, self.every, self.last = console, every, time.monotonic()

    def _say(self, line: str) -> None:
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            self.console.print(f"emergo: {line}", soft_wrap=True, highlight=False, markup=False)

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        self._say(f"{what}: {detail}" if detail else what)

    def training(self, now: Progress) -> None:
        self._say(progress_line(now))


@contextlib.contextmanager
def live_progress(console: Console | None = None, every: float = 10.0) -> Iterator[Watcher]:
    """The display on standard error: a table that moves where that is a terminal, elsewhere a line every now and then."""
    console = console or _terminal.console(stderr=True)
    if not console.is_terminal:
        yield SeldomLines(console, every)
        return
    shown = LiveTable(console)
    with Live(get_renderable=shown.view, console=console, transient=True, refresh_per_second=4):
        yield shown
