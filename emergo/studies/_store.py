"""Files are the database: one folder per finished run, named by its identity, written under another name and renamed."""

import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._errors import InputError
from .._files import as_storage_error, flush, output_folder, temporary_sibling
from ..engine import Result, Run, Trained, load_parameters, save_parameters, unpadded
from ..measure import Emergence
from ._axes import config_columns
from ._outcomes import IDENTITY, Outcomes, is_finished, outcome_numbers, outcome_row, read_outcomes, read_run, run_content
from ._version_1 import renamed_curve

_SUFFIX = re.compile(r"(_\d+)+$")
_SNAPSHOTS = ".snapshots"


def result_content(result: Result) -> dict[str, Any]:
    """A result but for its curves, as plain data: what `run.json` holds."""
    plateau = result.plateau
    outcome: dict[str, Any] = {"state": result.state, "time": plateau.time, "low": plateau.low, "high": plateau.high}
    outcome |= {"steps": result.steps, "failed_step": result.failed_step}
    outcome |= {} if result.reason is None else {"reason": result.reason}
    run = result.run
    curves = result.curves or {}
    content = run_content(run.describe(), run.identity, config_columns(run.config), outcome, curves, result.provenance)
    return content | {"probes": _probe_versions(run)}


def _probe_versions(run: Run) -> dict[str, int]:
    """The versions of a run's probes by their names."""
    named = {getattr(p, "__qualname__", type(p).__qualname__): p for p in run.config.probes}
    return {name: int(getattr(p, "version", 1)) for name, p in named.items()}


def result_row(result: Result) -> dict[str, Any]:
    """A run as one row of a table: its axes, its seed, its plateau."""
    return outcome_row(result_content(result))


def curve_frame(curves: Mapping[str, np.ndarray] | None) -> pd.DataFrame:
    """Curves as a table, one row per evaluation; a curve of several numbers has columns like `attention_0_1`."""
    columns: dict[str, np.ndarray] = {}
    for name, values in (curves or {}).items():
        if values.ndim == 1:
            columns[name] = values
        else:
            for index in np.ndindex(values.shape[1:]):
                columns["_".join([name, *map(str, index)])] = values[(slice(None), *index)]
    return pd.DataFrame(columns)


