"""Claims: one file per unit, which says which process trains the unit. Imports neither JAX nor
pandas.

A process takes a claim by creating the file and renews it every few seconds. A process that was
killed stops renewing:

- On the same machine, a claim is free as soon as its process is gone.
- On other machines, it is free once it was not renewed for `stale` seconds. Clocks may differ, so a
  time of renewal in the future also counts as stale after that many seconds.
- A Slurm job that was requeued takes over the claims of its previous start.

Two processes may briefly hold the same claim. A process that finds another token in the file gives
up. Until then both do the same work, and the store accepts the result of either.
"""

import contextlib
import functools
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError, StorageError
from ..core.files import atomic_write, is_folder, move_aside, temporary_sibling
from ..core.json import seal, to_jsonable
from .reader import CLAIM, UNIT, checker, count, list_names, number_or_none, read_json, why

STALE = 120.0  # seconds without renewal after which a claim of another machine is free
BEAT = 2.0  # seconds between renewals at first; up to ten times as many for long units
_held: set[str] = set()  # tokens of the claims that this process holds or is about to take

_PROGRESS: dict[str, Any] = {
    "running?": [(str, count, number_or_none)],  # identity, step and loss of each run
    "done?": count,
    "total?": count,
    "rate?": number_or_none,
    "bytes?": number_or_none,
    "seconds?": number_or_none,
    "seconds_left?": number_or_none,
    "notes?": [{"run": str, "text": str, "step": number_or_none, "data": dict}],
}
_CHECK = checker(
    {
        "token": str,
        "machine?": str,
        "host?": str,
        "pid?": count,
        "start?": str | None,
        "job?": str | None,
        "restarts?": count,
        "progress?": _PROGRESS,
    }
)


class Note(NamedTuple):
    """A message of a worker about a run in training, such as a forecast."""

    text: str  # for people
    step: float | None  # ranks the notes, smallest first; None: nothing is expected
    data: Mapping[str, Any] = {}  # for programs


def notes_of(progress: Mapping[str, Any]) -> dict[str, Note]:
    """Return the notes in the progress of a claim, by run identity."""
    entries = progress.get("notes", [])
    return {entry["run"]: Note(entry["text"], entry["step"], entry["data"]) for entry in entries}


class ClaimLost(Exception):
    """Another process has taken the claim.

    `same_job` is True if that process is a later start of the same Slurm job.
    """

    def __init__(self, same_job: bool) -> None:
        super().__init__("another process has taken over this unit")
        self.same_job = same_job


@functools.cache
def machine() -> str:
    """Identify this boot of this machine, or this container: where process ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str | None:
    """Return when a process started, or None if it has ended.

    The start time tells a process from a later one with the same id.
    """
    try:
        if sys.platform != "linux":
            os.kill(pid, 0)
            return "unknown"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # Z: a zombie, ended but not yet reaped
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, IndexError):
        return "unknown"


def owner() -> dict[str, Any]:
    """Describe this process: machine, process id, Slurm task and number of restarts."""
    pid = os.getpid()
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    return {
        "machine": machine(),
        "host": platform.node(),
        "pid": pid,
        "start": process_start(pid),
        "job": f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}" if job else None,
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0) if job else 0,
    }


def alive(claim: Mapping[str, Any], age: float, stale: float) -> bool:
    """Return True if the owner of a claim seems to be at work.

    **Arguments:**

    - `claim`: content of the claim file.
    - `age`: seconds since it was renewed.
    - `stale`: age above which an owner on another machine counts as gone.
    """
    here = owner()
    same_job = here["job"] is not None and claim.get("job") == here["job"]
    if same_job and claim.get("restarts", 0) < here["restarts"]:
        return False
    if claim.get("machine") == here["machine"] and isinstance(claim.get("pid"), int):
        if claim["pid"] == here["pid"] and claim.get("start") == here["start"]:
            return claim.get("token") in _held  # False if an interrupt came while taking it
        return claim.get("start") == process_start(claim["pid"])
    return abs(age) <= stale


def read_claim(path: Path) -> dict[str, Any] | None:
    """Return the content of a claim and the time of its renewal, `renewed`.

    Returns None if it is missing. An unreadable claim has the key `wrong` with the reason.
    """
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
    """A claim that this process holds. A thread renews it until it is released."""

    def __init__(self, path: Path, content: dict[str, Any], beat: float) -> None:
        self.path = path
        self._content = content
        self._beat = beat
        self._taker: dict[str, Any] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Publish progress with the next renewal.

        Raises [`ClaimLost`][] if another process has taken the claim.
        """
        if self._taker is not None:
            job = self._content["job"]
            raise ClaimLost(job is not None and self._taker.get("job") == job)
        # One assignment, because the other thread may be reading the content.
        self._content = self._content | {"progress": dict(progress)}

    def _mine(self) -> bool:
        content = read_claim(self.path) or {}
        if content.get("token") not in (None, self._content["token"]):
            self._taker = content
        return self._taker is None

    def _renew(self) -> None:
        begun = time.monotonic()
        while True:
            elapsed = time.monotonic() - begun
            pause = min(max(self._beat, elapsed / 30), 10 * self._beat)
            if self._end.wait(pause) or not self._mine():
                return
            # A full disk is reported where results are written, not here.
            with contextlib.suppress(OSError, StorageError):
                atomic_write(self.path, seal(to_jsonable(self._content)), durable=False)

    def release(self) -> None:
        """Stop renewing and remove the file, unless another process has taken it."""
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._mine():
                self.path.unlink(missing_ok=True)
        _held.discard(self._content["token"])

    def __exit__(self, *_: object) -> None:
        self.release()


