"""A set of runs: one value per run in every column, and access to the curves."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ..core.errors import InputError
from ..core.json import as_cell, to_jsonable
from ..store.curves import LONGEST, split_index

# Columns that cannot be axes: outcomes, and what identifies a run.
_NO_AXES = frozenset(
    (
        *("plateau", "plateau_low", "plateau_high", "censored", "state", "steps", "failed_step"),
        *("reason", "tries", "identity", "seed", "device", "provenance", "run", "unit", "chosen"),
        "teacher_loss",
        "unverified",
    )
)
_HIDDEN = ("run", "provenance")  # columns that the page does not show
_NUMBERS = ("plateau", "plateau_low", "plateau_high", "steps", "failed_step", "seed", "tries")
_TEXTS = ("state", "reason", "device", "part", "unit")
Columns = dict[str, list[Any]]


@runtime_checkable
class Curves(Protocol):
    """Access to the curves of runs."""

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return columns of a run (by default all) and `step`; empty if they cannot be read."""
        ...

    def stamp(self, identity: str) -> Any:
        """Return a value that changes with the curves of a run; None without curves."""
        ...


class Learned(NamedTuple):
    """What counts as learned: a metric that falls below, or rises above, a threshold."""

    metric: str = "loss"
    below: float | None = None
    above: float | None = None


