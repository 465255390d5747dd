"""Folders and files that only this user and root can change.

What is executed must not be replaceable by others. Whoever can write in any folder on the path to
a file can replace the file. So the path is opened one component at a time, every component is
checked after it was opened, and the next one is opened relative to it: no component can be
exchanged after its check.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # symlinks on a path, as in Linux
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


class NotPrivate(ValueError):
    """Others can change a folder or file. The message is one line that names it."""


@contextlib.contextmanager
def private_folder(path: Path, create: bool = False) -> Iterator[int]:
    """Open a folder that only this user can change, and yield its descriptor.

    The folders above it must belong to this user or root. Others may write in them only if the
    sticky bit is set, as in /tmp, so that they cannot rename what is inside.

    **Arguments:**

    - `create`: create missing folders for this user alone.

    Raises `NotPrivate`, or `OSError` such as `FileNotFoundError`.
    """
    descriptor = os.open("/", _FOLDER)
    try:
        parts = [*reversed(os.path.abspath(path).split("/"))]
        shown = "/"  # the path of the open component
        links = 0
        while parts:
            name = parts.pop()
            if name in ("", "."):
                continue
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            shown = os.path.normpath(os.path.join(shown, name))
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise NotPrivate(f"{path} has too many links")
                if status.st_uid not in (0, os.getuid()):
                    raise NotPrivate(f"the link {shown} belongs to another user")
                target = os.readlink(name, dir_fd=descriptor)
                parts += reversed(target.split("/"))
                shown = os.path.dirname(shown)
                if target.startswith("/"):
                    shown = "/"
                    descriptor = _replaced(descriptor, os.open("/", _FOLDER))
                continue
            descriptor = _replaced(descriptor, os.open(name, _FOLDER, dir_fd=descriptor))
            _check_parent(os.fstat(descriptor), shown)
        _check_own(os.fstat(descriptor), str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _check_parent(status: os.stat_result, shown: str) -> None:
    if status.st_uid not in (0, os.getuid()):
        raise NotPrivate(f"{shown} belongs to another user")
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise NotPrivate(f"others may write in {shown}")


def _check_own(status: os.stat_result, shown: str) -> None:
    if status.st_uid != os.getuid():
        raise NotPrivate(f"{shown} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise NotPrivate(f"others may write in {shown}")


def read_private(folder: int, name: str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes in an open folder.

    Raises `ValueError` for anything else, and `NotPrivate` if others can change it.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise ValueError(f"{name} is not a regular file of at most {most} bytes")
        _check_own(status, name)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def write_private(folder: int, name: str, part: str, content: bytes) -> None:
    """Write a file in an open folder, for this user alone, under the name `part` first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
