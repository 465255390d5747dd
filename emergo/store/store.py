"""Finished runs on disk: one folder per run, named by the identity of the run.

    runs/<identity>/run.json            config, seed, outcome, provenance, checksums
                    curves.parquet      one row per evaluation
                    parameters/         parameters at some steps, if the study keeps them
    runs/packs/                         packed runs, see `packs.py`

A folder is written under a temporary name and then renamed, so that readers see a complete run or
none. The functions take and return plain data; `emergo.study.results` adds the types.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.files import (
    as_storage_error,
    flush,
    is_folder,
    move_aside,
    output_folder,
    own_folder,
    remove,
    temporary_sibling,
)
from ..core.json import seal
from .curves import StoredRun, curve_bytes, curves_from, read_curves
from .outcomes import CURVES, SCHEMA, is_finished, is_verified, outcome_row, read_run
from .packing import take_out
from .packs import find_pack, packed_file
from .reader import LARGE, list_names, why

_SNAPSHOTS = ".snapshots"
_KEPT = "parameters"
_PARAMETERS = re.compile(r"\d{9,12}\.safetensors")


class Store:
    """Finished runs in a folder, by identity.

    Several processes may share the folder. Two processes that finish the same run write the same
    numbers, and the first one wins.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __contains__(self, identity: str) -> bool:
        """Return True if the run is stored and readable."""
        return is_finished(self.folder, identity)

    def has_entry(self, identity: str) -> bool:
        """Return True if the run has a folder or is packed, readable or damaged."""
        return os.path.lexists(self.folder / identity) or bool(find_pack(self.folder, identity))

    def content(self, identity: str) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return self._open(identity, curves=False)[0]

    def read(self, identity: str, curves: bool = True) -> StoredRun:
        """Return a finished run; with `curves=False` only its outcome.

        The provenance of a run without checksums has the entry `unverified`.
        """
        content, columns = self._open(identity, curves)
        provenance = content["provenance"]
        if not is_verified(content):
            provenance = provenance | {"unverified": True}
        return StoredRun(outcome_row(content), provenance, columns or None)

    def _open(
        self, identity: str, curves: bool
    ) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        try:
            content = read_run(self.folder, identity, curves=False)
            columns = None
            if curves:
                columns = curves_from(read_curves(self.folder, content).to_pandas())
            return content, columns
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.folder / identity}: not a finished run that can be read ({why(error)})"
            ) from None

    def write(self, content: Mapping[str, Any], curves: Mapping[str, np.ndarray] | None) -> Path:
        """Write a finished run and return its folder.

        **Arguments:**

        - `content`: everything but the curves, as `emergo.training.Result.content` returns it.
        - `curves`: arrays with one row per evaluation.

        A damaged run of the same name is moved aside.
        """
        if not self.folder.is_dir():
            output_folder(self.folder)
        identity = content["identity"]
        stage = self.folder / f".writing-{uuid.uuid4().hex[:16]}"
        with as_storage_error(self.folder):
            stage.mkdir()
            try:
                _write_files(stage, content, curves)
                snapshots = self.folder / _SNAPSHOTS
                if is_folder(snapshots) and is_folder(snapshots / identity):
                    os.rename(snapshots / identity, stage / _KEPT)
                flush(stage)
                self._publish(stage, identity)
            except BaseException:
                remove(stage)
                raise
        return self.folder / identity

    def _publish(self, stage: Path, identity: str) -> None:
        """Rename a complete folder to its final name."""
        path = self.folder / identity
        if os.path.lexists(path) and not is_finished(self.folder, identity):
            move_aside(path)
        try:
            os.rename(stage, path)
        except OSError:
            if not is_finished(self.folder, identity):
                raise
            remove(stage)  # another process has stored the same run first
        flush(self.folder)

    def set_aside(self, *identities: str) -> None:
        """Rename runs so that they are trained again; their files are kept.

        Packed runs are taken out of their packs first.
        """
        with as_storage_error(self.folder):
            take_out(self.folder, set(identities))
            for identity in identities:
                path = self.folder / identity
                os.rename(path, self.folder / f".aside{temporary_sibling(path).name}")

    def snapshot_path(self, identity: str, step: int) -> Path:
        """Return where to save parameters during training; `write` moves them into the run."""
        folder = self.folder / _SNAPSHOTS / identity
        own_folder(folder.parent)
        own_folder(folder)
        return folder / f"{step:09d}.safetensors"

    def steps(self, identity: str) -> list[int]:
        """Return the steps at which the parameters of a run were kept."""
        names = list(list_names(self.folder / identity / _KEPT, _PARAMETERS))
        if not os.path.lexists(self.folder / identity):
            pack = find_pack(self.folder, identity)
            packed = pack.files[identity] if pack else ()
            names = [name[len(_KEPT) + 1 :] for name in packed if name.startswith(f"{_KEPT}/")]
        return sorted(int(name.partition(".")[0]) for name in names)

    @contextlib.contextmanager
    def parameters(self, identity: str, step: int | None = None) -> Iterator[Path]:
        """Provide the file with the parameters at a step; by default the last step kept.

        The file of a packed run is a copy that is removed afterwards.
        """
        path = self.folder / identity
        steps = self.steps(identity)
        if not steps:
            raise InputError(f"{path}: no parameters were kept; train the study with keep=True")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise InputError(
                f"{path}: no parameters of step {step}; kept are {', '.join(map(str, steps))}"
            )
        name = f"{_KEPT}/{chosen:09d}.safetensors"
        if os.path.lexists(path):
            yield path / name
            return
        with tempfile.TemporaryDirectory(prefix="emergo-") as place:
            copy = Path(place) / f"{identity}.{chosen:09d}.safetensors"
            try:
                copy.write_bytes(packed_file(self.folder, identity, name, LARGE))
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path / name}: cannot be read as parameters ({why(error)})"
                ) from None
            yield copy


def _write_files(
    stage: Path, content: Mapping[str, Any], curves: Mapping[str, np.ndarray] | None
) -> None:
    """Write and flush the files of a run. `run.json` holds the checksum of the curves."""
    data = curve_bytes(curves)
    checksum = hashlib.sha256(data).hexdigest()
    described = {"schema": SCHEMA, **content, "files": {CURVES: checksum}}
    (stage / CURVES).write_bytes(data)
    (stage / "run.json").write_bytes(seal(described, indent=1))
    flush(stage / CURVES)
    flush(stage / "run.json")
