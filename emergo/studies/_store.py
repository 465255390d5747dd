"""Files are the database: one folder per finished run, named by its identity, written under another name and renamed."""

import hashlib
import io
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._errors import InputError
from .._files import as_storage_error, flush, is_folder, move_aside, output_folder, own_folder, remove, temporary_sibling
from .._json import seal, to_jsonable
from ..engine import Result, Run, Trained, load_parameters, save_parameters
from ..measure import Emergence
from ._axes import config_columns
from ._curves import curve_frame, curves_from, read_curves
from ._outcomes import CURVES, SCHEMA, is_finished, outcome_row, read_run
from ._reader import list_names, why

_SNAPSHOTS = ".snapshots"
_PARAMETERS = re.compile(r"\d{9,12}\.safetensors")


def result_content(result: Result) -> dict[str, Any]:
    """A result but for its curves, as plain data: what `run.json` holds."""
    run, plateau = result.run, result.plateau
    outcome: dict[str, Any] = {"state": result.state, "time": plateau.time, "low": plateau.low, "high": plateau.high}
    outcome |= {"steps": result.steps, "failed_step": result.failed_step}
    outcome |= {} if result.reason is None else {"reason": result.reason}
    content = {"schema": SCHEMA, "identity": run.identity, **run.describe(), "columns": config_columns(run.config)}
    content |= {"outcome": outcome, "curves": sorted(result.curves or {}), "provenance": dict(result.provenance)}
    return to_jsonable(content | {"probes": _probe_versions(run)})


def _probe_versions(run: Run) -> dict[str, int]:
    named = {getattr(p, "__qualname__", type(p).__qualname__): p for p in run.config.probes}
    return {name: int(getattr(p, "version", 1)) for name, p in named.items()}


def result_row(result: Result) -> dict[str, Any]:
    """A run as one row of a table: its axes, its seed, its plateau."""
    return outcome_row(result_content(result))


def result_from(
    run: Run, row: Mapping[str, Any], provenance: Mapping[str, Any], curves: pd.DataFrame | Mapping[str, np.ndarray] | None
) -> Result:
    """The inverse of `result_row`."""
    plateau = Emergence(row["plateau"], row["plateau_low"], row["plateau_high"], row["state"])
    failed = None if pd.isna(row["failed_step"]) else int(row["failed_step"])
    reason = None if pd.isna(row.get("reason")) else row["reason"]
    kept = None if curves is None or not len(curves.keys()) else curves_from(curves)
    return Result(run, row["state"], plateau, int(row["steps"]), failed, provenance, kept, reason)


class Store:
    """Finished runs under a folder. A run is there whole or not at all. Two processes that finish the same run write the same,
    and the first wins; a folder that cannot be read is moved aside."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __contains__(self, run: Run) -> bool:
        """Whether a run is there and can be read."""
        return is_finished(self.folder, run.identity)

    def holds(self, run: Run) -> bool:
        """Whether something has the name of a run, be it damaged."""
        return os.path.lexists(self.folder / run.identity)

    def lacks(self, run: Run, curves: Sequence[str] = (), keep: Sequence[int] | None = None) -> list[str]:
        """What a run that is there does not hold though it is asked for now: curves, probes of this version, `parameters`.
        A run that failed lacks nothing: it would fail again."""
        path = self.folder / run.identity
        content = read_run(path, run.identity, curves=False)
        if content["outcome"]["state"] == "failed":
            return []
        lacking, held = [name for name in curves if name not in content["curves"]], content.get("probes", {})
        lacking += [f"{name} {new}" for name, new in _probe_versions(run).items() if held.get(name, new) != new]
        if keep is not None:
            evaluations = read_curves(path, content).column("step").to_numpy()
            wanted = {int(evaluations[evaluations >= step][0]) for step in keep if step <= evaluations[-1]}
            lacking += ["parameters"] if wanted - set(filter(lambda step: self._holds(run, step), self.steps(run))) else []
        return lacking

    def _holds(self, run: Run, step: int) -> bool:
        """Whether parameters of a step can be read."""
        try:
            return self.parameters(run, step).step == step
        except InputError:
            return False

    def write(self, result: Result) -> Path:
        if not self.folder.is_dir():
            output_folder(self.folder)
        identity, token = result.run.identity, uuid.uuid4().hex[:16]
        path, stage = self.folder / identity, self.folder / f".writing-{token}"
        with as_storage_error(self.folder):
            stage.mkdir()
            try:
                curves = io.BytesIO()
                curve_frame(result.curves).to_parquet(curves, index=False)
                files = {CURVES: hashlib.sha256(curves.getvalue()).hexdigest()}
                (stage / CURVES).write_bytes(curves.getvalue())
                (stage / "run.json").write_bytes(seal(result_content(result) | {"files": files}, indent=1))
                snapshots = self.folder / _SNAPSHOTS
                if is_folder(snapshots) and is_folder(snapshots / identity):
                    os.rename(snapshots / identity, stage / "parameters")
                for file in (stage / CURVES, stage / "run.json", stage):
                    flush(file)
                if os.path.lexists(path) and not is_finished(self.folder, identity):
                    move_aside(path)
                try:
                    os.rename(stage, path)
                except OSError:
                    if not is_finished(self.folder, identity):  # else another process was first, with the same run
                        raise
                    remove(stage)
                flush(self.folder)
            except BaseException:
                remove(stage)
                raise
        return path

    def snapshot(self, run: Run, step: int, params: Any) -> None:
        """Keeps the parameters of a run in training; they become part of it when it ends."""
        folder = self.folder / _SNAPSHOTS / run.identity
        path = folder / f"{step:09d}.safetensors"
        own_folder(folder.parent)
        own_folder(folder)
        save_parameters(path, Trained(run, step, params))

    def steps(self, run: Run) -> list[int]:
        """The steps at which the parameters of a run were kept."""
        folder = self.folder / run.identity / "parameters"
        return sorted(int(name.partition(".")[0]) for name in list_names(folder, _PARAMETERS))

    def parameters(self, run: Run, step: int | None = None) -> Trained:
        """A run's model as it was at a step; by default the last one that was kept."""
        path, steps = self.folder / run.identity, self.steps(run)
        if not steps:
            raise InputError(f"{path}: no parameters were kept; train the study with keep=True")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise InputError(f"{path}: no parameters of step {step}; kept are {', '.join(map(str, steps))}")
        try:
            sealed = read_run(path, run.identity, curves=False).get("schema", 1) >= 3
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a finished run that can be read ({why(error)})") from None
        return load_parameters(path / "parameters" / f"{chosen:09d}.safetensors", run, sealed)

    def set_aside(self, identity: str) -> None:
        """Takes a run out of the store; its folder stays under another name."""
        path = self.folder / identity
        with as_storage_error(path):
            os.rename(path, self.folder / f".aside{temporary_sibling(path).name}")

    def read(self, run: Run, curves: bool = True) -> Result:
        """A finished run; with `curves=False` only its outcome."""
        path = self.folder / run.identity
        try:
            content = read_run(path, run.identity, curves=False)
            frame = read_curves(path, content).to_pandas() if curves else None
            return result_from(run, outcome_row(content), content["provenance"], frame)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a finished run that can be read ({' '.join(str(error).split())})") from None
