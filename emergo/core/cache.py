"""Compiled programs, kept on disk for the next process.

JAX can keep what it compiles. It names a program by its operations, all options, the device and the
versions of JAX and XLA. So changed code is another program, and a changed comment is not.

This module chooses the folder and how files are written. JAX writes them in place, so that another
process may read half a file, and damaged files stay. Here a file is written under a temporary name
and renamed, and starts with a checksum of its name and the rest. If the checksum is wrong, the file
is removed and the program is compiled again. When the folder exceeds its bound, the least recently
used programs are removed.

Programs from the folder are executed. So other users must not be able to change the folder, any
folder above it, or a file inside. This is checked whenever a file is opened. The folder is never
part of a study.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .json import digest
from .private import NotPrivate, private_folder, read_private, write_private

VARIABLE = "EMERGO_CACHE"
"""Environment variable with another folder, or `off`, `no`, `false`, `0` or nothing for none."""
_OFF = ("", "0", "off", "false", "no")
MOST_BYTES = 2**30  # bound on the size of all programs
LEAST_FREE = 2**28  # bytes that must be free on the disk, because XLA crashes on a full one
_STALE = 3600.0  # seconds after which a temporary file belongs to a process that has stopped


class CacheState(NamedTuple):
    """The folder of compiled programs, and whether it is used."""

    folder: Path
    off: str = ""  # the reason for keeping nothing; empty if programs are kept

    @property
    def bytes(self) -> int:
        return sum(status.st_size for _, status in _files(self.folder))


def cache_state() -> CacheState:
    """Evaluate the environment and the settings of JAX, and check the folder. Creates nothing."""
    import jax

    asked = os.environ.get(VARIABLE)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = os.path.expanduser(
        os.path.join(caches, "emergo", "programs") if asked is None else asked
    )
    folder = Path(name).absolute()
    given = jax.config.values["jax_compilation_cache_dir"]
    off = ""
    if not jax.config.values["jax_enable_compilation_cache"]:
        off = "JAX_ENABLE_COMPILATION_CACHE is off"
    elif given is not None:  # by the user, or by `keep_programs`
        folder = Path(given)
    elif name.strip().lower() in _OFF or name.startswith("~"):
        off = f"{VARIABLE} is {asked!r}"
    else:
        off = _objection(folder)
    return CacheState(folder, off)


def _objection(folder: Path) -> str:
    """Return the reason why a folder cannot be used, or "".

    A missing folder is judged by its first existing parent, in which it would be created.
    """
    place = folder
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        free = shutil.disk_usage(place).free
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not a folder that can be written"
    try:
        with private_folder(folder):
            pass
    except NotPrivate as error:
        return f"{error}, and programs below it are executed"
    except FileNotFoundError:  # the folders that exist are private
        pass
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return "" if free >= LEAST_FREE else f"{place} has less than {LEAST_FREE >> 20} MB free"


def keep_programs() -> None:
    """Keep the programs that this process compiles, unless the user has disabled it.

    Call this before anything is compiled. Only the first call has an effect.
    """
    import jax

    folder, off = cache_state()
    if off or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        # A private function, the same in JAX 0.10 and 0.11. JAX has no public way to replace how
        # files are written.
        jax_cache: Any = importlib.import_module("jax._src.compilation_cache")
        get_file_cache_of_jax = jax_cache.get_file_cache
    except (ImportError, AttributeError):
        return
    _silence_loader()
    files = ProgramFiles(folder)

    def get_file_cache(path: str) -> tuple[Any, str]:
        return (files, path) if path == str(folder) else get_file_cache_of_jax(path)

    jax_cache.get_file_cache = get_file_cache
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Keep programs that compile quickly, too: a training compiles dozens of them.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


class ProgramFiles:
    """A folder of programs by JAX's keys, which any number of processes read and write.

    The folder is created. Errors of the disk are ignored, and so is a folder that others can
    change.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = folder
        self._most = most_bytes
        self._unchecked = most_bytes  # bytes written since the size of the folder was checked
        with contextlib.suppress(OSError, NotPrivate), private_folder(folder, create=True):
            pass

    def get(self, key: str) -> bytes | None:
        """Return a program, or None. A damaged file, or one of another user, is removed."""
        name = self._name(key)
        with contextlib.suppress(OSError, NotPrivate), private_folder(self._path) as folder:
            try:
                value = _opened(name, read_private(folder, name, self._most))
            except FileNotFoundError:
                return None
            except (OSError, ValueError):
                os.unlink(name, dir_fd=folder)
                return None
            os.utime(name, dir_fd=folder, follow_symlinks=False)
            return value
        return None

    def put(self, key: str, value: bytes) -> None:
        """Write a program. If several processes do, the last one wins; their programs are equal."""
        name = self._name(key)
        with contextlib.suppress(OSError, NotPrivate):
            with private_folder(self._path) as folder:
                part = f".{uuid.uuid4().hex[:16]}"
                write_private(folder, name, part, _checksum(name, value) + value)
            self._unchecked += len(value)
            if self._unchecked > self._most / 16:
                self._unchecked = 0
                prune(self._path, self._most)

    def _name(self, key: str) -> str:
        # Different machines may share the folder, and a program for one processor could stop
        # another with an illegal instruction.
        return f"{key.replace(os.sep, '_')}-{digest(_processor(), 12)}"


def _checksum(name: str, value: bytes) -> bytes:
    """Return the checksum of a program and of the name it is asked by."""
    return hashlib.sha256(name.encode() + b"\0" + value).digest()


def _opened(name: str, content: bytes) -> bytes:
    """Return the program in a file; raise `ValueError` if it is damaged, or another one."""
    value = content[32:]
    if _checksum(name, value) != content[:32]:
        raise ValueError(f"{name} has another checksum")
    return value


def kept_files(name: str) -> ProgramFiles | None:
    """Return further files in a folder next to the compiled programs; None if nothing is kept."""
    folder, off = cache_state()
    return None if off else ProgramFiles(folder / name)


def prune(folder: Path, most_bytes: int) -> None:
    """Remove stale temporary files, and the least recently used files of a full folder.

    A folder that exceeds `most_bytes` is reduced to four fifths of it. Several processes may prune
    a folder at the same time.
    """
    files = sorted(_files(folder), key=lambda file: file[1].st_mtime)
    size = sum(status.st_size for _, status in files)
    excess = size - 0.8 * most_bytes if size > most_bytes else 0.0
    for path, status in files:
        stale = path.name.startswith(".") and time.time() - status.st_mtime > _STALE
        if excess > 0 or stale:
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= status.st_size


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """List all cache files, including XLA's autotuning cache in a subfolder."""
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(root, name), os.lstat(Path(root, name))


@functools.cache
def _processor() -> tuple[str, ...]:
    """Describe the processor and the number of available cores, for which XLA divides loops."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = [platform.machine(), platform.processor(), f"{cores} cores"]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        words += dict.fromkeys(
            line for line in lines if line.startswith(("model name", "flags", "Features"))
        )
    return tuple(words)


def _silence_loader() -> None:
    """Stop XLA from printing two lines for every program that it reads on a CPU.

    On processors with AVX-512, XLA's loader mistakes two compiler preferences for missing features
    (jax issue 38445). `import emergo` sets an environment variable against it, which has no effect
    if JAX was imported before: then JAX has set it to 1. With a GPU, XLA's messages are kept: they
    explain problems with drivers.
    """
    import jax

    if jax.default_backend() == "cpu" and os.environ.get("TF_CPP_MIN_LOG_LEVEL") in (None, "1"):
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module("jaxlib.utils").absl_set_min_log_level(3)
