"""Records: runs that were trained elsewhere, kept as two Parquet tables.

`NAME.runs.parquet` has one row per run (its outcome), `NAME.curves.parquet` one row per evaluation.
`emergo/records` holds the runs of the papers' figures, trained on a GPU. They ship with the
package, so that these figures are drawn without training.

`NAME.sha256` holds the checksums of both tables in the format of `sha256sum`. Tables without
checksums are accepted. In every table, the identity of each run must be the hash of its
description.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.curves import INDEX_SUFFIX
from ..core.errors import InputError
from ..core.files import read_regular, staged
from ..core.parquet import parquet_frame
from ..core.tables import storable
from .curves import StoredRun, compact_frame, curves_from
from .outcomes import outcome_row
from .reader import LARGE, check_listed

SHIPPED = Path(__file__).parents[1] / "records"  # the records that ship with the package
POINTS = 100  # evaluations kept of a curve that no figure draws: as many as a plot can show


class Records:
    """Read-only runs by identity.

    **Arguments:**

    - `runs`: a table with one row per run, see `record_tables`.
    - `curves`: tables with one row per evaluation.
    """

    def __init__(self, runs: pd.DataFrame, *curves: pd.DataFrame) -> None:
        self._rows: dict[str, Any] = {row["identity"]: row for row in runs.to_dict("records")}
        # identity -> (columns of its table, row numbers of this run)
        self._curves: dict[str, tuple[dict[str, np.ndarray], np.ndarray]] = {}
        for table in curves:
            values = {str(name): column.to_numpy() for name, column in table.items()}
            del values["identity"]
            for identity, rows in table.groupby("identity").indices.items():
                self._curves[str(identity)] = (values, np.asarray(rows))

    def __contains__(self, identity: str) -> bool:
        """Return True if the run is recorded, with or without curves."""
        return identity in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def holds(self, identity: str, curves: bool) -> bool:
        """Return True if a run is recorded, together with its curves if `curves`."""
        return identity in (self._curves if curves else self._rows)

    def name_of(self, identity: str) -> str:
        """Return the name of the tables that hold a run."""
        return str(self._rows[identity]["records"])

    def read(self, identity: str, curves: bool = True) -> StoredRun:
        """Return a recorded run. Its curves are None if only the outcome was recorded."""
        row = dict(self._rows[identity])
        for name in ("failed_step", "reason"):  # pandas stores None as NaN
            row[name] = None if pd.isna(row.get(name)) else row[name]
        columns = None
        if curves and identity in self._curves:
            table, rows = self._curves[identity]
            try:
                columns = curves_from({name: values[rows] for name, values in table.items()})
            except ValueError as error:
                raise InputError(
                    f"records {self.name_of(identity)}: the curves of the run {identity} cannot be "
                    f"read ({error})"
                ) from None
        return StoredRun(row, json.loads(row["provenance"]), columns or None)


def thinned(curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return curves with at most `POINTS` evaluations, evenly spaced, with the first and the last.

    Values are not changed: `train_loss` remains the mean since the previous evaluation of the
    complete curve.
    """
    count = len(curves["step"])
    rows = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
    return {name: values[rows] for name, values in curves.items()}


