"""Damage to the files of a study, and a limit on how long a command may take."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from emergo.core.json import seal
from emergo.store import StudyFolder

from .absurd import ODD, absurd_run

SECONDS = 20  # after which a command counts as hung
NAMES = ["notes.txt", "0123456789abcdef", "0123456789ab.json", "\x1b[31m[.json", "x.parquet"]
NAMES += ["0" * 16 + ".0.json", ".x"]
KEYS = ["\x1b[31m[", "[bold]", "identity", "plateau", "x" * 300]


class Hung(Exception):
    """A command has taken too long."""


@contextlib.contextmanager
def watchdog(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `Hung` after some seconds, without the time that other processes took."""
    begun = time.monotonic() - _queued()

    def bark(number: int, frame: FrameType | None) -> None:
        left = seconds - (time.monotonic() - _queued() - begun)
        if left < 0.1:
            raise Hung
        signal.setitimer(signal.ITIMER_REAL, left)

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _queued() -> float:
    """Return how long this process has waited for a core, in seconds; 0 if that is unknown."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@dataclasses.dataclass(frozen=True)
class Mutation:
    """Damage to one file."""

    what: str
    path: Path
    forged: bool = False  # the checksum was changed, too
    gone: bool = False  # the file is missing, so that no message can name it


def damaged_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Return a kind of damage and the damaged bytes."""
    kinds = ["bit", "bit", "bit", "bits", "cut", "empty", "append", "zeros", "block", "noise"]
    kind = rng.choice(kinds)
    changed = bytearray(data)
    at = rng.randrange(max(len(data), 1))
    if kind in ("bit", "bits"):
        for _ in range(1 if kind == "bit" else rng.randrange(2, 9)):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "empty":
        changed.clear()
    elif kind == "append":
        changed += rng.choice([b" ", b"\n", b"}", b"\x00" * 40, data])
    elif kind == "zeros":
        changed[at : at + 64] = bytes(len(changed[at : at + 64]))
    elif kind == "block":
        changed[at:at] = changed[: rng.randrange(200)]
    else:
        changed = bytearray(rng.randbytes(rng.randrange(2000)))
    return kind, bytes(changed)


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values of a JSON text."""
    yield path
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, inner in members:
        yield from _nodes(inner, (*path, key))


def damaged_json(rng: random.Random, data: bytes) -> tuple[str, bytes, bool]:
    """Change a value, key or depth; keep the checksum, remove it, or make it valid again."""
    content = json.loads(data)
    path = rng.choice([path for path in _nodes(content) if path and path[0] != "checksum"])
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.choice(["value", "value", "value", "drop", "key", "deep"])
    if kind == "value":
        parent[path[-1]] = rng.choice(ODD)
    elif kind == "drop":
        del parent[path[-1]]
    elif kind == "key" and isinstance(parent, dict):
        parent[rng.choice(KEYS)] = parent.pop(path[-1])
    checksum = rng.choice(["old", "none", "right"])
    if checksum != "old":
        content.pop("checksum", None)
    if kind == "deep":
        text = json.dumps(content)[:-1] + f', "deep": {"[" * 100_000}{"]" * 100_000}}}'
        return f"json deep {checksum}", text.encode(), False
    if checksum == "right":
        return f"json {kind}", seal(content), True
    return f"json {kind} {checksum}", json.dumps(content).encode(), False


def put_in_place(rng: random.Random, path: Path, outside: Path) -> str:
    """Replace a file or folder by something else, and return what it is."""
    aside = path.with_name("moved away")
    os.rename(path, aside)
    kinds = ["pipe", "loop", "link", "link to a folder", "link to itself", "folder", "socket"]
    kind = rng.choice([*kinds, "huge", "gone", "device"])
    links = {
        "loop": path.name,
        "link": outside / "precious.txt",
        "link to a folder": outside,
        "link to itself": aside,
    }
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "inner").write_text("")
    elif kind == "socket":
        with (
            contextlib.closing(socket.socket(socket.AF_UNIX)) as one,
            contextlib.chdir(path.parent),  # addresses must be short
        ):
            one.bind(path.name[:90])
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**41)
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which never ends
        except PermissionError:
            path.symlink_to("/dev/zero")
    if kind != "link to itself":
        remove = shutil.rmtree if aside.is_dir() else os.unlink
        remove(aside)
    return kind


def mutate(rng: random.Random, folder: Path, outside: Path) -> Mutation:
    """Damage a random file or folder of a study."""
    space = StudyFolder(folder)
    folders = [space.plans, space.runs, space.claims, space.failures, space.checkpoints]
    folders.append(space.runs / "packs")
    [plan] = space.plans.glob("*.json")
    run = rng.choice(sorted(space.runs.glob("[0-9a-f]*")))
    files = {
        "run": run / "run.json",
        "curves": run / "curves.parquet",
        "parameters": next(space.runs.glob("*/parameters/*")),
        "plan": plan,
        "index": space.runs / ".index.json",
        "claim": next(space.claims.glob("*.json")),
        "failure": next(space.failures.glob("*.json")),
        "pack": next((space.runs / "packs").glob("*.zip")),
        "members": next(space.checkpoints.glob("*/*.json")),
        "log.csv": folder / "log.csv",
        "log.parquet": folder / "log.parquet",
    }
    others = ["run", "run", "run", "curves", "curves", "a run's folder", "a folder", "foreign"]
    others += ["pack", "pack", "absurd run", "absurd run"]
    kind = rng.choice([*files, *others])
    if kind == "foreign":
        path = rng.choice([folder, *folders, run]) / rng.choice(NAMES)
        path.write_bytes(rng.choice([b"", b"{", b"mine", rng.randbytes(99)]))
        return Mutation("foreign", path)
    if kind == "absurd run":
        return Mutation(absurd_run(rng, run), run / "run.json", forged=True)
    if kind == "a run's folder":
        path = run
    elif kind == "a folder":
        path = rng.choice(folders)
    else:
        path = files[kind]
    how = rng.random()
    if kind not in files or how < 0.15:
        special = put_in_place(rng, path, outside)
        gone = special == "gone" or (kind == "a folder" and special == "folder")
        return Mutation(f"{kind}: {special}", path, gone=gone)
    forged = False
    if how < 0.6 and path.suffix == ".json":
        words, data, forged = damaged_json(rng, path.read_bytes())
    else:
        words, data = damaged_bytes(rng, path.read_bytes())
    path.write_bytes(data)
    return Mutation(f"{kind}: {words}", path, forged)
