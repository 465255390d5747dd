"""A collection of finished runs, with tables, laws and plots of them."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.curves import curve_columns, find_curve
from ..core.errors import InputError, unknown
from ..core.terminal import counted, plateau_text
from ..measure import Law, Term
from ..store.curves import curve_frame
from ..store.folder import StudyFolder
from ..store.store import Store
from ..training import Result, Run, Trained
from ._writers import RunLog
from .axes import cell_value
from .cells import cell_summary, run_table, table_law
from .results import read_parameters, result_row

if TYPE_CHECKING:  # Matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..core.plotting import Picture


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
        self._labels = [dict(zip(axes, values_of(r.run), strict=False)) for r in self.results]
        self._stores = [store] * len(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._of(range(*index.indices(len(self))))
        return self.results[index]

    def __add__(self, other: "Runs") -> "Runs":
        return concat(self, other)

    def _of(self, indices: Iterable[int]) -> "Runs":
        """Return the runs at some positions."""
        chosen = list(indices)
        runs = Runs([self.results[i] for i in chosen], self.axes, tune=self.tune, name=self.name)
        runs._labels = [self._labels[i] for i in chosen]
        runs._stores = [self._stores[i] for i in chosen]
        return runs

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
        return self._of(
            i
            for i, row in enumerate(table.to_dict("records"))
            if all(row.get(name) == value for name, value in values.items())
            and (keep is None or keep(self.results[i]))
        )

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """A table with one row per run: the fields of its config, `seed`, `plateau` with its
        interval, `censored` and `state`."""
        rows = (
            result_row(result) | labels
            for result, labels in zip(self.results, self._axis_values, strict=True)
        )
        return run_table(rows, self.axes, self.tune)

    @functools.cached_property
    def _axis_values(self) -> list[dict[str, Any]]:
        """The values of the axes of each run. An axis of other runs has the value of its field."""
        return [
            {
                axis: labels[axis] if axis in labels else cell_value(result.run.config, axis)
                for axis in self.axes
            }
            for result, labels in zip(self.results, self._labels, strict=True)
        ]

    @property
    def curves(self) -> pd.DataFrame:
        """A table with one row per evaluation of every run. The first columns are `identity`, the
        axes and `seed`."""
        frames = [pd.DataFrame({"identity": [], "step": []})]
        for result, values in zip(self.results, self._axis_values, strict=True):
            if result.curves is not None:
                run = result.run
                head = {"identity": run.identity, **values, "seed": run.seed}
                labels = pd.DataFrame(head, index=range(len(result.curves["step"])))
                frames.append(labels.join(curve_frame(result.curves)))
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def fit(self, y: str, x: Sequence[str], fix: Mapping[str, float] | None = None) -> Law:
        """Fit a power law, such as `runs.fit("plateau", ["dim", "length/burst"])`.

        If an axis is tuned, only the runs of its chosen values are used.

        **Arguments:**

        - `y`: the column to explain. A column of `curves` stands for its last value.
        - `x`: terms of columns, with one exponent each.
        - `fix`: known exponents of columns.

        **Returns:** the law, with 95% intervals.
        """
        terms = [x] if isinstance(x, str) else x
        names = [y, *(name for term in terms for name, _ in Term.parse(term).powers)]
        columns = {column for r in self.results for column, *_ in curve_columns(r.curves or {})}
        table = self.table
        for name in set(names).difference(columns, table.columns, ["repeat_factor"]):
            raise unknown("column", name, [*table.columns, *sorted(columns)])
        for name in columns.intersection(names).difference(table.columns):
            last = [np.nan if r.curves is None else find_curve(r.curves, name)[-1] for r in self]
            table = table.assign(**{name: last})
        return table_law(table, y, terms, fix or {}, "the table of these runs")

    def plot(
        self,
        y: str = "loss",
        by: str | None = None,
        x: str = "step",
        *,
        panels: str | None = None,
        interval: float | None = None,
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Plot the curves of all runs.

        **Arguments:**

        - `y`: a curve, or a column of `curves` such as `attention_0_1`. Of several numbers per
          evaluation, the largest is drawn, and the axis label mentions it.
        - `by`: a column of the table that sets the colours.
        - `x`: the curve or column on the horizontal axis.
        - `panels`: a column of the table; each of its values has a panel.
        - `interval`: draw the median over seeds, and a band that covers this share of them, from 0
          to 1, instead of each run. Runs that have ended count with their last value.
        - `ax`: draw into these axes of matplotlib instead of a new figure.

        **Returns:** the figure.
        """
        if interval is not None and not 0 <= interval <= 1:
            raise InputError(f"interval must be a share of the seeds from 0 to 1, got {interval!r}")
        if interval is not None and x != "step":
            raise InputError(f"interval needs the steps on the horizontal axis, got x = {x!r}")
        if ax is not None and panels is not None:
            raise InputError("give either panels or ax; panels need a figure of their own")
        from ..core.plotting import Line, curve_plot, spread_lines, style

        lines = []
        count = 1
        for result, row in zip(self.results, self.table.to_dict("records"), strict=True):
            if result.curves is None:
                continue
            for name in filter(None, (by, panels)):
                if name not in row:
                    raise unknown("column", name, map(str, row))
            values = np.asarray(find_curve(result.curves, y), float)
            values = values.reshape(len(values), -1)
            count = max(count, values.shape[1])
            place = np.asarray(find_curve(result.curves, x))
            panel, label = (None if name is None else row[name] for name in (panels, by))
            lines.append(Line(panel, label, place, values.max(1)))
        if not lines:
            raise InputError("none of these runs has its curves; there is nothing to plot")
        if interval is not None:
            lines = spread_lines(lines, interval)
        words = y.replace("_", " ") + ("" if count == 1 else f" (largest of {count})")
        with style():
            return curve_plot(lines, words, by, x, panels, ax)

    def trained(self) -> dict[int, Trained]:
        """Return the trained model of each seed, from the last step; these must be one cell."""
        seeds = [result.run.seed for result in self.results]
        if len(set(seeds)) < len(seeds):
            raise InputError(
                "several of these runs have the same seed; choose one cell, e.g. runs.where(dim=8)"
            )
        return {seed: self.parameters(i) for i, seed in enumerate(seeds)}

    def kept(self, index: int = 0) -> list[int]:
        """Return the steps at which the parameters of a run were kept.

        **Arguments:**

        - `index`: the row of the run in `table`.
        """
        run, store = self._at(index)
        return [] if store is None else store.steps(run.identity)

    def parameters(self, index: int = 0, step: int | None = None) -> Trained:
        """Return the trained model of a run, if the study was run with `keep`.

        **Arguments:**

        - `index`: the row of the run in `table`. Rows are in the order of training, not of the
          grid; use `where` to choose runs by value.
        - `step`: a step of `kept`; by default the last.
        """
        run, store = self._at(index)
        if store is None:
            raise InputError("these runs were not kept in a folder; give `run` one, and keep=True")
        return read_parameters(store, run, step)

    def log(self, name: str, folder: Path | str | None = None) -> None:
        """Write the curves of these runs for a viewer.

        **Arguments:**

        - `name`: `"tensorboard"` or `"wandb"` (Weights & Biases, offline unless `WANDB_MODE` is
          set). Each run appears separately there; in W&B the runs of a study are a group.
        - `folder`: the folder that gets a subfolder of this name; by default the study's.
        """
        kept_in = next(filter(None, self._stores), None)
        if folder is None and kept_in is not None:
            folder = kept_in.folder.parent
        if folder is None:
            raise InputError(f"these runs are in no folder; give one: log({name!r}, folder)")
        if self.results and all(result.curves is None for result in self.results):
            raise InputError("these runs were read without their curves; there is nothing to log")
        run_log = RunLog(name, StudyFolder(folder), self.name)
        for result in self.results:
            run_log.ended(result)

    def plot_heads(self, index: int = 0, y: str = "attention") -> "Picture":
        """Plot a curve of every head over training, with one panel per layer.

        **Arguments:**

        - `index`: the row of the run in `table`.
        - `y`: a curve with axes of layers and heads: `"attention"`, `"entropy"`, or those of a
          probe, such as `"induction_head"` of [`emergo.head_probe`][].
        """
        from ..core.plotting import head_plot, style

        self._at(index)
        curves = self.results[index].curves or {}
        by_head = {name: values for name, values in curves.items() if np.ndim(values) == 3}
        if y not in by_head:
            raise unknown("curve per head", y, by_head)
        with style():
            return head_plot(np.asarray(curves["step"]), np.asarray(by_head[y], float), y)

    def plot_maps(
        self, index: int = 0, steps: Sequence[int] | None = None, n: int = 64
    ) -> "Picture":
        """Plot the attention maps of every head at steps of training, mean over test sequences.

        Needs a study that was run with `keep`.

        **Arguments:**

        - `index`: the row of the run in `table`.
        - `steps`: steps of `kept`; by default up to six of them.
        - `n`: the number of test sequences.
        """
        from ..core.plotting import map_plot, style

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

    def _at(self, index: int) -> tuple[Run, Store | None]:
        if not -len(self) <= index < len(self):
            raise InputError(
                f"there is no run {index}: {counted(len(self), 'run')} here, numbered from 0"
            )
        return self.results[index].run, self._stores[index]

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


