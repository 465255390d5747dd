"""What the explorer shows at a time: a set of runs, one value per run in every column, with a way to their curves."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .._json import to_jsonable

OUTCOME = ("plateau", "plateau_low", "plateau_high", "censored", "state", "steps", "failed_step", "reason", "tries")
"""Columns that say what became of a run, in the order of the table."""
_NO_AXES = frozenset((*OUTCOME, "identity", "seed", "device", "provenance", "run", "unit", "chosen", "teacher_loss"))
_INDEX = re.compile(r"(?:_\d+)+$")
Columns = dict[str, list[Any]]


@runtime_checkable
class Curves(Protocol):
    """A way to the curves of runs."""

    def names(self, identity: str) -> list[str]:
        """The columns that a run has beside its steps."""
        ...

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Columns of a run, by default all, with its steps as `step`; empty where it has no curves that can be read."""
        ...

    def stamp(self, identity: str) -> Any:
        """Changes when the curves of a run do, and differs from those of all other curves; None where there are none."""
        ...


@dataclasses.dataclass(frozen=True)
class RunSet:
    """Runs that are shown together: those of a study, of a figure, of records or of a store."""

    name: str
    kind: str  # study, figure, records or runs
    version: str  # changes with what it holds
    axes: list[str]
    columns: Columns
    curves: Curves
    config: Callable[[str], Mapping[str, Any]]  # of a run, as plain data
    planned: int | None = None  # how many runs there will be; None where that is not known
    law: Mapping[str, Any] | None = None  # the law that the study asks for: its y, x and fixed exponents
    tune: str | None = None  # an axis of which every cell keeps one value
    figure: Mapping[str, Any] | None = None  # the figure's JSON object
    notes: tuple[str, ...] = ()  # what could not be read, and why

    @property
    def runs(self) -> list[str]:
        return self.columns["identity"]

    def families(self) -> dict[str, list[list[int]]]:
        """The curves by name, with the indices of those that have several numbers per evaluation (layers, heads, lags). Looked
        for in runs from all over the set."""
        columns: dict[str, None] = {}
        for identity in self.runs[:: max(1, len(self.runs) // 8)]:
            columns |= dict.fromkeys(self.curves.names(identity))
        families: dict[str, list[list[int]]] = {}
        for column in columns:
            name = _INDEX.sub("", column)
            families.setdefault(name, []).append([int(i) for i in column[len(name) + 1 :].split("_") if i])
        return {name: sorted(indices) for name, indices in families.items()}

    def curve(self, identity: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a curve; of several numbers per evaluation, the largest."""
        columns = self.curves.read(identity, [name])
        if name not in columns:
            members = [column for column in self.curves.names(identity) if _INDEX.sub("", column) == name]
            columns = self.curves.read(identity, members) if members else {}
        steps = columns.pop("step", np.zeros(0))
        if not columns:
            return np.zeros(0), np.zeros(0)
        values = [np.asarray(values, np.float64) for values in columns.values()]
        return np.asarray(steps, np.float64), np.fmax.reduce(values)

    def table(self) -> dict[str, Any]:
        """The runs as the page gets them: what differs between them as columns, what is the same once."""
        columns, constants = {}, {}
        for name, values in self.columns.items():
            distinct = {repr(value) for value in values}
            if name in ("identity", "seed", "state", "plateau", *self.axes) or len(distinct) > 1:
                columns[name] = [_cell(value) for value in values]
            elif values and name not in ("run", "provenance") and _cell(values[0]) is not None:
                constants[name] = _cell(values[0])
        columns = {name: values for name, values in columns.items() if name not in ("run", "provenance")}
        return {"version": self.version, "columns": columns, "constants": constants}


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else to_jsonable(value)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Rows as columns; None where a row lacks one."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {"identity": [], **{name: [row.get(name) for row in rows] for name in names}}


def varied(columns: Columns) -> list[str]:
    """The columns that could be axes: what differs between runs and is no outcome."""
    return [
        name for name, values in columns.items() if name not in _NO_AXES and len({repr(v) for v in values if v is not None}) > 1
    ]
