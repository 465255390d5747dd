"""Compiled programs, kept on disk for the next process.

JAX can keep what it compiles. It names a program by the operations it was compiled from, all
options, the device and the versions of JAX and XLA: changed code is another program, and a comment
changes nothing. What is ours is the folder and how its files are written. JAX writes them in place,
so that another process may read half of one, and a damaged one stays. Here a file is written under
another name and renamed, and begins with a checksum of the rest; where that does not fit, the
program is compiled again without a word. What was not used for longest goes when the folder exceeds
its bound.

A program from the folder is executed. So the folder is the user's alone, and never part of a study.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import platform
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .errors import StorageError
from .files import atomic_write, read_regular
from .json import digest

VARIABLE = "EMERGO_CACHE"
"""Another folder for programs, or `off`, `no`, `false`, `0` or nothing at all to keep none."""
_OFF = ("", "0", "off", "false", "no")
MOST_BYTES = 2**30  # of all programs together
LEAST_FREE = (
    2**28
)  # bytes that must be free on the disk: XLA itself does not forgive one that is full
_STALE = (
    3600.0  # seconds after which a file that nobody renamed belongs to a process that was stopped
)
_lock = threading.Lock()


class CacheState(NamedTuple):
    """Where programs are kept, and whether."""

    folder: Path | None
    off: str = ""  # why nothing is kept; empty: programs are
    by_jax: bool = False  # the user has given JAX a folder, which is left to JAX

    @property
    def bytes(self) -> int:
        return (
            0 if self.folder is None else sum(status.st_size for _, status in _files(self.folder))
        )


def cache_state() -> CacheState:
    """What the variables and the settings of JAX ask for, and whether the folder will do. Makes
    nothing."""
    import jax

    if not jax.config.values["jax_enable_compilation_cache"]:
        return CacheState(None, "JAX_ENABLE_COMPILATION_CACHE is off")
    given = _given_to_jax()
    if given is not None and given != str(_wanted_folder()):
        return CacheState(Path(given), by_jax=True)
    folder = _wanted_folder()
    if folder is None:
        asked = os.environ.get(VARIABLE)
        return CacheState(
            None, "there is no home folder" if asked is None else f"{VARIABLE} is {asked!r}"
        )
    if _loader_complains():
        why = (
            "JAX was imported before emergo, and XLA prints two lines for every program that "
            "is read"
        )
        return CacheState(folder, f"{why}; import emergo first, or set TF_CPP_MIN_LOG_LEVEL=3")
    return CacheState(folder, _objection(folder))


def _given_to_jax() -> str | None:
    """The folder that JAX keeps programs in."""
    import jax

    return jax.config.values["jax_compilation_cache_dir"]


def _wanted_folder() -> Path | None:
    asked = os.environ.get(VARIABLE)
    if asked is not None and asked.strip().lower() in _OFF:
        return None
    try:
        if asked is not None:
            return Path(asked).expanduser().absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # there is no such user, or no home
        return None
    return base / "emergo" / "programs" if base.is_absolute() else None


def _objection(folder: Path) -> str:
    """Why a folder is not used, or nothing. One that is not there yet is made where the first of
    its parents allows it."""
    place = folder
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        status = place.stat()
        free = shutil.disk_usage(place).free
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{place} is not a folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} cannot be written"
    if place == folder and (
        status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        return f"others may write in {folder}, and its programs are executed"
    return "" if free >= LEAST_FREE else f"{place} has less than {LEAST_FREE >> 20} MB free"


def keep_programs() -> None:
    """From here on this process keeps what it compiles, unless the user has chosen otherwise.
    Called before anything is compiled; the first call decides."""
    with _lock:
        _keep_programs()


@functools.cache
def _keep_programs() -> None:
    import jax

    state = cache_state()
    if state.off or state.by_jax or state.folder is None:
        return
    folder = state.folder
    try:
        # Not public, and the same in JAX 0.10 and 0.11: the only way to have a say in how files are
        # written.
        jax_cache: Any = importlib.import_module("jax._src.compilation_cache")
        of_jax = jax_cache.get_file_cache
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (ImportError, AttributeError, OSError):
        return

    def get_file_cache(path: str) -> tuple[Any, str]:
        return (ProgramFiles(folder), path) if path == str(folder) else of_jax(path)

    jax_cache.get_file_cache = get_file_cache
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update(
            "jax_persistent_cache_min_compile_time_secs", 0.0
        )  # a training compiles dozens of small programs


class ProgramFiles:
    """Programs by JAX's keys in a folder that any number of processes read and write. Never raises
    for what the disk does."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = folder
        self._most = most_bytes
        # bytes written since the folder was last looked through; so the first write does
        self._unseen = most_bytes

    def get(self, key: str) -> bytes | None:
        """The program, or None where there is none or its file is damaged, which is then
        removed."""
        path = self._file(key)
        try:
            content = read_regular(path, self._most)
        except (OSError, ValueError):
            return None
        checksum = content[:32]
        value = content[32:]
        if hashlib.sha256(value).digest() != checksum:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Writes a program. The last of several processes wins; all have compiled the same."""
        with contextlib.suppress(StorageError, OSError):
            atomic_write(self._file(key), hashlib.sha256(value).digest() + value, durable=False)
            self._unseen += len(value)
            if self._unseen > self._most / 16:
                self._unseen = 0
                prune(self._path, self._most)

    def _file(self, key: str) -> Path:
        # The folder may be shared by machines that differ: a program for one could stop another
        # with an illegal instruction.
        return self._path / f"{key}-{digest(_processor(), 12)}"


def kept_verdicts() -> ProgramFiles | None:
    """Return the files next to the compiled programs that hold the results of checks, if any."""
    state = cache_state()
    if state.off or state.folder is None:
        return None
    folder = state.folder / "verdicts"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return ProgramFiles(folder)


def prune(folder: Path, most_bytes: int) -> None:
    """Removes what was not used for longest, if a folder exceeds its bound, until it fills four
    fifths of it; and what processes that were stopped have left. Other processes may do the same
    meanwhile."""
    files = sorted(_files(folder), key=lambda file: file[1].st_mtime)
    excess = sum(status.st_size for _, status in files)
    excess = excess - 0.8 * most_bytes if excess > most_bytes else 0.0
    for path, status in files:
        left = path.name.startswith(".") and time.time() - status.st_mtime > _STALE
        if excess > 0 or left:
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= status.st_size


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Those of a folder, also of XLA's own folder for its choices of kernels inside of it."""
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(root, name), os.lstat(Path(root, name))


@functools.cache
def _processor() -> tuple[str, ...]:
    """What this machine's processor can do, in the system's words, and how many cores are ours: XLA
    cuts loops for so many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = [platform.machine(), platform.processor(), f"{cores} cores"]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        words += [
            next((line for line in lines if line.startswith(name)), "")
            for name in ("model name", "flags", "Features")
        ]
    return tuple(words)


def _loader_complains() -> bool:
    """Whether XLA would print two long lines for every program from the folder: where processors
    have AVX-512 its loader takes two preferences of its compiler for features that the machine
    lacks (jax issue 38445). Only a variable that is set before JAX is imported silences it; `import
    emergo` sets it."""
    import jax

    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    quiet = level.isdigit() and int(level) >= 3
    return (
        jax.default_backend() == "cpu"
        and not quiet
        and any("avx512f" in words for words in _processor())
    )
