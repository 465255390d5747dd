"""Runs that were trained elsewhere and kept as two tables: outcomes, and curves. `emergo/records` holds those of the papers'
figures, trained on a GPU; they ship with the package, so that a figure that asks for these runs draws them at once.

`NAME.sha256` holds the checksums of the two tables `NAME`, as `sha256sum` writes them. Tables without one are read as they are,
but for the identity of every run, which is the hash of its description.
"""

import collections
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._errors import InputError
from .._files import output_folder, read_regular, staged
from .._parquet import parquet_frame
from .._tables import storable
from ..engine import Result, Run
from ._curves import INDEX_SUFFIX, compact_frame
from ._reader import LARGE, SMALL
from ._store import Store, result_from, result_row

SHIPPED = Path(__file__).parents[1] / "records"  # the records that come with the package


class Records:
    """Read-only results by identity."""

    def __init__(self, runs: pd.DataFrame, *curves: pd.DataFrame) -> None:
        self._rows: dict[str, Any] = {row["identity"]: row for row in runs.to_dict("records")}
        self._curves: dict[str, tuple[dict[str, np.ndarray], np.ndarray]] = {}  # columns of a table, and the rows of a run
        for table in curves:
            columns = {str(name): values.to_numpy() for name, values in table.items() if name != "identity"}
            rows = table.groupby("identity").indices
            self._curves |= {str(identity): (columns, np.asarray(own)) for identity, own in rows.items()}

    def __contains__(self, run: Run) -> bool:
        return run.identity in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def has_curves(self, run: Run) -> bool:
        return run.identity in self._curves

    def holds(self, identity: str, curves: bool) -> bool:
        """Whether a run is there, with its `curves` if these are asked for."""
        return identity in (self._curves if curves else self._rows)

    def name_of(self, run: Run) -> str:
        """The name of the tables that hold a run."""
        return str(self._rows[run.identity]["records"])

    def read(self, run: Run) -> Result:
        row, (columns, rows) = self._rows[run.identity], self._curves.get(run.identity, ({}, np.zeros(0, int)))
        curves = {name: values[rows] for name, values in columns.items()}
        return result_from(run, row, json.loads(row["provenance"]), curves)


POINTS = 100  # of a curve that no figure draws: as many as a plot can show


def thinned(curves: Mapping[str, np.ndarray], points: int = POINTS) -> dict[str, np.ndarray]:
    """Curves with at most so many evaluations, evenly among them, with the first and the last. Every number is one that was
    measured: `train_loss` is still the mean since the evaluation before, which may be one that is left out."""
    count = len(curves["step"])
    rows = np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int))
    return {name: values[rows] for name, values in curves.items()}


