"""Atomic writes, and careful reads.

Files are written under a temporary name and renamed, so that readers see a whole file or none.

Folders may be damaged, or come from an attacker. So only regular files of a bounded size are read,
and symlinks inside a folder are never followed.
"""

import contextlib
import errno
import gzip
import io
import os
import shutil
import stat
import tempfile
import uuid
import zlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .errors import InputError, StorageError

# Errors that concern the disk, whatever the operation.
TROUBLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))
# Suffixes of files that describe other files, see `staged`.
_VOUCHING = (".json", ".sha256")


def regular_file(path: Path | str, most: int | None = None) -> os.stat_result:
    """Return the status of a regular file.

    Raises `ValueError` for anything else, and for a file of more than `most` bytes.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{os.path.basename(path)} is not a regular file")
    if most is not None and status.st_size > most:
        raise ValueError(
            f"{os.path.basename(path)} has {status.st_size:,} bytes; at most {most:,} are read"
        )
    return status


def open_safely(path: Path | str) -> BinaryIO:
    """Open a file for reading, without waiting for a writer and without following links.

    The file may have been replaced since `regular_file` looked at it.
    """
    safely = os.O_NONBLOCK | os.O_NOFOLLOW
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | safely))


def read_regular(path: Path | str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raise `ValueError` for anything else.

    Bytes appended during the call are not read.
    """
    size = regular_file(path, most).st_size
    with open_safely(path) as file:
        return file.read(size)


def half_of_memory() -> int:
    """Return the most bytes that are read of a file of parameters or of a checkpoint."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class _Bounded(io.RawIOBase):
    """The bytes of a file, decompressed if it is a gzip file.

    Raises `ValueError` after `most` bytes, and for damaged gzip data.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._most = most
        self._left = most
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._source: Any = gzip.GzipFile(fileobj=file) if packed else file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"gzip: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to over {self._most:,} bytes, the most that are read")
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_regular(path: Path | str, most: int) -> Iterator[io.BufferedReader]:
    """Open a regular file of at most `most` bytes, also after decompression by gzip.

    Raises `ValueError` for anything else.
    """
    regular_file(path, most)
    with open_safely(path) as file:
        yield io.BufferedReader(_Bounded(file, most))


def is_folder(path: Path | str) -> bool:
    """Return True for an existing folder; symlinks do not count."""
    return os.path.isdir(path) and not os.path.islink(path)


def move_aside(path: Path) -> Path:
    """Rename a file that cannot be used, in the same folder, and return the new name.

    A symlink itself is renamed, not its target. A missing file has been moved by another process.
    """
    aside = path.with_name(f".broken-{uuid.uuid4().hex[:16]}-{path.name}"[:240])
    with as_storage_error(path), contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    return aside


def own_folder(path: Path) -> Path | None:
    """Create a folder whose parent exists.

    Anything else of that name, such as a symlink, is moved aside.

    **Returns:** where it was moved, or None.
    """
    aside = move_aside(path) if os.path.lexists(path) and not is_folder(path) else None
    with as_storage_error(path):
        path.mkdir(exist_ok=True)
    return aside


def remove(path: Path) -> None:
    """Remove a file, a folder with its contents, or a symlink, but never what a symlink names."""
    if is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def as_storage_error(where: Path, numbers: Container[int | None] | None = None) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` that names the place.

    **Arguments:**

    - `numbers`: the error numbers to turn; None: all.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of our output has gone
        raise
    except OSError as error:
        if numbers is not None and error.errno not in numbers:
            raise
        plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        raise StorageError.of(where, plain) from None


def output_folder(path: Path | str) -> Path:
    """Create a folder and check that it is writable, before any work is done."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write to this folder ({error.strerror}); choose another folder"
        ) from None
    return folder


def check_parent(option: str, path: Path) -> None:
    """Raise `InputError` if the folder of a file to write does not exist: it may be mistyped."""
    if not path.parent.is_dir():
        raise InputError(
            f"{option} {path}: the folder {path.parent} does not exist; create it first, or name "
            f"another one"
        )


def temporary_sibling(path: Path) -> Path:
    """Return a hidden name in the folder of `path` that no other process on any machine uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}")


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot flush folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write a file under a temporary name and rename it: readers see the old content or the new.

    The last of several writers wins.

    **Arguments:**

    - `durable`: flush the file to the disk before and after renaming it.
    """
    part = temporary_sibling(path)
    with as_storage_error(path):
        try:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
            if durable:
                flush(part)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if durable:
            flush(path.parent)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder whose files are renamed into `folder` if the block succeeds.

    `folder` only ever holds whole files, old or new. A JSON file or a list of checksums describes
    the other files. So the old one is removed first and the new one comes last: it never stands
    next to files of another run.
    """
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".emergo-", dir=folder))
    try:
        with as_storage_error(folder, TROUBLE):
            yield stage
        with as_storage_error(folder):
            files = sorted(stage.iterdir(), key=lambda file: (file.suffix in _VOUCHING, file.name))
            for file in files:
                if file.suffix in _VOUCHING:
                    (folder / file.name).unlink(missing_ok=True)
            for file in files:
                os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
