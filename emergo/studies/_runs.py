"""A collection of finished runs: as tables, as laws, as pictures."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .._errors import InputError, unknown
from .._style import Picture, curve_plot, style
from .._terminal import counted
from ..engine import Result, Run, Trained
from ..measure import Forecast, Law
from ._cells import run_table, table_law
from ._curves import curve_frame
from ._forecasts import forecast_results
from ._store import Store, result_row


class Runs(Sequence[Result]):
    """Finished runs, trained or read.

    **Arguments:**

    - `axes`: the names of what was varied, for tables and plots.
    - `values_of`: the values of the axes of a run.
    - `store`: where the runs are kept, for their parameters.
    - `tune`: an axis of which only the value with the shortest mean plateau counts in each cell.

    ```python
    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> study = em.Study(task, model, em.Optimizer("adam", learning_rate=0.02), grid={"dim": [2, 3]}, seeds=1, steps=50,
    ...                  batch=8, n_test=16, precision="fp32")
    >>> runs = study.run()
    >>> runs.table[["dim", "seed", "state"]].values.tolist()
    [[3, 0, 'reached'], [2, 0, 'reached']]

    ```
    """

    def __init__(
        self,
        results: Sequence[Result],
        axes: Sequence[str] = (),
        values_of: Callable[[Run], Sequence[Any]] = lambda run: (),
        store: Store | None = None,
        tune: str | None = None,
    ) -> None:
        self.results, self.axes, self.tune = list(results), list(axes), tune
        self._values_of, self._store = values_of, store

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self._of(self.results[index]) if isinstance(index, slice) else self.results[index]

    def _of(self, results: Sequence[Result]) -> "Runs":
        return Runs(results, self.axes, self._values_of, self._store, self.tune)

    def where(self, keep: Callable[[Result], bool] | None = None, **values: Any) -> "Runs":
        """The runs with these values of columns of the table, or for which a function is true."""
        table = self.table
        for name in values:
            if len(table) and name not in table:
                raise unknown("column", name, table.columns)
        rows = zip(self.results, table.to_dict("records"), strict=True)
        chosen = [result for result, row in rows if all(row.get(name) == value for name, value in values.items())]
        return self._of([result for result in chosen if keep is None or keep(result)])

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """One row per run: the fields of its config, `seed`, `plateau` with its interval, `censored`, `state`."""
        return run_table((result_row(result) | self._labels(result.run) for result in self.results), self.axes, self.tune)

    @property
    def curves(self) -> pd.DataFrame:
        """One row per evaluation of every run, with the run's identity, axes and seed in front."""
        frames = []
        for result in self.results:
            if result.curves is not None:
                head = {"identity": result.run.identity, **self._labels(result.run), "seed": result.run.seed}
                frames.append(pd.DataFrame(head, index=range(len(result.curves["step"]))).join(curve_frame(result.curves)))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"identity": [], "step": []})

    def _labels(self, run: Run) -> dict[str, Any]:
        return dict(zip(self.axes, self._values_of(run), strict=False))

    def fit(self, y: str, x: Sequence[str], fix: Mapping[str, float] | None = None) -> Law:
        """A power law of a column of the table, with 95% intervals: `runs.fit("plateau", ["dim", "length/burst"])`. With a
        tuned axis, only the runs of the chosen values are used."""
        return table_law(self.table, y, [x] if isinstance(x, str) else x, fix or {}, "the table of these runs")

    def plot(self, y: str = "loss", by: str | None = None, x: str = "step") -> Picture:
        """The curves of all runs, one colour per value of a column. Several numbers per evaluation: the largest is drawn."""
        lines = []
        for result, row in zip(self.results, self.table.to_dict("records"), strict=True):
            if result.curves is None:
                continue
            for name in (y, x):
                if name not in result.curves:
                    raise unknown("curve", name, result.curves)
            if by is not None and by not in row:
                raise unknown("column", by, map(str, row))
            values = np.asarray(result.curves[y], float)
            values = values.reshape(len(values), -1).max(1) if values.ndim > 1 else values
            lines.append((None if by is None else row[by], np.asarray(result.curves[x]), values))
        if not lines:
            raise InputError("none of these runs has its curves; there is nothing to plot")
        with style():
            return curve_plot(lines, y, by, x)

    def forecast(self) -> list[Forecast]:
        """When each run will emerge, from its curves, by the threshold of its task; `emerged` for those that have. Runs without
        curves or threshold are left out."""
        return forecast_results(self.results)

    def kept(self, index: int = 0) -> list[int]:
        """The steps at which the parameters of a run were kept; `index` is its row in `table`."""
        return [] if self._store is None else self._store.steps(self._at(index))

    def parameters(self, index: int = 0, step: int | None = None) -> Trained:
        """The model of a run as it was at a step, where the study was run with `keep`; by default at the last one kept. `index`
        is the run's row in `table`, whose runs are in the order of training, not of the grid: `where` chooses by value."""
        if self._store is None:
            raise InputError("these runs were not kept in a folder; give `run` one, and keep=True")
        return self._store.parameters(self._at(index), step)

    def _at(self, index: int) -> Run:
        if not -len(self) <= index < len(self):
            raise InputError(f"there is no run {index}: {counted(len(self), 'run')} here, numbered from 0")
        return self.results[index].run

    def _summary(self) -> tuple[str, pd.DataFrame | None]:
        """How many runs have which state, and one row per cell where something was varied."""
        states = pd.Series([result.state for result in self.results], dtype=object).value_counts()
        head = f"{counted(len(self), 'run')}: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none'}"
        if not len(self):
            return head, None
        if not self.axes:
            plateau, censored = self.table["plateau"].median(), self.table["censored"].mean() >= 0.5
            words = "" if np.isnan(plateau) else f"; median plateau {'at least ' if censored else ''}{plateau:g}"
            return f"{head}{words}", None
        cells = self.table.groupby(self.axes, sort=True, dropna=False)
        summary = cells.agg(runs=("seed", "size"), plateau=("plateau", "median"), censored=("censored", "sum"))
        summary["plateau"] = [_plateau(*row) for row in summary[["plateau", "censored", "runs"]].itertuples(index=False)]
        return head, summary.reset_index()

    def __repr__(self) -> str:
        head, cells = self._summary()
        return head if cells is None else f"{head}\n{cells.to_string(index=False, float_format=lambda v: f'{v:g}')}"

    def _repr_html_(self) -> str:
        """In a notebook."""
        head, cells = self._summary()
        table = "" if cells is None else cells.to_html(index=False, float_format=lambda v: f"{v:g}", border=0)
        return f"<p>{head}</p>{table}"


def _plateau(median: float, censored: int, runs: int) -> str:
    """The median of a cell, as a lower bound where half of its runs or more are censored."""
    return "" if np.isnan(median) else f"{'>' if 2 * censored >= runs else ''}{median:g}"
