"""Which formats of logs there are, and runs from any of them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..._errors import InputError, unknown
from ..._tables import CSV, PARQUET, read_csv, read_parquet
from ._chart import chart_records, is_chart
from ._columns import columns_of, compile_columns
from ._config import read_configs
from ._events import event_files, event_records, is_event_file
from ._json import JSON, TRAINER_STATE, read_json, trainer_state_in
from ._long import RUN_COLUMNS, Missing, Query, long_records
from ._records import Records, to_curves

INDEX = "Unnamed: 0"  # what pandas calls the index that it wrote to a CSV file
FORMATS = ".csv, .parquet, .jsonl, trainer_state.json, an event file of TensorBoard or its folder"


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """One run of a log."""

    name: str
    path: Path  # of the file or folder it was read from
    constants: Mapping[str, Any]  # what does not change within the run: columns of the log, of its name, of config files
    _curves: Mapping[str, pd.Series]

    @property
    def metrics(self) -> list[str]:
        """The names of its curves."""
        return list(self._curves)

    def curve(self, metric: str) -> pd.Series:
        """The values of a metric where it was evaluated, by increasing, unique steps. A NaN was logged as one: it diverged."""
        if not self._curves:
            raise InputError(f"{self.path}: no column has a finite number")
        if metric not in self._curves:
            raise InputError(f"{self.path}: {unknown('metric', metric, self._curves)}")
        return self._curves[metric]

    @property
    def curves(self) -> pd.DataFrame:
        """All curves side by side, by increasing, unique steps; NaN where a metric was not evaluated, or diverged."""
        return pd.concat(self._curves, axis=1).sort_index() if self._curves else pd.DataFrame()


def read_logs(
    paths: Sequence[Path | str],
    *,
    step: str = "step",
    run: str | None = None,
    columns: str | None = None,
    metrics: Sequence[str] | None = None,
    missing: Missing = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[LoggedRun]:
    """The runs of any logs, one after the other, in the order in which they are given.

    **Arguments**

    - `paths`: CSV, Parquet and JSON-lines files with one row per evaluation, among them histories of Weights & Biases; its
      chart exports, with a column for every run; `trainer_state.json` of Hugging Face, or the folder it is in; event files of
      TensorBoard, or a folder of them, where each folder within is a run.
    - `step`: the column of steps. Where there is no `step`, a well-known name such as `_step` or `global_step` is taken.
    - `run`: the column that tells runs apart; by default `run` or `identity` where there is one, else each file is one run.
    - `columns`: a regular expression with named groups, searched in the name of the run and, where it is not found there, in
      the path, from its end: `d(?P<dim>\\d+)_s(?P<seed>\\d+)` gives every run a constant `dim` and a `seed`.
    - `metrics`: the curves to read, which every run must have; by default all columns of numbers that vary within a run.
    - `missing`: what a row without a value of a metric means, as in [`emergo.measure.measure_logs`][].
    - `say`: gets one line about anything worth knowing: another name for the steps, a restart, a config that cannot be read.

    Constants of a run are the groups of `columns`, then columns of the log that do not change within any run, then what configs
    beside the log say (`config.json`, `config.yaml`, `args.json`, `hparams.yaml`, `training_args.json`), with dots between the
    levels; of a name in several of them the first counts.

    **Returns**

    An iterator over the runs. A log that cannot be read is an `InputError` of one line when its turn comes.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("no file was given to measure")
    pattern = None if columns is None else compile_columns(columns)
    query, labels = Query(step, run, None if metrics is None else tuple(metrics), missing), [_label(file) for file in files]
    source: dict[str, Path] = {}
    renamed: set[str] = set()
    configs: dict[Path, dict[str, Any]] = {}
    for file, label in zip(files, labels, strict=True):
        if files.count(file) > 1:
            raise InputError(f"{file}: given more than once")
        label = label if labels.count(label) == 1 else str(file)
        for records in _read(file, label, query):
            if records.step not in (step, *renamed):
                say(f"{file}: there is no column '{step}'; '{records.step}' is taken for it")
                renamed.add(records.step)
            name = label if records.name is None else records.name
            if name in source:
                raise InputError(f"run '{name}' is in {source[name]} and in {file}; rename one of them, or join their rows")
            source[name] = file
            curves, restarts = to_curves(records, str(file))
            if restarts:
                say(restarts)
            named = {} if pattern is None else columns_of(pattern, name, file)
            folder = records.folder or file.parent
            if folder not in configs:
                configs[folder] = read_configs(folder, say)
            constants = {key: value for key, value in configs[folder].items() if key not in named | records.constants}
            yield LoggedRun(name, file, records.constants | named | constants, curves)


def _label(path: Path) -> str:
    """What a log that is one run is called: as its file or, where all have the same name, as its folder."""
    if path.name == TRAINER_STATE or is_event_file(path):
        folder = path.absolute().parent
        return folder.parent.name if folder.name.startswith("checkpoint-") else folder.name
    name = path.absolute().name
    suffix = next((suffix for suffix in (*CSV, *JSON) if name.lower().endswith(suffix)), path.suffix)
    return name.removesuffix(suffix) if not path.is_dir() else name


def _read(path: Path, label: str, query: Query) -> Iterator[Records]:
    """The runs of one file or folder, by its suffix and content."""
    where, name = str(path), path.name.lower()
    if is_event_file(path):
        yield from _events({"": [path]}, where, label, query)
        return
    if path.is_dir():
        runs = event_files(path)
        if runs:
            yield from _events(runs, where, label, query)
            return
        path = trainer_state_in(path)
        name = path.name
    if name.endswith(PARQUET):
        table = read_parquet(path)
    elif name.endswith(CSV):
        table = read_csv(path, text=[query.run] if query.run else RUN_COLUMNS)
    elif name.endswith(JSON):
        table = read_json(path)
    else:
        raise InputError(f"{path}: expected a log: {FORMATS}")
    if query.step != INDEX:
        table = table.drop(columns=INDEX, errors="ignore")
    for records in (chart_records if is_chart(table) else long_records)(table, where, query):
        yield records._replace(folder=path.parent)


def _events(runs: Mapping[str, Sequence[Path]], where: str, label: str, query: Query) -> Iterator[Records]:
    """The runs of a folder of TensorBoard that have the metrics; writers put other things into folders of their own."""
    found, known = False, {}
    for inner, files in runs.items():
        records = event_records(files, f"{label}/{inner}" if inner else None)
        wanted = query.metrics or records.cells
        known |= dict.fromkeys(records.cells)
        if records.cells and all(name in records.cells for name in wanted):
            found = True
            others = {name: cells.rows for name, cells in records.cells.items() if name not in wanted}
            cells = {name: records.cells[name] for name in wanted}
            yield records._replace(cells=cells, others=others, step=query.step)
    for name in query.metrics or ():
        if known and name not in known:
            raise InputError(f"{where}: {unknown('scalar', name, known)}")
    if not found:
        raise InputError(f"{where}: {'no run has all of these scalars' if known else 'its events have no scalars'}")
