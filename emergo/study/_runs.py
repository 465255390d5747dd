"""A collection of finished runs, with tables, laws and plots of them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError, unknown
from ..core.plotting import Picture, curve_plot, head_plot, map_plot, style
from ..core.terminal import counted, plateau_text
from ..measure import Law
from ..store.curves import curve_frame
from ..store.folder import StudyFolder
from ..store.store import Store
from ..training import Result, Run, Trained
from ._writers import RunLog
from .cells import cell_summary, run_table, table_law
from .results import read_parameters, result_row


class Runs(Sequence[Result]):
    """Finished runs, trained or read.

    **Arguments:**

    - `results`: the runs, in any order.
    - `axes`: the names of what was varied, for tables and plots.
    - `values_of`: returns the values of the axes of a run.
    - `store`: the folder of the runs, for their parameters.
    - `tune`: an axis of which only the value with the shortest mean plateau counts in each cell.
    - `name`: the name of the study, which is the group of the runs in Weights & Biases.

    ```python
    >>> task = em.SingleLocation(length=4, dim=2)
    >>> model = em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> adam = em.Optimizer("adam", learning_rate=0.02)
    >>> training = {"steps": 50, "batch": 8, "n_test": 16, "precision": "fp32"}
    >>> study = em.Study(task, model, adam, grid={"dim": [2, 3]}, seeds=1, **training)
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
        name: str = "study",
    ) -> None:
        self.results = list(results)
        self.axes = list(axes)
        self.tune = tune
        self.name = name
        self._values_of = values_of
        self._store = store

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self._of(self.results[index]) if isinstance(index, slice) else self.results[index]

    def _of(self, results: Sequence[Result]) -> "Runs":
        return Runs(results, self.axes, self._values_of, self._store, self.tune, self.name)

    def where(self, keep: Callable[[Result], bool] | None = None, **values: Any) -> "Runs":
        """Return some of the runs.

        **Arguments:**

        - `keep`: returns True for the results to keep; by default all.
        - `values`: the values that columns of the table must have.
        """
        table = self.table
        for name in values:
            if len(table) and name not in table:
                raise unknown("column", name, table.columns)
        chosen = []
        for result, row in zip(self.results, table.to_dict("records"), strict=True):
            matches = all(row.get(name) == value for name, value in values.items())
            if matches and (keep is None or keep(result)):
                chosen.append(result)
        return self._of(chosen)

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """A table with one row per run: the fields of its config, `seed`, `plateau` with its
        interval, `censored` and `state`."""
        rows = (result_row(result) | self._labels(result.run) for result in self.results)
        return run_table(rows, self.axes, self.tune)

    @property
    def curves(self) -> pd.DataFrame:
        """A table with one row per evaluation of every run. The first columns are `identity`, the
        axes and `seed`."""
        frames = [pd.DataFrame({"identity": [], "step": []})]
        for result in self.results:
            if result.curves is not None:
                run = result.run
                head = {"identity": run.identity, **self._labels(run), "seed": run.seed}
                labels = pd.DataFrame(head, index=range(len(result.curves["step"])))
                frames.append(labels.join(curve_frame(result.curves)))
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def _labels(self, run: Run) -> dict[str, Any]:
        return dict(zip(self.axes, self._values_of(run), strict=False))

    def fit(self, y: str, x: Sequence[str], fix: Mapping[str, float] | None = None) -> Law:
        """Fit a power law, such as `runs.fit("plateau", ["dim", "length/burst"])`.

        If an axis is tuned, only the runs of its chosen values are used.

        **Arguments:**

        - `y`: the column to explain.
        - `x`: terms of columns, with one exponent each.
        - `fix`: known exponents of columns.

        **Returns:** the law, with 95% intervals.
        """
        terms = [x] if isinstance(x, str) else x
        return table_law(self.table, y, terms, fix or {}, "the table of these runs")

    def plot(self, y: str = "loss", by: str | None = None, x: str = "step") -> Picture:
        """Plot the curves of all runs.

        **Arguments:**

        - `y`: the curve to plot; of several numbers per evaluation, the largest is drawn.
        - `by`: a column of the table that sets the colours.
        - `x`: the curve on the horizontal axis.
        """
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
        """Return the steps at which the parameters of a run were kept.

        **Arguments:**

        - `index`: the row of the run in `table`.
        """
        return [] if self._store is None else self._store.steps(self._at(index).identity)

    def parameters(self, index: int = 0, step: int | None = None) -> Trained:
        """Return the trained model of a run, if the study was run with `keep`.

        **Arguments:**

        - `index`: the row of the run in `table`. Rows are in the order of training, not of the
          grid; use `where` to choose runs by value.
        - `step`: a step of `kept`; by default the last.
        """
        if self._store is None:
            raise InputError("these runs were not kept in a folder; give `run` one, and keep=True")
        return read_parameters(self._store, self._at(index), step)

    def log(self, name: str, folder: Path | str | None = None) -> None:
        """Write the curves of these runs for a viewer.

        **Arguments:**

        - `name`: `"tensorboard"` or `"wandb"` (Weights & Biases, offline unless `WANDB_MODE` is
          set). Each run is a run of its own there; those of a study are a group of W&B.
        - `folder`: the folder that gets a subfolder of this name; by default that of the study.
        """
        if folder is None and self._store is None:
            raise InputError(f"these runs are in no folder; give one: log({name!r}, folder)")
        if self.results and all(result.curves is None for result in self.results):
            raise InputError("these runs were read without their curves; there is nothing to log")
        place = folder if self._store is None or folder is not None else self._store.folder.parent
        run_log = RunLog(name, StudyFolder(place), self.name)
        for result in self.results:
            run_log.ended(result)

    def plot_heads(self, index: int = 0, y: str = "attention") -> Picture:
        """Plot a curve of every head over training, with one panel per layer.

        **Arguments:**

        - `index`: the row of the run in `table`.
        - `y`: a curve with axes of layers and heads: `"attention"`, `"entropy"`, or those of a
          probe, such as `"induction_head"` of [`emergo.head_probe`][].
        """
        self._at(index)
        curves = self.results[index].curves or {}
        by_head = {name: values for name, values in curves.items() if np.ndim(values) == 3}
        if y not in by_head:
            raise unknown("curve per head", y, by_head)
        with style():
            return head_plot(np.asarray(curves["step"]), np.asarray(by_head[y], float), y)

    def plot_maps(self, index: int = 0, steps: Sequence[int] | None = None, n: int = 64) -> Picture:
        """Plot the attention maps of every head at steps of training, mean over test sequences.

        Needs a study that was run with `keep`.

        **Arguments:**

        - `index`: the row of the run in `table`.
        - `steps`: steps of `kept`; by default up to six of them.
        - `n`: the number of test sequences.
        """
        kept = self.kept(index)
        if steps is None:
            steps = sorted(
                {kept[round(i)] for i in np.linspace(0, len(kept) - 1, 6)} if kept else ()
            )
        if not steps:
            raise InputError("no parameters of this run were kept; give the study keep=True")
        models = [self.parameters(index, step) for step in steps]
        maps = np.stack([np.asarray(model.attention_maps(n)).mean(1) for model in models])
        with style():
            return map_plot(steps, maps)

    def _at(self, index: int) -> Run:
        if not -len(self) <= index < len(self):
            raise InputError(
                f"there is no run {index}: {counted(len(self), 'run')} here, numbered from 0"
            )
        return self.results[index].run

    def __repr__(self) -> str:
        """Return the number of runs in each state, and a table with one row per cell."""
        states = pd.Series([result.state for result in self.results], dtype=object).value_counts()
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        head = f"{counted(len(self), 'run')}: {counts or 'none'}"
        rows = []
        for cell in cell_summary(self.table, self.axes):
            row = {name: cell[name] for name in (*self.axes, "runs", "plateau", "censored")}
            median = cell["plateau"]
            row["plateau"] = "" if median is None else plateau_text(median, cell["bound"])
            rows.append(row)
        if not rows:
            return head
        cells = pd.DataFrame(rows).to_string(index=False, float_format=lambda v: f"{v:g}")
        return f"{head}\n{cells}"
