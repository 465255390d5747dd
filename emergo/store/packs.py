"""Packed runs: finished runs in a few large files, for clusters that limit the number of files.

    runs/packs/<16 digits>.zip          up to a thousand runs, each with the files of its folder

A pack is a ZIP file without compression, so `unzip` gives the folders back. Every file in it is
checked as it would be in its folder. A pack is written under a temporary name and renamed, and is
never changed. Imports neither JAX nor pandas.
"""

import functools
import os
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..core.files import flush, is_folder, open_safely, regular_file, temporary_sibling
from .reader import list_names, why

PACK = re.compile(r"[0-9a-f]{16}\.zip")
MEMBER = re.compile(r"([0-9a-f]{16})/(run\.json|curves\.parquet|parameters/\d{9,12}\.safetensors)")
MOST_RUNS = 1000  # in a pack
MOST_BYTES = 2**30  # of the runs in a pack
MOST_FILES = 60_000  # of the runs in a pack; a ZIP file without extensions lists 65,535
_LARGEST = 2**31 - 1  # bytes of a pack, so that it needs no 64-bit extension of ZIP
_DIRECTORY = 2**24  # most bytes of the list of files at the end of a pack
_END = struct.Struct("<4s4H2LH")  # the end of a ZIP file
_HEAD = struct.Struct("<4s22x2H")  # before each member; the last two are lengths of what follows
_TRIES = 5  # a pack may be replaced by another one between listing and reading


class Member(NamedTuple):
    """The place of a file in a pack."""

    offset: int
    size: int
    crc: int


class Pack(NamedTuple):
    """A readable pack."""

    path: Path
    stamp: str  # inode, size and times
    files: Mapping[str, Mapping[str, Member]]  # by run and name, such as `run.json`

    def read(self, identity: str, name: str, most: int) -> bytes:
        """Return a file of a run. Raises `OSError`, or `ValueError` with the reason."""
        if name not in self.files[identity]:
            raise ValueError(f"{self.path.name} holds no {name} of it")
        offset, size, crc = self.files[identity][name]
        if size > most:
            raise ValueError(f"{name} has {size:,} bytes; at most {most:,} are read")
        with open_safely(self.path) as file:
            file.seek(offset)
            head = file.read(_HEAD.size)
            mark, letters, more = _HEAD.unpack(head.ljust(_HEAD.size))
            if mark != b"PK\3\4" or file.read(letters) != f"{identity}/{name}".encode():
                raise ValueError(f"{name} is not where {self.path.name} says")
            file.seek(more, os.SEEK_CUR)
            data = file.read(size)
        if len(data) < size or zlib.crc32(data) != crc:
            raise ValueError(f"{name} was damaged or changed in {self.path.name}")
        return data


def pack_folder(folder: Path) -> Path:
    """Return the folder of the packs of a folder of runs."""
    return folder / "packs"


def read_packs(folder: Path, broken: dict[str, str] | None = None) -> list[Pack]:
    """Return the readable packs of a folder of runs.

    **Arguments:**

    - `broken`: receives unreadable packs with the reason.
    """
    packs: list[Pack] = []
    if not is_folder(folder):  # a link would lead to the packs of another folder
        return packs
    for _ in range(_TRIES):
        packs = []
        wrong: dict[str, str] = {}
        gone = False
        for name in list_names(pack_folder(folder), PACK, wrong):
            path = pack_folder(folder) / name
            try:
                packs.append(_open_pack(path))
            except FileNotFoundError:
                gone = True
            except (OSError, ValueError) as error:
                wrong[str(path)] = why(error)
        if not gone:
            if broken is not None:
                broken |= wrong
            break
    return packs


def packed_file(folder: Path, identity: str, name: str, most: int) -> bytes:
    """Return a file of a packed run.

    Raises `FileNotFoundError` if no readable pack holds the run, and `ValueError` if the file is
    missing or damaged.
    """
    for _ in range(_TRIES):
        pack = find_pack(folder, identity)
        if pack is None:
            break
        try:
            return pack.read(identity, name, most)
        except FileNotFoundError:  # its runs have moved to another pack
            continue
    raise FileNotFoundError(2, "No such file", f"{folder}/{identity}/{name}")


def find_pack(folder: Path, identity: str) -> Pack | None:
    """Return the pack that holds a run, or None."""
    return next((pack for pack in read_packs(folder) if identity in pack.files), None)


def stored_names(folder: Path) -> set[str]:
    """Return the names in a folder of runs: of folders, and of packed runs.

    Runs are packed before their folders are removed, so folders are listed first.
    """
    names = set(os.listdir(folder))
    return names.union(*(pack.files for pack in read_packs(folder)))


