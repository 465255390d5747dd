"""Files that are either whole or not there, and files of others that are read with care: a folder may be damaged, or come from
somebody who means no good. Only regular files of a bounded size are read, and links are never followed inside of a folder."""

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

from ._errors import InputError, StorageError

# Errors that are a disk's, whatever was being done.
TROUBLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))


_VOUCHING = (".json", ".sha256")
_NOT_FILES = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def regular_file(path: Path | str, most: int | None = None) -> os.stat_result:
    """What the system knows of a file; a `ValueError` for what is not a regular file, or is larger than `most` bytes."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        kind = _NOT_FILES.get(stat.S_IFMT(status.st_mode), "a device")
        raise ValueError(f"{os.path.basename(path)} is {kind}, not a regular file")
    if most is not None and status.st_size > most:
        raise ValueError(f"{os.path.basename(path)} has {status.st_size:,} bytes; at most {most:,} are read")
    return status


def read_regular(path: Path | str, most: int, status: os.stat_result | None = None) -> bytes:
    """The content of a regular file of at most so many bytes; a `ValueError` for anything else. Never waits for a writer.
    `status`: what `regular_file` has just said of it."""
    size = (status or regular_file(path, most)).st_size
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{os.path.basename(path)} is not a regular file")
        content = os.read(descriptor, size + 1)  # one more, to see the end
        while len(content) != size and len(content) <= most and (more := os.read(descriptor, 2**20)):
            content += more
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise ValueError(f"{os.path.basename(path)} has grown over {most:,} bytes")
    return content


class _Bounded(io.RawIOBase):
    """The bytes of a file, unpacked where gzip has packed it; a `ValueError` after `most`, or where they cannot be unpacked."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._most, self._left = most, most
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
    """A regular file of at most so many bytes, opened for reading, packed by gzip or not; a `ValueError` for anything else."""
    regular_file(path, most)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{os.path.basename(path)} is not a regular file")
        yield io.BufferedReader(_Bounded(file, most))


def is_folder(path: Path | str) -> bool:
    """Whether a folder is there; a link to one is none."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def move_aside(path: Path) -> Path:
    """Gives what cannot be used another name beside it, a link itself and never what it points to; returns the new name. What
    is gone by then another process has moved."""
    aside = path.with_name(f".broken-{uuid.uuid4().hex[:16]}-{path.name}"[:240])
    with as_storage_error(path), contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    return aside


def own_folder(path: Path) -> Path | None:
    """Makes a folder in one that is there. What is in its place and is none, such as a link, is moved aside; returns where."""
    aside = move_aside(path) if os.path.lexists(path) and not is_folder(path) else None
    with as_storage_error(path):
        path.mkdir(exist_ok=True)
    return aside


def remove(path: Path) -> None:
    """Removes a file, a link itself, or a folder with what is in it: never what a link points to."""
    if is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def as_storage_error(where: Path, numbers: Container[int | None] | None = None) -> Iterator[None]:
    """An error of the system inside the block becomes one line that names the place; `numbers`: only errors with these."""
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
    """Makes a folder and makes sure that it can be written to, before any work is done."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot write to this folder ({error.strerror}); choose another folder") from None
    return folder


def temporary_sibling(path: Path) -> Path:
    """A hidden name beside `path` that no other process on any machine uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}")


def flush(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk, so that even a machine that stops keeps them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot do this for folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Writes a file under another name and renames it: a reader sees the old content or the new. The last to write wins."""
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
    """A temporary folder whose files move into `folder` one by one, by rename, when the block ends without an error.

    Whatever happens, `folder` holds only whole files: old ones or new ones. A JSON file, or a list of checksums, vouches for
    the files beside it: an old one goes first and the new one comes last, so that it never stands beside files of another run.
    """
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".emergo-", dir=folder))
    try:
        with as_storage_error(folder, TROUBLE):
            yield stage
        with as_storage_error(folder):
            files = sorted(stage.iterdir(), key=lambda file: (file.suffix in _VOUCHING, file.name))
            for file in (file for file in files if file.suffix in _VOUCHING):
                (folder / file.name).unlink(missing_ok=True)
            for file in files:
                os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