def concat(*runs: Runs, **named: Runs) -> Runs:
    """Return the runs of several studies as one collection, for tables, laws and plots.

    The axes are those of all studies. A run that several studies share is kept once.

    **Arguments:**

    - `named`: runs by label. The label becomes a further axis, `study`, and shared runs are kept
      under each label.

    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(1, heads=1, width=4)
    >>> runs = em.Runs([])
    >>> len(em.concat(runs, runs)), em.concat(short=runs, long=runs).axes
    (0, ['study'])
    """
    if bool(runs) == bool(named):
        raise InputError(
            "concat takes either runs, or runs by label such as concat(short=a, long=b)"
        )
    parts = list(runs or named.values())
    for part in parts:
        if not isinstance(part, Runs):
            raise InputError(f"concat takes runs, got {part!r}")
    tunes = {part.tune for part in parts}
    axes = dict.fromkeys(axis for part in parts for axis in part.axes)
    whole = Runs(
        [], ["study", *axes] if named else [*axes], tune=tunes.pop() if len(tunes) == 1 else None
    )
    seen = set()
    for label, part in zip(named or [None] * len(parts), parts, strict=True):
        for result, labels, store in zip(part.results, part._labels, part._stores, strict=True):
            if (label, result.run.identity) not in seen:
                seen.add((label, result.run.identity))
                whole.results.append(result)
                whole._labels.append({"study": label, **labels} if named else labels)
                whole._stores.append(store)
    return whole