class Claims:
    """The claims in a folder.

    **Arguments:**

    - `stale`: seconds without renewal after which a claim of another machine is free.
    - `beat`: seconds between renewals.
    """

    def __init__(self, folder: Path, stale: float = STALE, beat: float = BEAT) -> None:
        self.folder = folder
        self.stale = stale
        self.beat = beat

    def path(self, unit: str) -> Path:
        """Return the file of a unit's claim."""
        return self.folder / f"{unit}.json"

    def take(self, unit: str) -> Claim | None:
        """Take the claim on a unit; return None if another process holds it."""
        path = self.path(unit)
        content = {"token": uuid.uuid4().hex, "unit": unit, "since": time.time()} | owner()
        part = temporary_sibling(path)
        claim = None
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
            with contextlib.suppress(OSError):  # the error above says more
                part.unlink(missing_ok=True)

    def _take_over(self, part: Path, path: Path, token: str) -> bool:
        """Replace a claim whose owner is gone by the file `part`; return True on success."""
        before = read_claim(path)
        if before is None:
            return _place(part, path)
        # Both times come from the file system, so the clocks of the machines need not agree.
        if alive(before, part.stat().st_mtime - before["renewed"], self.stale):
            return False
        if is_folder(path):
            move_aside(path)
        os.replace(part, path)
        time.sleep(0.02)  # another process may replace it at the same time: the last one wins
        return (read_claim(path) or {}).get("token") == token

    @contextlib.contextmanager
    def hold(self, name: str, patience: float = 60.0) -> Iterator[Claim]:
        """Wait for a claim and hold it as a lock.

        Raises `InputError` that names the owner if the claim is not free after `patience` seconds.
        """
        until = time.monotonic() + patience
        while (claim := self.take(name)) is None:
            if time.monotonic() > until:
                other = read_claim(self.path(name)) or {}
                who = f"{other.get('host', '?')}, process {other.get('pid', '?')}"
                raise InputError(
                    f"{self.path(name)}: held by {who}; wait for it to end, or remove the file if "
                    f"it is gone"
                )
            time.sleep(0.1)
        with claim:
            yield claim

    def live(
        self, clear: bool = False, broken: dict[str, str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return the claims whose owners are at work, by unit, with their `age` in seconds.

        **Arguments:**

        - `clear`: remove the claims of units whose owners are gone.
        - `broken`: receives unreadable claims with the reason; they count as held until stale.
        """
        live = {}
        now = time.time()
        for name in list_names(self.folder, CLAIM, broken):
            path = self.folder / name
            claim = read_claim(path)
            if claim is None:
                continue
            if broken is not None and "wrong" in claim:
                broken[str(path)] = claim["wrong"]
            age = now - claim["renewed"]
            if alive(claim, age, self.stale):
                live[path.stem] = claim | {"age": max(0.0, age)}
            elif clear and UNIT.match(name):
                with contextlib.suppress(OSError):  # it may be a folder
                    path.unlink()
        return live


def _place(part: Path, path: Path) -> bool:
    """Give a file its final name; return False if another file has that name."""
    try:
        os.link(part, path)
        return True
    except FileExistsError:
        return False
    except OSError:
        pass
    # The file system may lack hard links. The claim is empty for a moment, which reads as held.
    try:
        with path.open("xb") as file:
            file.write(part.read_bytes())
        return True
    except FileExistsError:
        return False
