"""Who trains which unit: one file per unit, taken by one process at a time. Needs neither JAX nor pandas.

A claim names its owner and is renewed every few seconds; a process that was killed does not renew it. On the same machine a
dead owner is seen at once, elsewhere after `stale` seconds; a requeued Slurm job takes what its former self held. Should two
processes come to hold one claim, the one that finds the other's name in the file gives up; until then both do the same work,
and the store takes the result of either. A claim that is dated in the future is as stale as one of the past.
"""

import contextlib
import errno
import functools
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError, StorageError
from .._files import atomic_write, is_folder, move_aside, temporary_sibling
from .._json import seal, to_jsonable
from ._reader import CLAIM, UNIT, checker, count, list_names, number, number_or_none, read_json, why

STALE = 120.0  # seconds after which a claim that was not renewed is free, where its owner cannot be looked up
_held: set[str] = set()  # tokens of the claims that this process holds or is about to take
BEAT = 2.0  # seconds between renewals at first; up to ten times as many while a unit is trained for minutes


_NUMBERS = ("rate?", "bytes?", "seconds?", "seconds_left?")
_PROGRESS: dict[str, Any] = {"running?": [(str, count, number_or_none)], "done?": count, "total?": count}
_ENDS = (number_or_none, number_or_none)
_FORECAST = {"run": str, "state": str, "at": number, "step": number_or_none, "why": str, "words": str}
_FORECAST |= {"intervals": {"50%?": _ENDS, "80%?": _ENDS}, "metric": str, "threshold": number_or_none}
_FORECAST |= {"curve": ([number], [number_or_none])}
_PROGRESS |= {"forecasts?": [_FORECAST]}
_PROGRESS |= dict.fromkeys(_NUMBERS, number_or_none)
_CLAIM = {"token": str, "machine?": str, "host?": str, "pid?": count, "start?": str | None, "job?": str | None}
_CHECK = checker(_CLAIM | {"restarts?": count, "progress?": _PROGRESS})


class ClaimLost(Exception):
    """Another process has taken the claim; `same_job` when it is a later start of this Slurm job."""

    def __init__(self, same_job: bool) -> None:
        super().__init__("another process has taken over this unit")
        self.same_job = same_job


@functools.cache
def machine() -> str:
    """The same text for processes that see each other's numbers: one machine since its start, one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str | None:
    """When a process began, so that a number used again is not taken for it; None if there is no such process."""
    try:
        if sys.platform != "linux":
            os.kill(pid, 0)
            return "unknown"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # ended, and only waiting to be noticed by its parent
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, IndexError):
        return "unknown"


def owner() -> dict[str, Any]:
    """This process, with the Slurm task it belongs to and how often that was restarted."""
    pid, job = os.getpid(), os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0") if job else "0"
    process = {"machine": machine(), "host": platform.node(), "pid": pid, "start": process_start(pid)}
    task = f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}" if job else None
    return process | {"job": task, "restarts": int(restarts) if restarts.isdigit() else 0}


def alive(record: Mapping[str, Any], age: float, stale: float) -> bool:
    """Whether the owner of a claim of this age still works on it, as far as can be told from here."""
    here = owner()
    if here["job"] is not None and record.get("job") == here["job"] and record.get("restarts", 0) < here["restarts"]:
        return False
    if record.get("machine") == here["machine"] and isinstance(record.get("pid"), int):
        if record["pid"] == here["pid"] and record.get("start") == here["start"]:
            return record.get("token") in _held  # else an interrupt came while it was taken
        return record.get("start") == process_start(record["pid"])
    return abs(age) <= stale


def read_claim(path: Path) -> dict[str, Any] | None:
    """The content of a claim with the time of its renewal, or that and what is `wrong` if it cannot be read; None if there is
    none."""
    try:
        renewed = {"renewed": path.lstat().st_mtime}
    except OSError:
        return None
    try:
        return read_json(path, _CHECK) | renewed
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return renewed | {"wrong": why(error)}


class Claim(contextlib.AbstractContextManager["Claim"]):
    """A unit that this process holds, renewed by a thread until it is released."""

    def __init__(self, path: Path, content: dict[str, Any], beat: float) -> None:
        self.path, self._content, self._beat = path, content, beat
        self._taker: dict[str, Any] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def tell(self, progress: Mapping[str, Any]) -> None:
        """What others may read of it at the next renewal. Raises [`ClaimLost`][] if the claim is another's by now."""
        if self._taker is not None:
            raise ClaimLost(self._taker.get("job") is not None and self._taker.get("job") == self._content["job"])
        self._content = self._content | {"progress": dict(progress)}  # in one go: the other thread may be reading it

    def _mine(self) -> bool:
        content = read_claim(self.path) or {}
        if content.get("token") not in (None, self._content["token"]):
            self._taker = content
        return self._taker is None

    def _renew(self) -> None:
        begun = time.monotonic()
        while not self._end.wait(min(max(self._beat, (time.monotonic() - begun) / 30), 10 * self._beat)) and self._mine():
            with contextlib.suppress(OSError, StorageError):  # the disk's trouble is told where results are written
                atomic_write(self.path, seal(to_jsonable(self._content)), durable=False)

    def release(self) -> None:
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._mine():
                self.path.unlink(missing_ok=True)
        _held.discard(self._content["token"])

    def __exit__(self, *_: object) -> None:
        self.release()