def pack_stamp(path: Path) -> str:
    """Return inode, size and times of a pack."""
    status = regular_file(path, _LARGEST)
    numbers = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return " ".join(map(str, numbers))


def _open_pack(path: Path) -> Pack:
    stamp = pack_stamp(path)
    return Pack(path, stamp, _list_files(str(path), stamp))


@functools.lru_cache(maxsize=1024)
def _list_files(path: str, stamp: str) -> Mapping[str, Mapping[str, Member]]:
    """Return the files in a pack by run; raise `ValueError` for any other file."""
    with open_safely(path) as file:
        size = os.fstat(file.fileno()).st_size
        count = _check_end(file, size)
        files: dict[str, dict[str, Member]] = {}
        listed = _directory(file)
        # The module `zipfile` stops without an error if the length of an entry leads past the list.
        if len(listed) != count:
            raise ValueError(f"it lists {len(listed)} files instead of {count}")
        # Members that overlap would let a short file hold any number of runs.
        if sum(info.compress_size for info in listed) > size:
            raise ValueError("its files overlap")
        for info in listed:
            found = MEMBER.fullmatch(info.filename)
            if not found:  # a damaged name, or of a file that `pack_runs` would not keep
                raise ValueError(f"it holds the foreign file {info.filename!r:.60}")
            plain = info.compress_type == 0 and info.file_size == info.compress_size
            if not plain or not 0 <= info.header_offset < size or info.file_size > size:
                raise ValueError(f"{info.filename} is compressed or not within the file")
            members = files.setdefault(found[1], {})
            if found[2] in members:
                raise ValueError(f"it holds {info.filename} twice")
            members[found[2]] = Member(info.header_offset, info.file_size, info.CRC)
    return files


def _check_end(file: BinaryIO, size: int) -> int:
    """Return the number of files in a pack.

    Raises `ValueError` unless it ends like a pack, with a bounded list of files. The module
    `zipfile` reads a list of any size, and looks for it in several places.
    """
    before = 20  # bytes of the pointer of a 64-bit ZIP file, which a pack has not
    if size < _END.size + before:
        raise ValueError("it is cut short")
    file.seek(-_END.size - before, os.SEEK_END)
    tail = file.read(_END.size + before)
    mark, disk, other, _, count, length, start, comment = _END.unpack(tail[before:])
    whole = start + length + _END.size == size and length <= _DIRECTORY
    if mark != b"PK\5\6" or disk or other or comment or not whole or tail.startswith(b"PK\6\7"):
        raise ValueError("it does not end like a pack: it was cut short, damaged or changed")
    return count


def _directory(file: BinaryIO) -> list[Any]:
    import zipfile  # on first use, because most folders have no packs

    try:
        with zipfile.ZipFile(file) as opened:
            return opened.infolist()
    except Exception as error:  # of many kinds, for damaged files
        raise ValueError(f"it cannot be read ({error})") from None


class PackWriter:
    """Writes a pack under a temporary name. `close` gives it its own."""

    def __init__(self, folder: Path) -> None:
        import zipfile

        self.path = pack_folder(folder) / f"{uuid.uuid4().hex[:16]}.zip"
        self._part = temporary_sibling(self.path)
        self._zip = zipfile.ZipFile(self._part, "x", allowZip64=False)
        self.runs: list[str] = []
        self.files = 0
        self.bytes = 0

    def add(self, identity: str, files: Iterable[tuple[str, bytes]]) -> None:
        """Add the files of a run by name."""
        from zipfile import ZipInfo

        self.runs.append(identity)
        for name, data in files:
            info = ZipInfo(f"{identity}/{name}")  # without a time, which would not be the run's
            info.external_attr = 0o644 << 16  # what `unzip` gives the file
            self._zip.writestr(info, data)
            self.files += 1
            self.bytes += len(data)

    def close(self) -> Pack:
        """Flush the pack to the disk, read every byte of it again, and rename it.

        Raises `OSError` if what was written cannot be read.
        """
        self._zip.close()
        flush(self._part)
        pack = _open_pack(self._part)
        try:
            for identity in self.runs:
                for name, member in pack.files[identity].items():
                    pack.read(identity, name, member.size)
        except (KeyError, ValueError) as error:
            raise OSError(f"what was written cannot be read: {error}") from None
        os.rename(self._part, self.path)
        flush(self.path.parent)
        return _open_pack(self.path)

    def discard(self) -> None:
        """Remove the temporary file, if the pack was not closed."""
        opened = self._zip.fp
        self._zip.fp = None  # else its destructor writes the list of files
        if opened is not None:
            opened.close()
        self._part.unlink(missing_ok=True)
