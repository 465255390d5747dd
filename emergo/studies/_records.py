"""Runs that were trained elsewhere and kept as two tables: outcomes, and curves of those whose curves are shown.

`results/` of a checkout holds such records of the paper presets, trained on a GPU; a figure that asks for these runs draws
them at once.
"""

import collections
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .._errors import InputError
from .._files import output_folder, staged
from ..engine import Run
from ..measure import Emergence
from ._result import Result, curve_frame, curves_from, result_row, run_json

RESULTS = Path(__file__).parents[2] / "results"
"""The records of this checkout."""


class Records:
    """Read-only results by identity."""

    def __init__(self, runs: pd.DataFrame, curves: pd.DataFrame | None = None) -> None:
        self._rows = {row["identity"]: row for row in runs.to_dict("records")} if len(runs) else {}
        self._curves = {} if curves is None else dict(tuple(curves.groupby("identity")))

    def __contains__(self, run: Run) -> bool:
        return run.identity in self._rows

    def has_curves(self, run: Run) -> bool:
        return run.identity in self._curves

    def read(self, run: Run) -> Result:
        row = self._rows[run.identity]
        found = Emergence(row["plateau"], row["plateau_low"], row["plateau_high"], row["state"])
        frame = self._curves.get(run.identity)
        seen = None if frame is None else curves_from(frame)
        failed = None if pd.isna(row["failed_step"]) else int(row["failed_step"])
        return Result(run, found, int(row["steps"]), failed, json.loads(row["provenance"]), seen)


def record_tables(results: Iterable[Result], curves_of: Iterable[str] = ()) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables of records: outcomes of all, and curves of the runs with these identities."""
    wanted, rows, frames = set(curves_of), [], []
    for result in results:
        config = json.dumps(run_json(result.run), sort_keys=True)
        rows.append(result_row(result) | {"provenance": json.dumps(dict(result.provenance)), "run": config})
        if result.run.identity in wanted and result.curves is not None:
            frames.append(curve_frame(result).assign(identity=result.run.identity))
    none = pd.DataFrame({"identity": []})
    return pd.DataFrame(rows) if rows else none, pd.concat(frames, ignore_index=True) if frames else none


def write_records(runs: pd.DataFrame, curves: pd.DataFrame, folder: Path | str, name: str) -> None:
    """Puts tables of records into `NAME.runs.parquet` and `NAME.curves.parquet` of a folder. What these hold of other runs is
    kept, what they hold of the same runs replaced. Nothing is rounded; bytes are ordered so that files are half as large."""
    folder = output_folder(folder)
    with staged(folder) as stage:
        for kind, table in (("runs", runs), ("curves", curves)):
            path = folder / f"{name}.{kind}.parquet"
            old = pd.read_parquet(path) if path.exists() else table[:0]
            parts = [part for part in (old[~old["identity"].isin(runs["identity"])], table) if len(part)]
            whole = pd.concat(parts, ignore_index=True) if parts else table
            floats = [str(column) for column in whole if pd.api.types.is_float_dtype(whole[column])]
            others = [str(column) for column in whole if column not in floats]
            how: dict[str, Any] = {"compression": "zstd", "compression_level": 19}
            how |= {"use_byte_stream_split": floats, "use_dictionary": others} if floats else {}
            whole.to_parquet(stage / path.name, index=False, **how)


def read_records(folder: Path | str = RESULTS) -> Records:
    """The records under a folder: every `*.runs.parquet` with the `*.curves.parquet` beside it; none where there are none."""
    runs, curves = [], []
    for path in sorted(Path(folder).glob("*.runs.parquet")):
        try:
            runs.append(pd.read_parquet(path))
            beside = path.with_name(path.name.replace(".runs.", ".curves."))
            if beside.exists():
                curves.append(pd.read_parquet(beside))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as records ({error})") from None
    if not runs:
        return Records(pd.DataFrame())
    return Records(pd.concat(runs, ignore_index=True), pd.concat(curves, ignore_index=True) if curves else None)


def provenance_of(parts: Mapping[str, Iterable[Result]]) -> str:
    """Where the numbers of the parts of a figure come from, in words."""
    unique = {result.run.identity: str(result.provenance.get("device")) for part in parts.values() for result in part}
    kinds = collections.Counter(unique.values())
    return ", ".join(f"{count} runs on {kind}" for kind, count in sorted(kinds.items()))