def curves_from(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The inverse of `curve_frame`; columns without a number are left out, as other runs of a table may have other curves."""
    shown = frame.drop(columns="identity", errors="ignore").dropna(axis=1, how="all")
    shown = shown.rename(columns=renamed_curve)
    curves: dict[str, np.ndarray] = {}
    for column in shown.columns:
        name = _SUFFIX.sub("", column)
        if name == column:
            curves[name] = shown[column].to_numpy()
        elif name not in curves:
            indices = [tuple(map(int, c[len(name) + 1 :].split("_"))) for c in shown.columns if _SUFFIX.sub("", c) == name]
            values = np.full((len(shown), *(1 + np.max(indices, 0))), np.nan, shown[column].to_numpy().dtype)
            for index in indices:
                values[(slice(None), *index)] = shown["_".join([name, *map(str, index)])]
            curves[name] = values
    return curves


class Store:
    """Finished runs under a folder.

    A run is there whole or not at all. Two processes that finish the same run write the same, and the first wins; a folder that
    cannot be read is moved aside.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def _path(self, identity: str) -> Path:
        return self.folder / identity

    def __contains__(self, run: Run) -> bool:
        """Whether a run is there and can be read."""
        return is_finished(self.folder, run.identity)

    def lacks(self, run: Run, curves: Sequence[str] = (), keep: Sequence[int] | None = None) -> list[str]:
        """What a run that is there does not hold though it is asked for now: curves, probes of this version, `parameters`.

        A run that failed lacks nothing: it would fail again.
        """
        content = read_run(self._path(run.identity), run.identity)
        if content["outcome"]["state"] == "failed":
            return []
        lacking, held = [name for name in curves if name not in content["curves"]], content.get("probes", {})
        lacking += [f"{name} {new}" for name, new in _probe_versions(run).items() if held.get(name, new) != new]
        if keep is not None:
            evaluations = pd.read_parquet(self._path(run.identity) / "curves.parquet", columns=["step"])["step"].to_numpy()
            wanted = {int(evaluations[evaluations >= step][0]) for step in keep if step <= evaluations[-1]}
            lacking += ["parameters"] if wanted - set(self.steps(run)) else []
        return lacking

    def write(self, result: Result) -> Path:
        """Puts a run into the store."""
        if not self.folder.is_dir():
            output_folder(self.folder)
        with as_storage_error(self.folder):
            return self._write(result)

    def _write(self, result: Result) -> Path:
        path = self._path(result.run.identity)
        stage = self.folder / f".writing-{uuid.uuid4().hex[:16]}"
        stage.mkdir()
        try:
            curve_frame(result.curves).to_parquet(stage / "curves.parquet", index=False)
            (stage / "run.json").write_text(json.dumps(result_content(result), indent=1) + "\n")
            snapshots = self.folder / _SNAPSHOTS / path.name
            if snapshots.is_dir():
                os.rename(snapshots, stage / "parameters")
            for file in (stage / "curves.parquet", stage / "run.json", stage):
                flush(file)
            if path.exists() and not self._readable(path.name):
                os.rename(path, self.folder / f".broken-{stage.name.removeprefix('.writing-')}")
            try:
                os.rename(stage, path)
            except OSError:
                if not self._readable(path.name):  # else another process was first, with the same run
                    raise
            flush(self.folder)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return path

    def snapshot(self, run: Run, step: int, params: Any) -> None:
        """Keeps the parameters of a run in training; they become part of it when it ends."""
        folder = self.folder / _SNAPSHOTS / run.identity
        path = folder / f"{step:09d}.safetensors"
        with as_storage_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            part = temporary_sibling(path)
            save_parameters(part, Trained(run, step, unpadded(run, params)))
            os.replace(part, path)

    def steps(self, run: Run) -> list[int]:
        """The steps at which the parameters of a run were kept."""
        folder = self._path(run.identity) / "parameters"
        return sorted(int(path.stem) for path in folder.glob("*.safetensors") if path.stem.isdigit())

    def parameters(self, run: Run, step: int | None = None) -> Trained:
        """A run's model as it was at a step; by default the last one that was kept."""
        steps = self.steps(run)
        if not steps:
            raise InputError(f"{self._path(run.identity)}: no parameters were kept; train the study with keep=True")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise InputError(f"{self._path(run.identity)}: no parameters of step {step}; kept are {', '.join(map(str, steps))}")
        return load_parameters(self._path(run.identity) / "parameters" / f"{chosen:09d}.safetensors", run)

    def set_aside(self, identity: str) -> None:
        """Takes a run out of the store; its folder stays under another name."""
        path = self._path(identity)
        with as_storage_error(path):
            os.rename(path, self.folder / f".aside{temporary_sibling(path).name}")

    def read(self, run: Run, curves: bool = True) -> Result:
        """A finished run; with `curves=False` only its outcome."""
        path = self._path(run.identity)
        try:
            content = read_run(path, run.identity)
            if {name: content[name] for name in ("semantics", "config", "seed")} != json.loads(json.dumps(run.describe())):
                raise ValueError("it describes another run than its name says")
            outcome = content["outcome"]
            plateau = Emergence(**outcome_numbers(outcome), state=outcome["state"])
            frame = pd.read_parquet(path / "curves.parquet") if curves else None
            kept = None if frame is None or not len(frame.columns) else curves_from(frame)
            ends = (outcome["steps"], outcome["failed_step"])
            return Result(run, outcome["state"], plateau, *ends, content["provenance"], kept, outcome.get("reason"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a finished run that can be read ({' '.join(str(error).split())})") from None

    def _readable(self, identity: str) -> bool:
        try:
            pd.read_parquet(self._path(identity) / "curves.parquet")
        except (OSError, ValueError):
            return False
        return is_finished(self.folder, identity)

    def __iter__(self) -> Iterator[str]:
        """The identities of the runs that are there."""
        if self.folder.is_dir():
            names = (path.name for path in self.folder.iterdir() if os.path.exists(path / "run.json"))
            yield from sorted(name for name in names if IDENTITY.fullmatch(name))

    def outcomes(self) -> Outcomes:
        """The rows of all runs by identity, and what cannot be read, without their curves."""
        return read_outcomes(self.folder)

    def table(self) -> pd.DataFrame:
        """All runs as a table, one row per run. Warns of folders that cannot be read, and leaves them out."""
        outcomes = self.outcomes()
        for path, why in outcomes.broken.items():
            warnings.warn(f"{path}: not a finished run that can be read ({why})", stacklevel=2)
        return pd.DataFrame(list(outcomes.rows.values()))
