"""Packs finished runs into a few large files, and takes single runs out again.

Every state in between is valid, so a process may be killed at any write:

1. A pack is written under a temporary name, read again, flushed to the disk and renamed. From then
   on its runs exist twice, with the same content.
2. The folder of each run is renamed, so that it disappears at once, and removed.
3. A pack with few runs is written again together with new ones, and the old one is removed.

Other processes may train, read and pack at the same time. Readers list folders before packs, and
look again if a file has gone. A lock keeps two processes from packing at once.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError
from ..core.files import (
    as_storage_error,
    flush,
    is_folder,
    move_aside,
    own_folder,
    read_regular,
    remove,
)
from .claims import Claims
from .index import PackedOutcomes, pack_outcomes, read_index, write_index
from .outcomes import CURVES, check_run, kept_parts
from .packs import MOST_BYTES, MOST_FILES, MOST_RUNS, Pack, PackWriter, pack_folder, read_packs
from .reader import IDENTITY, LARGE, list_names, why

_PARAMETERS = re.compile(r"\d{9,12}\.safetensors")
_REMOVED = re.compile(r"\.packed-[0-9a-f]{16}")
_Files = list[tuple[str, bytes]]


class Packed(NamedTuple):
    """The result of `pack_runs`."""

    runs: int  # runs whose folders were packed
    packs: int  # packs of the folder
    left: dict[str, str]  # runs that stay in their folders with the reason


def pack_runs(folder: Path, most_runs: int = MOST_RUNS) -> Packed:
    """Pack the finished runs of a folder.

    Packs that are not full are packed again together with new runs. Damaged runs, and folders with
    foreign files, stay as they are.

    **Arguments:**

    - `most_runs`: the most runs in a pack.
    """
    if os.path.lexists(folder) and not is_folder(folder):
        raise InputError(f"{folder}: it should be a folder; move it away")
    with as_storage_error(folder), _lock(folder):
        for name in list_names(folder, _REMOVED):
            remove(folder / name)
        with _Packing(folder, most_runs) as packing:
            packing.run()
        return Packed(packing.count, len(read_packs(folder)), packing.left)


def take_out(folder: Path, identities: set[str]) -> None:
    """Move packed runs back into folders; others stay as they are."""
    if not any(identities & pack.files.keys() for pack in read_packs(folder)):
        return
    with _lock(folder), _Packing(folder, MOST_RUNS) as packing:
        for pack in read_packs(folder):
            chosen = identities & pack.files.keys()
            if chosen:
                damaged = {name for name in chosen if not _unpack(folder, pack, name)}
                packing.add_pack(pack, chosen, whole=not damaged)


def remove_unreadable(folder: Path) -> dict[str, str]:
    """Move damaged packs aside; return them with the reason."""
    broken: dict[str, str] = {}
    read_packs(folder, broken)
    damaged = {path: reason for path, reason in broken.items() if os.access(path, os.R_OK)}
    for path in damaged:
        move_aside(Path(path))
    return damaged


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    own_folder(pack_folder(folder))
    with Claims(pack_folder(folder)).hold("packing"):
        yield


class _Packing(contextlib.AbstractContextManager["_Packing"]):
    """Writes packs one after another. Without an error, old packs are removed at the end."""

    def __init__(self, folder: Path, most_runs: int) -> None:
        self.folder = folder
        self.most_runs = most_runs
        self.count = 0  # runs whose folders were packed
        self.left: dict[str, str] = {}
        self._written: dict[str, PackedOutcomes] = {}  # new packs by name
        self._writer: PackWriter | None = None
        self._kept: list[dict[str, Any]] = []  # `kept_parts` of the runs in the current pack
        self._loose: list[str] = []  # of these runs, those that have folders
        self._old: list[tuple[Pack, bool]] = []  # packs to remove, and whether they are undamaged

    def run(self) -> None:
        """Pack all finished runs, and packs that are not full."""
        packs = read_packs(self.folder)
        small = [pack for pack in packs if not self._full(pack)]
        names = [name for name, is_a in list_names(self.folder, IDENTITY).items() if is_a]
        if not names and len(small) < 2:
            return
        packed = {name for name in names if self._add_folder(name)}
        for pack in packs:
            again = packed & pack.files.keys()
            if pack in small or again:
                self.add_pack(pack, packed, all(_is_whole(pack, name) for name in again))

    def _full(self, pack: Pack) -> bool:
        size = os.stat(pack.path).st_size
        files = sum(map(len, pack.files.values()))
        most = size >= MOST_BYTES // 2 or files >= MOST_FILES // 2
        return most or len(pack.files) >= self.most_runs

    def _add_folder(self, identity: str) -> bool:
        """Pack the folder of a run; return True if that is possible."""
        try:
            self._add(identity, _files_of(self.folder / identity))
            self._loose.append(identity)
            return True
        except (FileNotFoundError, ValueError) as error:
            self.left[identity] = why(error)
            return False

    def add_pack(self, pack: Pack, without: set[str], whole: bool = True) -> None:
        """Pack the readable runs of a pack again.

        **Arguments:**

        - `without`: runs to leave out.
        - `whole`: False if a run to leave out is damaged: the pack is kept under another name.
        """
        for identity in sorted(pack.files.keys() - without):
            try:
                names = pack.files[identity]
                self._add(identity, [(name, pack.read(identity, name, LARGE)) for name in names])
            except ValueError as error:
                self.left[identity] = why(error)
                whole = False
        self._old.append((pack, whole))

    def _add(self, identity: str, files: _Files) -> None:
        """Check a run and write it into the current pack, or into a new one if that is full."""
        given = dict(files)

        def read(name: str, most: int) -> bytes:
            if name not in given:
                raise ValueError(f"{name} is missing")
            return given[name]

        kept = kept_parts(check_run(read, identity, form=True))
        size = sum(len(data) for _, data in files)
        if size > MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes; at most {MOST_BYTES:,} are packed")
        writer = self._writer
        if writer is not None and (
            len(writer.runs) >= self.most_runs
            or writer.bytes + size > MOST_BYTES
            or writer.files + len(files) > MOST_FILES
        ):
            self._publish()
        if self._writer is None:
            self._writer = PackWriter(self.folder)
        self._writer.add(identity, files)
        self._kept.append(kept)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._close()
        finally:
            if self._writer is not None:
                self._writer.discard()

    def _close(self) -> None:
        """Publish the last pack, remove the old ones, and bring the index up to date."""
        self._publish()
        for pack, whole in self._old:
            if whole:
                pack.path.unlink(missing_ok=True)
            else:
                move_aside(pack.path)
        entries, packs = read_index(self.folder)
        there = {pack.path.name for pack in read_packs(self.folder)}
        packs = {name: pack for name, pack in (packs | self._written).items() if name in there}
        packed = set().union(*(pack.names() for pack in self._written.values()))
        write_index(self.folder, {n: e for n, e in entries.items() if n not in packed}, packs)

    def _publish(self) -> None:
        """Give the pack its name, and remove the folders of its runs."""
        if self._writer is None:
            return
        pack = self._writer.close()
        self._writer = None
        self._written[pack.path.name] = pack_outcomes(pack.stamp, True, self._kept, {})
        for identity in self._loose:
            place = self.folder / f".packed-{uuid.uuid4().hex[:16]}"
            with contextlib.suppress(FileNotFoundError):  # it was just set aside
                os.rename(self.folder / identity, place)
                self.count += 1
            remove(place)
        self._loose = []
        self._kept = []


def _files_of(path: Path) -> _Files:
    """Read the files of a run. Raises `ValueError` if the folder holds anything else."""
    names = sorted(os.listdir(path))
    found = [name for name in names if name != "parameters"]
    if found != sorted(("run.json", CURVES)):
        raise ValueError(f"its files are {', '.join(names)[:200]}")
    if "parameters" in names:
        inner = sorted(os.listdir(path / "parameters"))
        if not is_folder(path / "parameters") or not all(map(_PARAMETERS.fullmatch, inner)):
            raise ValueError("its folder parameters holds other files")
        found += [f"parameters/{name}" for name in inner]
    return [(name, read_regular(path / name, LARGE)) for name in found]


def _is_whole(pack: Pack, identity: str) -> bool:
    """Return True if no file of a packed run is damaged."""
    try:
        return all(bool(pack.read(identity, name, LARGE)) for name in pack.files[identity])
    except ValueError:
        return False


def _unpack(folder: Path, pack: Pack, identity: str) -> bool:
    """Write a packed run into its own folder, unless it has one.

    **Returns:** False if a file is damaged, which is left out.
    """
    if os.path.lexists(folder / identity):
        return True
    stage = folder / f".writing-{uuid.uuid4().hex[:16]}"
    stage.mkdir()
    whole = True
    try:
        for name in pack.files[identity]:
            try:
                data = pack.read(identity, name, LARGE)
            except ValueError:
                whole = False
                continue
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_bytes(data)
            flush(stage / name)
        flush(stage)
        os.rename(stage, folder / identity)
    except BaseException:
        remove(stage)
        raise
    flush(folder)
    return whole