@dataclasses.dataclass(frozen=True)
class RunSet:
    """The runs of a study, a figure, records or a store."""

    name: str
    kind: str  # study, figure, records, runs or log
    version: str  # changes with the content
    axes: list[str]
    columns: Columns
    curves: Curves
    config: Callable[[str], Mapping[str, Any]]  # config of a run as plain data
    planned: int | None = None  # number of planned runs, if known
    law: Mapping[str, Any] | None = None  # y, x and fixed exponents of the study's law
    tune: str | None = None  # tuned axis: every cell keeps its best value
    figure: Mapping[str, Any] | None = None  # content of the figure's JSON file
    picture: Path | None = None  # file of the figure's picture, which may be missing
    notes: tuple[str, ...] = ()  # files that could not be read, with reasons
    learned: Learned | None = None  # what counts as learned in a log, if it was given

    @property
    def runs(self) -> list[str]:
        return self.columns["identity"]

    def families(self) -> dict[str, list[list[int]]]:
        """Return the curves by name, with the indices of layers, heads or lags.

        A curve with one number per evaluation has the single index []. About eight runs from all
        over the set are searched.
        """
        columns: dict[str, None] = {}
        for identity in self.runs[:: max(1, len(self.runs) // 8)]:
            columns |= dict.fromkeys(self.curves.read(identity))
        columns.pop("step", None)
        families: dict[str, list[list[int]]] = {}
        for column in columns:
            name, index = split_index(column)
            families.setdefault(name, []).append(list(index))
        return {name: sorted(indices) for name, indices in families.items()}

    def curve(self, identity: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values of a curve: the largest of layers, heads or lags."""
        columns = self.curves.read(identity, [name])
        if name not in columns:
            columns = {
                column: values
                for column, values in self.curves.read(identity).items()
                if column == "step" or split_index(column)[0] == name
            }
        steps = columns.pop("step", np.zeros(0))
        if not columns:
            return np.zeros(0), np.zeros(0)
        values = [np.asarray(column, np.float64) for column in columns.values()]
        return np.asarray(steps, np.float64), np.fmax.reduce(values)

    def table(self) -> dict[str, Any]:
        """Return the table for the page: columns that differ between runs, and constants."""
        always = {"identity", "seed", "state", "plateau", *self.axes}
        if any(self.columns.get("censored", ())):
            always.add("censored")  # plateaus are lower bounds, also if all of them are
        columns = {}
        constants = {}
        for name, values in self.columns.items():
            if name in _HIDDEN:
                continue
            if name in always or len(set(map(repr, values))) > 1:
                columns[name] = to_jsonable(values)
            elif values and (constant := to_jsonable(values[0])) is not None:
                constants[name] = constant
        return {"version": self.version, "columns": columns, "constants": constants}


@contextlib.contextmanager
def contained(note: Callable[[str], None], what: str = "") -> Iterator[None]:
    """Turn every error inside the block into one line, so that the rest is shown.

    **Arguments:**

    - `note`: receives the line.
    - `what`: the file, set or run that the line names; the messages of emergo name it themselves.
    """
    try:
        yield
    except Exception as error:
        words = " ".join(str(error).split())[:500] or type(error).__name__
        if not isinstance(error, ValueError | OSError):
            words = f"{type(error).__name__}: {words}"
        note(words if isinstance(error, InputError) or not what else f"{what}: {words}")


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Turn rows into columns; missing values become None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {"identity": [], **{name: [row.get(name) for row in rows] for name in names}}


def check_columns(columns: Columns) -> Columns:
    """Check the columns of a table from a file, and turn cells that are not scalars into text.

    Raises `ValueError` if the runs have no distinct names, or a column of outcomes has values of
    another kind.
    """
    names = columns.get("identity", [])
    if not all(isinstance(name, str) and 0 < len(name) <= LONGEST for name in names):
        raise ValueError("the column identity does not hold the names of runs")
    if len(set(names)) < len(names):
        raise ValueError("the column identity has a run twice")
    kinds: dict[str, Any] = {"censored": bool}
    kinds.update(dict.fromkeys(_NUMBERS, int | float), **dict.fromkeys(_TEXTS, str))
    for name in columns:
        if len(name) > LONGEST:
            raise ValueError(f"a column has a name of {len(name):,} letters")
        columns[name] = list(map(as_cell, columns[name]))
        kind = kinds.get(name, object)
        for value in columns[name]:
            if not (value is None or isinstance(value, kind)):
                raise ValueError(f"the column {name} has a cell of another kind: {value!r:.60}")
    return columns


def varied(columns: Columns) -> list[str]:
    """List the columns that may be axes: they differ between runs and are not outcomes."""
    return [
        name
        for name, values in columns.items()
        if name not in _NO_AXES and len({repr(v) for v in values if v is not None}) > 1
    ]


def smooth(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return the running mean of a curve over `width` evaluations around each point.

    Near an end the mean covers fewer evaluations, equally many on both sides, so that the ends
    stay. Non-finite points are left out.
    """
    if width < 2:
        return x, y
    finite = np.isfinite(x) & np.isfinite(y)
    x = x[finite]
    y = y[finite]
    rows = np.arange(len(y))
    half = np.minimum(np.minimum(rows, rows[::-1]), (width - 1) // 2)
    sums = np.concatenate([[0.0], np.cumsum(y)])
    return x, (sums[rows + half + 1] - sums[rows - half]) / (2 * half + 1)


def thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], points: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return at most `points` points of a curve, without losing a peak or a drop.

    The evaluations between the first and the last are divided into buckets. The smallest and the
    largest value of each bucket are kept, together with the two ends. Half of the bucket edges are
    even in the index and half in its logarithm, because the page shows both kinds of axes.
    Non-finite points are left out.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        x = x[finite]
        y = y[finite]
    if len(x) <= points:
        return x, y
    starts, bucket = _buckets(len(x) - 2, points)
    values = y[1:-1]
    kept = np.zeros(len(x), bool)
    kept[[0, -1]] = True
    first = np.zeros(len(starts), int)
    for extreme in (np.minimum, np.maximum):
        # Positions of each bucket's extreme value, last first: of equal ones the first is kept.
        places = np.flatnonzero(values == extreme.reduceat(values, starts)[bucket])[::-1]
        first[bucket[places]] = places
        kept[1 + first] = True
    return x[kept], y[kept]


@functools.lru_cache(64)  # most curves of a set have one of a few lengths
def _buckets(inner: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each bucket of `inner` values starts, and the bucket of each value."""
    half = max(1, (points - 2) // 4)
    linear = np.linspace(0, inner, half, endpoint=False)
    logarithmic = np.geomspace(1, inner, half, endpoint=False)
    starts = np.unique(np.concatenate([linear, logarithmic]).astype(int))
    return starts, np.repeat(np.arange(len(starts)), np.diff(np.append(starts, inner)))
