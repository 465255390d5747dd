"""Progress displays: a live table in a terminal, log lines elsewhere.

`emergo train`, `emergo study run`, `emergo figure` and `emergo demo` share them.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core import terminal as _terminal
from ..core.terminal import FittedTable, duration, memory, plateau_text, short
from ..store.claims import Note
from ..store.status import soonest
from ..training import Progress, Result, Run
from .cells import median_plateau

BAR = 24  # columns of a progress bar
NARROW = 60  # columns; narrower windows show no bar
FEWEST_ROWS = 6  # of the table, in a window of any height
FAILURES = 3  # how many of the latest failures are shown with their reasons
SPARK = 18  # characters of a sparkline
BARS = "▁▂▃▄▅▆▇█"
Columns = Mapping[str, Sequence[Any]]
Rows = Mapping[str, Mapping[str, Any]]  # finished runs by identity, with `state` and `plateau`


class Forecaster(Protocol):
    """A forecaster of runs in training, such as `emergo.forecasting.RunForecasts`."""

    def update(self, now: Progress) -> Mapping[str, Note]:
        """Return the current forecasts by the identity of their runs."""
        ...


class Watcher:
    """A receiver of progress; this base class ignores it.

    **Arguments:**

    - `forecaster`: forecasts runs in training, for the display and for the claims that other
      processes read. `None` disables forecasts.
    """

    forecaster: Forecaster | None = None

    def __init__(self, forecaster: Forecaster | None = None) -> None:
        self.forecaster = forecaster

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        """Report work other than training: its name, the share that is done, and a status text."""

    def begin(
        self,
        runs: Sequence[Run],
        finished: Rows | None = None,
        columns: Columns | None = None,
    ) -> None:
        """Announce the runs of a plan before training starts.

        **Arguments:**

        - `runs`: all runs, including finished ones.
        - `finished`: the finished runs.
        - `columns`: the columns that define the cells, with one value per run. By default the
          fields of the configs that differ.
        """

    def training(self, now: Progress) -> None:
        """Report the progress of training; called after every chunk of steps."""

    def ended(self, result: Result) -> None:
        """Report a finished run."""


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
    top = max(filter(np.isfinite, values), default=0.0) or 1.0
    return "".join(
        BARS[round(max(value, 0.0) / top * (len(BARS) - 1))] if np.isfinite(value) else " "
        for value in values
    )


@dataclasses.dataclass(eq=False)
class _Cell:
    """The runs that differ only in their seeds."""

    words: tuple[str, ...]
    planned: int = 0
    plateaus: list[float] = dataclasses.field(default_factory=list)
    censored: int = 0
    failed: int = 0
    running: list[tuple[str, int, float]] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)  # median loss over training

    @property
    def ended(self) -> int:
        return len(self.plateaus) + self.failed

    def end(self, state: str, plateau: float) -> None:
        if state == "failed":
            self.failed += 1
        else:
            self.plateaus.append(plateau)
            self.censored += state == "censored"

    def train(self, running: list[tuple[str, int, float]]) -> None:
        """Take the identity, step and loss of the runs in training."""
        self.running = running
        if running:
            self.losses.append(float(np.median([loss for _, _, loss in running])))
        if len(self.losses) > SPARK:
            del self.losses[1::2]

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
        super().__init__(forecaster)
        self.console = console
        # Another thread draws these, so they are replaced as a whole.
        self.bars: dict[str, tuple[float, str]] = {}  # share and text by the name of the work
        self.body = Group()
        self.cells: list[_Cell] = []
        self.cell_of: dict[str, _Cell] = {}  # by identity of a run
        self.columns: list[str] = []
        self.failures: list[str] = []
        self.since = time.monotonic()
        self.before = 0  # how many runs were finished at `since`

    def __call__(self, what: str, share: float, detail: str = "") -> None:
        earlier = {name: (1.0, name) for name in self.bars}
        self.bars = earlier | {what: (share, f"{what}: {detail}" if detail else what)}

    def begin(
        self,
        runs: Sequence[Run],
        finished: Rows | None = None,
        columns: Columns | None = None,
    ) -> None:
        columns = varying_columns(runs) if columns is None else columns
        self.columns = list(columns)
        cells: dict[tuple[Any, ...], _Cell] = {}
        self.cell_of = {}
        values = list(zip(*columns.values(), strict=True)) or [()] * len(runs)
        for run, row in zip(runs, values, strict=True):
            cell = cells.setdefault(row, _Cell(tuple(map(short, row))))
            cell.planned += 1
            self.cell_of[run.identity] = cell
        self.cells = list(cells.values())
        for identity, outcome in (finished or {}).items():
            if identity in self.cell_of:
                self.cell_of[identity].end(outcome["state"], float(outcome["plateau"]))
        self.since = time.monotonic()
        self.before = sum(cell.ended for cell in self.cells)
        self.bars = {"training": (0.0, "compiling")}
        self._draw({})

    def ended(self, result: Result) -> None:
        cell = self.cell_of.get(result.run.identity)
        if cell is None:  # a run that another process has added to the plan
            return
        cell.end(result.state, result.plateau.time)
        if result.state == "failed":
            where = [*map(" ".join, zip(self.columns, cell.words, strict=True))]
            where.append(f"seed {result.run.seed}: {result.reason or 'failed'}")
            self.failures.append(", ".join(where))

    def training(self, now: Progress) -> None:
        done = now.done - self.before
        # Training estimates the time left once a run of the current call has ended. Before that,
        # extrapolate from the runs that have ended since the table was first shown.
        if now.seconds_left is None and done:
            left = (time.monotonic() - self.since) * (now.total - now.done) / done
            now = dataclasses.replace(now, seconds_left=left)
        # A lower bound of the share that is done: most runs end before their last step.
        partly = sum(step / run.config.steps for run, step, _ in now.running)
        share = min(1.0, (now.done + partly) / max(now.total, 1))
        self.bars = {"training": (share, progress_line(now))}
        running: dict[_Cell, list[tuple[str, int, float]]] = {cell: [] for cell in self.cells}
        for run, step, loss in now.running:
            if run.identity in self.cell_of:
                running[self.cell_of[run.identity]].append((run.identity, step, loss))
        for cell, members in running.items():
            cell.train(members)
        self._draw({} if self.forecaster is None else self.forecaster.update(now))

    def _draw(self, notes: Mapping[str, Note]) -> None:
        """Update the table. If the window is too low for all cells, it shows cells in training
        first, then cells with finished runs."""
        failures = self.failures[-FAILURES:]
        below = sum(1 + len(words) // self.console.width for words in failures)
        room = max(FEWEST_ROWS, self.console.height - len(self.bars) - below - 4)
        shown = self.cells
        if len(shown) > room:
            shown = sorted(shown, key=lambda cell: (not cell.running, -cell.ended))[: room - 1]
        heads = [*self.columns, "runs", "plateau", "step", "loss", "over training"]
        heads += [] if self.forecaster is None else ["forecast"]
        optional = ("over training", "forecast", "loss", "step")
        rows = FittedTable(*heads, left=optional[:2], optional=optional)
        for cell in self.cells:
            if cell in shown:
                style = "" if cell.running or cell.ended else "dim"
                rows.add_row(*cell.words, *self._row(cell, notes), style=style)
        lines = [(f"failed: {words}", "red") for words in failures]
        if len(shown) < len(self.cells):
            lines.insert(0, (f"{len(self.cells) - len(shown)} more cells", "dim"))
        texts = [Text(words, style) for words, style in lines]
        self.body = Group(rows, *texts)

    def _row(self, cell: _Cell, notes: Mapping[str, Note]) -> list[str]:
        runs = f"{cell.ended} of {cell.planned}{f', {cell.failed} failed' if cell.failed else ''}"
        if not cell.running:
            return [runs, cell.plateau(), "" if cell.ended else "waiting"]
        names, steps, _ = zip(*cell.running, strict=True)
        step = f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}"
        row = [runs, cell.plateau(), step, f"{cell.losses[-1]:.3g}", sparkline(cell.losses)]
        if self.forecaster is not None:
            row.append(soonest([notes[name] for name in names if name in notes], len(names)))
        return row

    def view(self) -> RenderableType:
        """Return what the screen shows now."""
        bars = Table.grid(padding=(0, 1))
        for share, words in self.bars.values():
            row: list[RenderableType] = [f"{share:>4.0%}", words]
            if self.console.width >= NARROW:
                row.insert(0, ProgressBar(total=1.0, completed=share, width=BAR))
            bars.add_row(*row)
        return Group(bars, self.body)


class LogLines(Watcher):
    """A log for output that is not a terminal: at most one line every `every` seconds."""

    def __init__(
        self, console: Console, every: float, forecaster: Forecaster | None = None
    ) -> None:
        super().__init__(forecaster)
        self.console = console
        self.every = every
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
