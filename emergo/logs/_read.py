"""Read runs from logs of any supported format, and measure their emergence times."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import InputError, unknown
from ..core.tables import CSV, PARQUET, read_csv, read_parquet
from ..measure import Direction, emergence
from ._config import columns_of, compile_columns, read_configs
from ._events import event_files, event_records, is_event_file
from ._json import JSON, TRAINER_STATE, read_json, trainer_state_in
from ._long import (
    MEASURED,
    RUN_COLUMNS,
    Missing,
    Query,
    chart_records,
    is_chart,
    long_records,
    wide_records,
    wide_runs,
)
from ._records import Records, to_curves

INDEX = "Unnamed: 0"  # pandas' name for an index that it wrote to a CSV file
FORMATS = ".csv, .parquet, .jsonl, trainer_state.json, an event file of TensorBoard or its folder"


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """One run of a log."""

    name: str
    path: Path  # the file or folder of the log
    constants: Mapping[str, Any]  # from columns of the log, its name, and config files
    _curves: Mapping[str, pd.Series]
    gaps: Collection[
        str
    ] = ()  # requested metrics with blank cells that count as nan before numbers

    @property
    def metrics(self) -> list[str]:
        """The names of the curves."""
        return list(self._curves)

    def curve(self, metric: str) -> pd.Series:
        """Return the values of a metric by increasing, unique steps.

        NaN means that NaN was logged: the run has diverged.
        """
        if not self._curves:
            raise InputError(f"{self.path}: no column has a finite number")
        if metric not in self._curves:
            raise InputError(f"{self.path}: {unknown('metric', metric, self._curves)}")
        return self._curves[metric]

    @property
    def curves(self) -> pd.DataFrame:
        """All curves by increasing, unique steps; NaN where a metric is missing or diverged."""
        return pd.concat(self._curves, axis=1).sort_index() if self._curves else pd.DataFrame()


def read_logs(
    paths: Sequence[Path | str],
    *,
    step: str = "step",
    run: str | None = None,
    columns: str | None = None,
    metrics: Sequence[str] | None = None,
    missing: Missing = "auto",
    configs: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[LoggedRun]:
    """Read the runs of logs, one after the other.

    **Arguments:**

    - `paths`: CSV, Parquet and JSON-lines files with one row per evaluation, such as histories of
      Weights & Biases; its chart exports, with columns for every run; tables with the columns
      `loss_seed0`, `loss_seed1`, ... if `loss` is requested; `trainer_state.json` of Hugging Face,
      or its folder; event files of TensorBoard, or a folder of them, in which each subfolder is a
      run.
    - `step`: the column of steps. A log without `step` may have a well-known name such as
      `_step` or `global_step` instead.
    - `run`: the column that tells runs apart; by default `run` or `identity`, otherwise each file
      is one run.
    - `columns`: a regular expression with named groups, searched in the name of the run and then in
      its path, from the end: `d(?P<dim>\\d+)_s(?P<seed>\\d+)` adds the constants `dim` and `seed`.
    - `metrics`: the curves to read, which every run must have; by default all columns of numbers
      that vary within a run.
    - `missing`: the meaning of a row without a value of a metric, as in
      [`emergo.logs.measure_logs`][].
    - `configs`: read constants from config files next to the logs.
    - `say`: receives one line about anything worth knowing: another name of the steps, a restart, a
      config that cannot be read.

    The constants of a run are the columns of the log that do not change within any run, the groups
    of `columns`, and the entries of config files in the same folder (`config.json`, `config.yaml`,
    `args.json`, `hparams.yaml`, `training_args.json`), with dots between nested names. If a name
    occurs in several of them, `columns` takes precedence, then the log.

    **Returns:** an iterator over the runs. It raises an `InputError` of one line at a log that
    cannot be read.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("no file was given to measure")
    if step in (metrics or ()):
        raise InputError(f"'{step}' is the column of steps; name another one as the metric")
    pattern = None if columns is None else compile_columns(columns)
    query = Query(step, run, None if metrics is None else tuple(metrics), missing)
    labels = [_label(file) for file in files]
    source: dict[str, Path] = {}
    known_steps = {step}
    known_configs: dict[Path, dict[str, Any]] = {}
    for file, label in zip(files, labels, strict=True):
        label = label if labels.count(label) == 1 else str(file)
        empty = True
        for records in _read(file, label, query):
            empty = False
            if records.step not in known_steps:
                say(f"{file}: the column '{step}' is missing; '{records.step}' is used instead")
                known_steps.add(records.step)
            name = label if records.name is None else records.name
            if name in source:
                raise InputError(
                    f"run '{name}' is in {source[name]} and in {file}; rename one of them, or "
                    f"join their rows"
                )
            source[name] = file
            curves, restarts = to_curves(records, str(file))
            if restarts:
                say(restarts)
            own = records.constants
            if pattern is not None:
                own = own | columns_of(pattern, name, file)
            folder = records.folder or file.parent
            if folder not in known_configs:
                known_configs[folder] = read_configs(folder, say) if configs else {}
            more = {key: x for key, x in known_configs[folder].items() if key not in own}
            yield LoggedRun(name, file, own | more, curves, records.gaps)
        if empty:
            raise InputError(f"{file}: holds no run: no row names one")


