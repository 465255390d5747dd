"""Progress displays: a live table in a terminal, log lines elsewhere.

`emergo train`, `emergo study run`, `emergo figure` and `emergo demo` share them.
"""

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core import terminal as _terminal
from ..core.terminal import duration, memory, plateau_text, table
from ..store.claims import Note
from ..store.status import soonest
from ..training import Progress, Result, Run
from .cells import median_plateau

FEWEST_ROWS = 6  # of the table, in a window of any height
FAILURES = 3  # how many of the latest failures are shown with their reasons
POINTS = 400  # most points of a run's loss that are kept
SPARK = 18  # characters of a sparkline
BARS = "▁▂▃▄▅▆▇█"
Columns = Mapping[str, Sequence[Any]]
Rows = Mapping[str, Mapping[str, Any]]  # finished runs by identity, with `state` and `plateau`


class Forecaster(Protocol):
    """A forecaster of runs in training, such as `emergo.forecasting.RunForecasts`."""

    def update(self, now: Progress) -> Mapping[str, Note]:
        """Return the current forecasts by the identity of their runs."""
        ...


def forecaster_path(forecaster: Forecaster | None) -> str:
    """Return the type of a forecaster as `module:Class`, for another process; empty for None."""
    if forecaster is None:
        return ""
    kind = type(forecaster)
    return f"{kind.__module__}:{kind.__qualname__}"


def load_forecaster(path: str) -> Forecaster | None:
    """Create the forecaster that `forecaster_path` names."""
    if not path:
        return None
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)()


class Watcher:
    """A receiver of progress; this base class ignores it.

    **Attributes:**

    - `forecaster`: forecasts runs in training, for the display and for the claims that other
      processes read. `None` disables forecasts.
    """

    forecaster: Forecaster | None = None

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        """Report work other than training: its name, the share that is done, and a status text."""

    def begin(
        self,
        runs: Sequence[Run],
        finished: Callable[[], Rows] = dict,
        columns: Columns | None = None,
    ) -> None:
        """Announce the runs of a plan before training starts.

        **Arguments:**

        - `runs`: all runs, including finished ones.
        - `finished`: returns the finished runs.
        - `columns`: the columns that define the cells, with one value per run. By default the
          fields of the configs that differ.
        """

    def training(self, now: Progress) -> None:
        """Report the progress of training; called after every chunk of steps."""

    def ended(self, result: Result) -> None:
        """Report a finished run."""


class Callback(Watcher):
    """A watcher that passes the progress of training to a function."""

    def __init__(
        self, function: Callable[[Progress], None], forecaster: Forecaster | None = None
    ) -> None:
        self.function = function
        self.forecaster = forecaster

    def training(self, now: Progress) -> None:
        self.function(now)


def progress_line(now: Progress) -> str:
    """Format the progress of training as one line."""
    left = "" if now.seconds_left is None else f", about {duration(now.seconds_left)} left"
    failed = f", {now.failed} failed" if now.failed else ""
    return (
        f"{now.done} of {now.total} runs{failed}, {now.rate:,.0f} steps/s, "
        f"{memory(now.bytes)}{left}"
    )


def varying_columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the fields of the runs' configs that differ, with one value per run."""
    rows = [run.config.columns() for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: values for name, values in columns.items() if len(set(map(repr, values))) > 1}