class Claims:
    """The claims under a folder."""

    def __init__(self, folder: Path, stale: float = STALE, beat: float = BEAT) -> None:
        self.folder, self.stale, self.beat = folder, stale, beat

    def path(self, unit: str) -> Path:
        return self.folder / f"{unit}.json"

    def take(self, unit: str) -> Claim | None:
        """The claim on a unit, or None while another process holds it."""
        path = self.path(unit)
        content = {"token": uuid.uuid4().hex, "unit": unit, "since": time.time()} | owner()
        part, claim = temporary_sibling(path), None
        _held.add(content["token"])
        try:
            part.write_bytes(seal(content))
            if _place(part, path) or self._take_over(part, path, content["token"]):
                claim = Claim(path, content, self.beat)
            return claim
        except OSError as error:
            raise StorageError.of(self.folder.parent, error) from None
        finally:
            if claim is None:
                _held.discard(content["token"])
            part.unlink(missing_ok=True)

    def _take_over(self, part: Path, path: Path, token: str) -> bool:
        before = read_claim(path)
        if before is None:
            return _place(part, path)
        # Both times are the file system's, so that clocks of machines need not agree.
        if alive(before, part.stat().st_mtime - before["renewed"], self.stale):
            return False
        if is_folder(path):
            move_aside(path)
        os.replace(part, path)
        time.sleep(0.02)
        return (read_claim(path) or {}).get("token") == token

    @contextlib.contextmanager
    def hold(self, name: str, patience: float = 60.0) -> Iterator[Claim]:
        """A claim as a lock: waits for it, and says who has it if that takes long."""
        until = time.monotonic() + patience
        while (claim := self.take(name)) is None:
            if time.monotonic() > until:
                other = read_claim(self.path(name)) or {}
                who = f"{other.get('host')}, process {other.get('pid')}" if other else "another process"
                raise InputError(f"{self.path(name)}: held by {who}; wait for it to end, or remove the file if it is gone")
            time.sleep(0.1)
        with claim:
            yield claim

    def live(self, clear: bool = False, broken: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
        """The claims whose owners are at work, by unit, with their `age`; those of others are removed on request. Those that
        cannot be read are noted in `broken`, and count as held until they are stale."""
        live, now = {}, time.time()
        for name in list_names(self.folder, CLAIM, broken):
            claim = read_claim(self.folder / name)
            if claim is not None and broken is not None and "wrong" in claim:
                broken[str(self.folder / name)] = claim["wrong"]
            if claim is not None and alive(claim, now - claim["renewed"], self.stale):
                live[name.removesuffix(".json")] = claim | {"age": max(0.0, now - claim["renewed"])}
            elif clear and UNIT.match(name):
                with contextlib.suppress(OSError):  # a folder with the name of a claim
                    (self.folder / name).unlink(missing_ok=True)
        return live


def _place(part: Path, path: Path) -> bool:
    """Gives a file its name if no file has it."""
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        try:  # a file system without links: for a moment the claim is empty, which reads as held
            with path.open("xb") as file:
                file.write(part.read_bytes())
        except FileExistsError:
            return False
    return True