def record_tables(results: Iterable[Result]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables of records: outcomes, and the curves of the runs that have them."""
    rows, frames = [], []
    for result in results:
        described = json.dumps(result.run.describe(), sort_keys=True)
        rows.append(result_row(result) | {"provenance": json.dumps(dict(result.provenance)), "run": described})
        if result.curves is not None:
            frames.append(compact_frame(result.curves).assign(identity=result.run.identity))
    return _joined([pd.DataFrame(rows)] if rows else []), _joined(frames)


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"identity": []})


def write_records(runs: pd.DataFrame, curves: pd.DataFrame, folder: Path | str, name: str) -> None:
    """Puts tables of records into `NAME.runs.parquet` and `NAME.curves.parquet` of a folder, in the place of what these hold of
    the same runs. Outcomes and curves of one number are kept to the bit, other curves to what a plot can show."""
    folder = output_folder(folder)
    with staged(folder) as stage:
        for kind, table in (("runs", runs), ("curves", _shortened(curves))):
            path = folder / f"{name}.{kind}.parquet"
            old = _read_table(path) if path.exists() else table[:0]
            whole = _joined([part for part in (old[~old["identity"].isin(runs["identity"])], table) if len(part)])
            floats = [str(column) for column in whole if pd.api.types.is_float_dtype(whole[column])]
            others = [str(column) for column in whole if column not in floats]
            how: dict[str, Any] = {"compression": "brotli", "compression_level": 11}  # 6% smaller than zstd's level 19
            how |= {"use_byte_stream_split": floats, "use_dictionary": others} if floats else {}
            storable(whole).to_parquet(stage / path.name, index=False, **how)
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(stage.glob("*.parquet"))}
        (stage / f"{name}.sha256").write_text("".join(f"{checksum}  {file}\n" for file, checksum in sums.items()))


def _shortened(curves: pd.DataFrame) -> pd.DataFrame:
    """Curves of several numbers per evaluation (`attention_0_1`) with 12 significant bits: files are half as large."""
    several = [name for name in curves if INDEX_SUFFIX.search(str(name)) and curves[name].dtype == np.float32]
    kept = np.uint32(0xFFFFFFFF << 12 & 0xFFFFFFFF)

    def shorter(values: pd.Series) -> np.ndarray:
        number = values.to_numpy(np.float32)
        rounded = ((number.view(np.uint32) + np.uint32(1 << 11)) & kept).view(np.float32)
        return np.where(np.isfinite(number), rounded, number)

    return curves.assign(**{str(name): shorter(curves[name]) for name in several})


def add_records(runs: Sequence[Run], store: Store, name: str, folder: Path | str = SHIPPED, thin: bool = False) -> int:
    """Adds those of these runs that a store holds to the records called `name`, with their curves, of evaluations that a plot
    can show where these are to be `thin`; returns how many. Of a run that is recorded without curves, in the folder or in the
    package, only these are new, under the name that it has there. One that the folder has with curves stays as it is."""
    there, shipped = read_records(folder), read_records()
    chosen: dict[str, list[Result]] = {}
    for run in runs:
        if run not in store or there.has_curves(run):
            continue
        result, recorded = store.read(run), next((records for records in (there, shipped) if run in records), None)
        if thin and result.curves is not None:
            result = result._replace(curves=thinned(result.curves))
        if recorded is not None:
            result = beside(recorded.read(run), result)
        chosen.setdefault(name if recorded is None else recorded.name_of(run), []).append(result)
    for label, results in chosen.items():
        write_records(*record_tables(results), folder, label)
    return sum(map(len, chosen.values()))


def beside(recorded: Result, again: Result) -> Result:
    """A recorded outcome with the curves of the same run trained once more, which differs by rounding. Where that was and what
    came out is in the provenance, under names that begin with `curves_`."""
    second = {**again.provenance, "state": again.state, "plateau": repr(again.plateau.time)}
    told = {f"curves_{name}": str(value) for name, value in second.items()}
    return recorded._replace(curves=again.curves, provenance={**recorded.provenance, **told})


def merge_records(source: Path | str, folder: Path | str = SHIPPED) -> dict[str, int]:
    """Adds what records made elsewhere hold to those of a folder: runs that these lack, or have without curves. Returns how
    many, by the name of the records."""
    added, there = {}, read_records(folder)
    for path in sorted(Path(source).glob("*.runs.parquet")):
        name = path.name.removesuffix(".runs.parquet")
        runs, curves = (_read_table(path.with_name(f"{name}.{kind}.parquet")) for kind in ("runs", "curves"))
        with_curves = set(curves["identity"])
        new = [one for one in runs["identity"] if not there.holds(one, curves=one in with_curves)]
        if new:
            write_records(runs[runs["identity"].isin(new)], curves[curves["identity"].isin(new)], folder, name)
            added[name] = len(new)
    return added


def read_records(folder: Path | str = SHIPPED) -> Records:
    """The records under a folder: every `*.runs.parquet` with the `*.curves.parquet` beside it; none where there are none."""
    files = sorted(Path(folder).glob("*.parquet"))
    return _read(Path(folder), tuple((path.name, path.stat().st_mtime_ns) for path in files))


@functools.lru_cache(maxsize=4)
def _read(folder: Path, stamps: tuple[tuple[str, int], ...]) -> Records:
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "curves": []}
    for name, _ in stamps:
        table = _read_table(folder / name)
        label, kind, _ = name.rsplit(".", 2)
        tables.setdefault(kind, []).append(table.assign(records=label) if kind == "runs" else table)
    return Records(_joined(tables["runs"]), *_alike(tables["curves"]))


def _alike(tables: Sequence[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables whose common columns have one type and one order, as in all of them joined; each keeps only its own columns."""
    whole, first = _joined(tables), 0
    for table in tables:
        yield whole.loc[first : first + len(table) - 1, whole.columns.isin(table.columns)].copy()
        first += len(table)


def _read_table(path: Path) -> pd.DataFrame:
    """One of the two tables, if it is what was written; an `InputError` that names it otherwise."""
    try:
        data = read_regular(os.path.realpath(path), LARGE)
        checksum = _checksums(path.with_name(f"{path.name.partition('.')[0]}.sha256")).get(path.name)
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            raise ValueError("it has another checksum: it was damaged or changed")
        table = parquet_frame(data)
        if "run" in table and any(
            _hash(run) != identity for run, identity in zip(table["run"], table["identity"], strict=True)
        ):
            raise ValueError("a run has another identity than its description")
        return table
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read as records ({error})") from None


def _hash(description: Any) -> str:
    return hashlib.sha256(str(description).encode()).hexdigest()[:16]


def _checksums(path: Path) -> dict[str, str]:
    """By the name of a file; none where there is no such list."""
    if not path.exists():
        return {}
    lines = read_regular(os.path.realpath(path), SMALL).decode().splitlines()
    return {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}


def provenance_of(parts: Mapping[str, Iterable[Result]]) -> str:
    """Where the numbers of the parts of a figure come from, in words."""
    devices = {result.run.identity: str(result.provenance.get("device")) for part in parts.values() for result in part}
    return ", ".join(f"{count} runs on {kind}" for kind, count in sorted(collections.Counter(devices.values()).items()))