def sparkline(values: Sequence[float]) -> str:
    """Draw values as a row of bars that start at zero; nonfinite values leave a gap."""
    top = max((value for value in values if np.isfinite(value)), default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(
        BARS[round(max(value, 0.0) / top * (len(BARS) - 1))] if np.isfinite(value) else " "
        for value in values
    )


@dataclasses.dataclass
class _Cell:
    """The runs that differ only in their seeds."""

    words: tuple[str, ...]
    planned: int = 0
    plateaus: list[float] = dataclasses.field(default_factory=list)
    censored: int = 0
    failed: int = 0
    running: list[str] = dataclasses.field(default_factory=list)

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
        median, bound = median_plateau(self.plateaus, self.censored)
        if median is not None:
            return plateau_text(median, bound)
        return "done" if self.plateaus else ""  # without a threshold, plateaus are NaN


class LiveTable(Watcher):
    """A progress bar with the time left, a table with one row per cell, and the latest failures.

    A row shows the median plateau of the runs that ended, and the step and loss of those in
    training. With a forecaster, it also shows when the first of them is expected to emerge.
    """

    def __init__(self, console: Console, forecaster: Forecaster | None = None) -> None:
        self.console = console
        self.forecaster = forecaster
        self.stages: dict[str, tuple[float, str]] = {}
        self.cells: dict[tuple[Any, ...], _Cell] = {}
        self.cell_of: dict[str, _Cell] = {}  # by identity of a run
        self.columns: list[str] = []
        self.losses: dict[str, list[tuple[int, float]]] = {}  # of the runs in training
        self.notes: Mapping[str, Note] = {}
        self.failures: list[str] = []
        self.now: Progress | None = None
        self.since = time.monotonic()
        self.at = self.since  # the time of the latest progress
        self.before = 0  # how many runs were finished when training started
        self.body: RenderableType = Text("compiling", style="dim")

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        self.stages |= {earlier: (1.0, "") for earlier in self.stages if earlier != what}
        self.stages[what] = (share, detail)

    def begin(
        self,
        runs: Sequence[Run],
        finished: Callable[[], Rows] = dict,
        columns: Columns | None = None,
    ) -> None:
        columns = varying_columns(runs) if columns is None else columns
        self.columns = list(columns)
        self.cells = {}
        self.cell_of = {}
        self.now = None
        self.stages = {}
        values = list(zip(*columns.values(), strict=True)) or [()] * len(runs)
        for run, row in zip(runs, values, strict=True):
            cell = self.cells.setdefault(row, _Cell(tuple(map(_words, row))))
            cell.planned += 1
            self.cell_of[run.identity] = cell
        self.cells = dict(
            sorted(self.cells.items(), key=lambda item: [_order(value) for value in item[0]])
        )
        for identity, outcome in finished().items():
            if identity in self.cell_of:
                self.cell_of[identity].end(outcome["state"], float(outcome["plateau"]))
        self.since = time.monotonic()
        self.before = sum(cell.ended for cell in self.cells.values())
        self._draw()

    def ended(self, result: Result) -> None:
        identity = result.run.identity
        self.losses.pop(identity, None)
        if identity not in self.cell_of:
            return
        cell = self.cell_of[identity]
        cell.end(result.state, result.plateau.time)
        if result.state == "failed":
            where = [*map(" ".join, zip(self.columns, cell.words, strict=True))]
            where.append(f"seed {result.run.seed}: {result.reason or 'failed'}")
            self.failures.append(", ".join(where))

    def training(self, now: Progress) -> None:
        if not all(run.identity in self.cell_of for run, _, _ in now.running):
            self.begin([run for run, _, _ in now.running])
        self.now = now
        self.at = time.monotonic()
        for cell in self.cells.values():
            cell.running = []
        for run, step, loss in now.running:
            losses = self.losses.setdefault(run.identity, [])
            if not losses or step > losses[-1][0]:
                losses.append((step, loss))
            if len(losses) > POINTS:
                del losses[1::2]
            self.cell_of[run.identity].running.append(run.identity)
        if self.forecaster is not None:
            self.notes = self.forecaster.update(now)
        self._draw()

    def _share(self) -> float:
        """Return a lower bound of the share that is done: most runs end before their last step."""
        if self.now is None or not self.now.total:
            return 0.0
        partly = sum(step / run.config.steps for run, step, _ in self.now.running)
        return min(1.0, (self.now.done + partly) / self.now.total)

    def _left(self) -> float | None:
        """Return the seconds left.

        Training estimates them once a run of the current call has ended. Before that, extrapolate
        from the runs that have ended since the table was first shown.
        """
        if self.now is None:
            return None
        if self.now.seconds_left is not None:
            return max(self.now.seconds_left - (time.monotonic() - self.at), 0.0)
        done = self.now.done - self.before
        return (self.at - self.since) * (self.now.total - self.now.done) / done if done else None

    def _draw(self) -> None:
        """Update the table. If the window is too low for all cells, it shows cells in training
        first, then cells with finished runs."""
        room = max(
            FEWEST_ROWS,
            self.console.height - len(self.stages) - min(len(self.failures), FAILURES) - 5,
        )
        ranked = sorted(self.cells.values(), key=lambda cell: (not cell.running, -cell.ended))
        split = len(ranked) if len(ranked) <= room else room - 1
        shown = set(map(id, ranked[:split]))
        heads = [*self.columns, "runs", "plateau", "step", "loss", "over training"]
        heads += [] if self.forecaster is None else ["forecast"]
        rows = table(*heads, left=("over training", "forecast"))
        for cell in self.cells.values():
            if id(cell) in shown:
                style = "" if cell.running or cell.ended else "dim"
                rows.add_row(*cell.words, *self._row(cell), style=style)
        parts: list[RenderableType] = [rows] if self.cells else []
        if split < len(ranked):
            parts.append(_line(f"{len(ranked) - split} more cells", "dim"))
        parts += [_line(f"failed: {words}", "red") for words in self.failures[-FAILURES:]]
        self.body = Group(*parts)

    def _row(self, cell: _Cell) -> list[str]:
        runs = f"{cell.ended} of {cell.planned}{f', {cell.failed} failed' if cell.failed else ''}"
        if not cell.running:
            return [runs, cell.plateau(), "" if cell.ended else "waiting"]
        curves = [self.losses[identity] for identity in cell.running]
        steps = [curve[-1][0] for curve in curves]
        loss = float(np.median([curve[-1][1] for curve in curves]))
        number = f"{loss:.3f}" if loss < 1000 else f"{loss:.0e}"
        step = f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}"
        row = [runs, cell.plateau(), step, number, sparkline(_median_curve(curves))]
        if self.forecaster is not None:
            notes = [self.notes[identity] for identity in cell.running if identity in self.notes]
            row.append(soonest(notes, len(cell.running)))
        return row

    def view(self) -> RenderableType:
        """Return what the screen shows now; the time left is updated between chunks."""
        lines: list[RenderableType] = [
            _bar(share, f"{what}: {detail}" if detail else what)
            for what, (share, detail) in self.stages.items()
        ]
        if self.now is not None:
            now = dataclasses.replace(self.now, seconds_left=self._left())
            lines.append(_bar(self._share(), progress_line(now)))
        elif self.cells:
            lines.append(_bar(0.0, f"compiling, {duration(time.monotonic() - self.since)}"))
        return Group(*lines, self.body) if self.cells or not lines else Group(*lines)