def _label(path: Path) -> str:
    """Name a log that holds one run after its file, or after its folder if all have one name."""
    path = path.absolute()
    if path.name == TRAINER_STATE or is_event_file(path):
        folder = path.parent
        return folder.parent.name if folder.name.startswith("checkpoint-") else folder.name
    if path.is_dir():
        return path.name
    suffixes = (*CSV, *JSON, path.suffix)
    found = next(suffix for suffix in suffixes if path.name.lower().endswith(suffix.lower()))
    return path.name.removesuffix(found)


def _read(path: Path, label: str, query: Query) -> Iterator[Records]:
    """Read the runs of one file or folder by its suffix and content."""
    runs = {"": [path]} if is_event_file(path) else {}
    if path.is_dir() and not runs:
        runs = event_files(path)
    if runs:
        yield from _events(runs, str(path), label, query)
        return
    where = str(path)
    if path.is_dir():
        path = trainer_state_in(path)
    name = path.name.lower()
    if name.endswith(PARQUET):
        table = read_parquet(path)
    elif name.endswith(CSV):
        table = read_csv(path, text=[query.run] if query.run else RUN_COLUMNS)
    elif name.endswith(JSON):
        table = read_json(path)
    else:
        raise InputError(f"{path}: expected a log: {FORMATS}")
    if table.empty:
        raise InputError(f"{where}: the table has no rows")
    table.columns = pd.Index([str(name) for name in table.columns])
    if query.step != INDEX:
        table = table.drop(columns=INDEX, errors="ignore")
    if is_chart(table):
        found = chart_records(table, where, query)
    elif wide_runs(table, query):
        found = wide_records(table, where, query, label)
    else:
        found = long_records(table, where, query)
    for records in found:
        yield records._replace(folder=path.parent)


def _events(
    runs: Mapping[str, Sequence[Path]], where: str, label: str, query: Query
) -> Iterator[Records]:
    """Read the runs in event files that have the requested metrics.

    Other runs are skipped: some writers put other scalars into separate folders.
    """
    found = False
    known = {}
    for inner, files in runs.items():
        records = event_records(files, f"{label}/{inner}" if inner else None)
        known |= dict.fromkeys(records.cells)
        if records.cells and records.cells.keys() >= set(query.metrics or ()):
            found = True
            yield records._replace(wanted=query.metrics, step=query.step)
    for name in query.metrics or ():
        if known and name not in known:
            raise InputError(f"{where}: {unknown('scalar', name, known)}")
    if not found:
        why = "no run has all of these scalars" if known else "its events have no scalars"
        raise InputError(f"{where}: {why}")


def measure_logs(
    paths: Sequence[Path | str],
    metric: str,
    threshold: float,
    direction: Direction = "below",
    *,
    hold: int = 1,
    window: int = 1,
    **options: Any,
) -> pd.DataFrame:
    """Measure emergence times in logs.

    **Arguments:**

    - `paths`, and all further `options`: as in [`emergo.logs.read_logs`][].
    - `metric`, `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].
    - `missing`: the meaning of a row without a value of the metric. `"skip"`: the metric was not
      evaluated there; this also leaves out a literal nan that a number follows. `"failed"`: the
      value was not a number, and the run has diverged; pandas writes NaN like this. `"auto"`: skip
      if the row holds another value that varies within runs (some loggers write each metric in a
      separate row), otherwise failed. A literal inf, or a nan until the end, always means that the
      run has diverged.

    **Returns:** a table with one row per run, with its constants (length, seed, ...).
    """
    say = options.get("say", lambda line: None)
    rows = []
    gaps: dict[Path, int] = {}  # failed runs whose gaps may not have been evaluations
    for run in read_logs(paths, metrics=[metric], **options):
        curve = run.curve(metric)
        result = emergence(
            curve.index.to_numpy(),
            curve.to_numpy(),
            threshold,
            direction,
            hold=hold,
            window=window,
        )
        measured = (run.name, result.time, result.low, result.high, result.censored, result.state)
        if result.state == "failed" and metric in run.gaps:
            gaps[run.path] = gaps.get(run.path, 0) + 1
        # The name of the run comes first, and the measured columns replace constants.
        row = {"run": run.name} | dict(run.constants)
        rows.append(row | dict(zip(MEASURED, (*measured, len(curve)), strict=True)))
    for path, count in gaps.items():
        say(
            f"{path}: {count} failed {'run has' if count == 1 else 'runs have'} numbers after "
            f"rows without '{metric}'; if it was not evaluated there, use --missing skip"
        )
    return pd.DataFrame(rows)
