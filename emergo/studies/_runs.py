"""A collection of finished runs: as tables, as laws, as pictures."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd

from .._errors import InputError, unknown
from .._style import curve_plot, style
from ..engine import Result, Run, Trained
from ..measure import Law, fit_law
from ._store import Store, curve_frame, result_row
from ._tune import best_of


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
        if isinstance(index, slice):
            return Runs(self.results[index], self.axes, self._values_of, self._store, self.tune)
        return self.results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def where(self, keep: Callable[[Result], bool] | None = None, **values: Any) -> "Runs":
        """The runs with these values of columns of the table, or for which a function is true."""
        table = self.table
        for name in values:
            if len(table) and name not in table:
                raise unknown("column", name, table.columns)
        chosen = [
            result
            for result, row in zip(self.results, table.to_dict("records"), strict=True)
            if (keep is None or keep(result)) and all(row.get(name) == value for name, value in values.items())
        ]
        return Runs(chosen, self.axes, self._values_of, self._store, self.tune)

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """One row per run: the fields of its config, `seed`, `plateau` with its interval, `censored`, `state`."""
        rows = [result_row(result) | self._labels(result.run) for result in self.results]
        table = pd.DataFrame(rows)
        if self.tune is not None and len(table):
            best = best_of(table, [axis for axis in self.axes if axis != self.tune], self.tune)
            table["chosen"] = table["identity"].isin(best["identity"])
        return table

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
        values = zip(self.axes, self._values_of(run), strict=False)
        return {name: v if isinstance(v, bool | int | float | str) or v is None else repr(v) for name, v in values}

    def fit(self, y: str, x: Sequence[str], fix: Mapping[str, float] | None = None) -> Law:
        """A power law of a column of the table, with 95% intervals: `runs.fit("plateau", ["dim", "length/burst"])`.

        With a tuned axis, only the runs of the chosen values are used.
        """
        table = self.table[self.table["chosen"]] if "chosen" in self.table else self.table
        return fit_law(table, y, [x] if isinstance(x, str) else list(x), fixed=dict(fix or {}), what="these runs")

    def plot(self, y: str = "loss", by: str | None = None, x: str = "step") -> matplotlib.figure.Figure:
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

    def kept(self, index: int = 0) -> list[int]:
        """The steps at which the parameters of a run were kept."""
        return [] if self._store is None else self._store.steps(self.results[index].run)

    def parameters(self, index: int = 0, step: int | None = None) -> Trained:
        """The model of a run as it was at a step, where the study was run with `keep`; by default at the last one kept."""
        if self._store is None:
            raise InputError("these runs were not kept in a folder; give `run` one, and keep=True")
        return self._store.parameters(self.results[index].run, step)

    def __repr__(self) -> str:
        states = pd.Series([result.state for result in self.results], dtype=object).value_counts()
        head = f"{len(self)} runs: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none'}"
        if not self.axes or not len(self):
            return head
        cells = self.table.groupby(self.axes, sort=True, dropna=False)
        summary = cells.agg(runs=("seed", "size"), plateau=("plateau", "median"), censored=("censored", "sum"))
        return f"{head}\n{summary.reset_index().to_string(index=False, float_format=lambda v: f'{v:g}')}"