def _median_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Return the median loss of several runs at evenly spaced steps, up to the furthest run."""
    grid = np.linspace(0, max(curve[-1][0] for curve in curves), SPARK)
    columns = [np.array(curve, float).T for curve in curves]
    values = np.array([np.interp(grid, steps, losses, right=np.nan) for steps, losses in columns])
    return [
        float(np.nanmedian(column)) if np.isfinite(column).any() else np.nan for column in values.T
    ]


def _line(words: str, style: str) -> Text:
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _bar(share: float, words: str) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=24)
    row.add_column(width=4, justify="right")
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=1.0, completed=share, width=24), f"{share:.0%}", words)
    return row


def _words(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if number else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers first, in numeric order."""
    number = isinstance(value, int | float)
    return (not number, float(value) if number else 0.0, str(value))


class LogLines(Watcher):
    """A log for output that is not a terminal: at most one line every `every` seconds."""

    def __init__(
        self, console: Console, every: float, forecaster: Forecaster | None = None
    ) -> None:
        self.console = console
        self.every = every
        self.forecaster = forecaster
        self.last = time.monotonic()

    def _say(self, line: str) -> None:
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            self.console.print(f"emergo: {line}", soft_wrap=True, highlight=False, markup=False)

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        self._say(f"{what}: {detail}" if detail else what)

    def training(self, now: Progress) -> None:
        self._say(progress_line(now))


@contextlib.contextmanager
def live_progress(
    console: Console | None = None, every: float = 10.0, forecaster: Forecaster | None = None
) -> Iterator[Watcher]:
    """Show progress on standard error inside the block: a live table in a terminal, else a line
    every `every` seconds."""
    console = console or _terminal.console(stderr=True)
    if not console.is_terminal:
        yield LogLines(console, every, forecaster)
        return
    shown = LiveTable(console, forecaster)
    with Live(get_renderable=shown.view, console=console, transient=True, refresh_per_second=4):
        yield shown
