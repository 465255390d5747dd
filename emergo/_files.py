"""Files that are either whole or not there."""

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Container, Iterator
from pathlib import Path

from ._errors import InputError, StorageError

# Errors that are a disk's, whatever was being done.
_TROUBLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))


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
            if durable:
                flush(path.parent)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files move into `folder` one by one, by rename, when the block ends without an error.

    Whatever happens, `folder` holds only whole files: old ones or new ones. A JSON file vouches for the files beside it: an old
    one goes first and the new one comes last, so that it never stands beside files of another run.
    """
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".emergo-", dir=folder))
    try:
        with as_storage_error(folder, _TROUBLE):
            yield stage
        with as_storage_error(folder):
            for file in stage.glob("*.json"):
                (folder / file.name).unlink(missing_ok=True)
            for file in sorted(stage.iterdir(), key=lambda f: (f.suffix == ".json", f.name)):
                os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