def record_tables(
    runs: Iterable[tuple[Mapping[str, Any], Mapping[str, np.ndarray] | None]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the two tables of records: outcomes and curves.

    **Arguments:**

    - `runs`: the content of `run.json` and the curves of each run, as `Store.write` takes them.
    """
    rows = []
    frames = []
    for content, curves in runs:
        described = {name: content[name] for name in ("semantics", "config", "seed")}
        row = outcome_row(content)
        row["provenance"] = json.dumps(content["provenance"])
        row["run"] = json.dumps(described, sort_keys=True)
        rows.append(row)
        if curves is not None:
            frames.append(compact_frame(curves).assign(identity=content["identity"]))
    return _joined([pd.DataFrame(rows)] if rows else []), _joined(frames)


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"identity": []})


def write_records(runs: pd.DataFrame, curves: pd.DataFrame, folder: Path | str, name: str) -> None:
    """Add tables of records to those called `name` in a folder, replacing the same runs.

    Outcomes and scalar curves are stored exactly. Curves with several values per evaluation, such
    as attention maps, are rounded to the precision that a plot can show.
    """
    folder = Path(folder)
    with staged(folder) as stage:
        for kind, table in (("runs", runs), ("curves", _rounded(curves))):
            path = folder / f"{name}.{kind}.parquet"
            old = _read_table(path) if path.exists() else table[:0]
            others = old[~old["identity"].isin(runs["identity"])]
            _write_table(
                _joined([part for part in (others, table) if len(part)]), stage / path.name
            )
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted(stage.glob("*.parquet"))
        ]
        (stage / f"{name}.sha256").write_text("".join(lines))


def _write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as small as possible: brotli is 6% smaller than zstd at level 19."""
    floats = [str(name) for name in table if pd.api.types.is_float_dtype(table[name])]
    options: dict[str, Any] = {"compression": "brotli", "compression_level": 11}
    if floats:
        options["use_byte_stream_split"] = floats
        options["use_dictionary"] = [str(name) for name in table if name not in floats]
    storable(table).to_parquet(path, index=False, **options)


def _rounded(curves: pd.DataFrame) -> pd.DataFrame:
    """Round columns such as `attention_0_1` to 12 significant bits, which halves the file."""
    mask = np.uint32(0xFFFFFFFF << 12 & 0xFFFFFFFF)
    changed = {}
    for name, column in curves.items():
        if INDEX_SUFFIX.search(str(name)) and column.dtype == np.float32:
            values = column.to_numpy()
            # Adding half of the last kept bit before cutting rounds to nearest.
            rounded = ((values.view(np.uint32) + np.uint32(1 << 11)) & mask).view(np.float32)
            changed[str(name)] = np.where(np.isfinite(values), rounded, values)
    return curves.assign(**changed)


def merge_records(source: Path | str, folder: Path | str) -> dict[str, int]:
    """Add the records of one folder to those of another.

    A run is added if the target lacks it, or has it without the curves that the source has.

    **Returns:** the number of added runs by the name of the records.
    """
    added = {}
    target = read_records(folder)
    for path in sorted(Path(source).glob("*.runs.parquet")):
        name = path.name.removesuffix(".runs.parquet")
        runs = _read_table(path)
        curves = _read_table(path.with_name(f"{name}.curves.parquet"))
        with_curves = set(curves["identity"])
        new = [one for one in runs["identity"] if not target.holds(one, one in with_curves)]
        if new:
            new_runs = runs[runs["identity"].isin(new)]
            new_curves = curves[curves["identity"].isin(new)]
            write_records(new_runs, new_curves, folder, name)
            added[name] = len(new)
    return added


def read_records(folder: Path | str = SHIPPED) -> Records:
    """Read every `*.runs.parquet` and `*.curves.parquet` in a folder."""
    files = sorted(Path(folder).glob("*.parquet"))
    return _read(Path(folder), tuple((path.name, _changed(path)) for path in files))


def _changed(path: Path) -> int:
    """Return when a file was changed; 0 for a symlink without a target."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0  # reading it raises an error that names it


@functools.lru_cache(maxsize=4)
def _read(folder: Path, stamps: tuple[tuple[str, int], ...]) -> Records:
    runs = []
    curves = []
    for file, _ in stamps:
        table = _read_table(folder / file)
        if file.endswith(".curves.parquet"):
            curves.append(table)
        else:
            runs.append(table.assign(records=file.removesuffix(".runs.parquet")))
    return Records(_joined(runs), *_aligned(curves))


def _aligned(tables: Sequence[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Give the common columns of several tables the same type and order.

    Types come from the concatenated tables. Each table keeps only its own columns.
    """
    whole = _joined(tables)
    first = 0
    for table in tables:
        yield whole.loc[first : first + len(table) - 1, whole.columns.isin(table.columns)].copy()
        first += len(table)


def _read_table(path: Path) -> pd.DataFrame:
    """Read one of the two tables. Raises `InputError` if it is damaged or was changed."""
    try:
        data = read_regular(os.path.realpath(path), LARGE)
        check_listed(path, data)
        table = parquet_frame(data)
        if "run" in table:
            hashes = [hashlib.sha256(str(run).encode()).hexdigest()[:16] for run in table["run"]]
            if hashes != list(table["identity"]):
                raise ValueError("a run has another identity than its description")
        return table
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read as records ({error})") from None
