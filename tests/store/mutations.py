"""Ways to damage a file of a study, or to put something else in its place, and a limit on how long
a command may take."""

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

SECONDS = 20  # after which a command counts as hung
ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "",
    "text",
    [],
    {},
    [[]],
    "../../../victim",
    "\x1b]0;owned\x07\x1b[31m",
    "[/red]",
    "0" * 16,
]
ODD += [10**19, 10**400, -(2**63), 1e300, "\x00", "x" * 100_000, "\u202e", "NaN"]


class Hung(Exception):
    pass


@contextlib.contextmanager
def watchdog(seconds: float = SECONDS) -> Iterator[None]:
    """`Hung` after so many seconds; those that the machine gave to other processes do not count."""
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
    """Seconds that this process could have run and did not, because others did; 0 where the system
    does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@dataclasses.dataclass(frozen=True)
class Mutation:
    what: str
    path: Path  # what was damaged
    forged: bool = False  # with a checksum that is right
    gone: bool = False  # nothing is left of it that could be named


def damaged_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    kind = rng.choice(
        ["bit", "bit", "bit", "bits", "cut", "empty", "append", "zeros", "block", "noise"]
    )
    changed = bytearray(data)
    at = rng.randrange(max(len(data), 1))
    if kind == "bit" or kind == "bits":
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
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from _nodes(inner, (*path, key))


def _json(rng: random.Random, data: bytes) -> tuple[str, bytes, bool]:
    """Another value, key or depth somewhere in a JSON file, with the old checksum, none, or the
    right one."""
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
        parent[rng.choice(["\x1b[31m[", "[bold]", "identity", "plateau", "x" * 300])] = parent.pop(
            path[-1]
        )
    how = rng.choice(["old", "none", "right"])
    if how != "old":
        content.pop("checksum", None)
    text = (
        json.dumps(content)
        if kind != "deep"
        else json.dumps(content)[:-1] + f', "deep": {"[" * 100_000}{"]" * 100_000}}}'
    )
    if how == "right":
        return f"json {kind}", seal(content) if kind != "deep" else text.encode(), kind != "deep"
    return f"json {kind} {how}", text.encode(), False


def put_in_place(rng: random.Random, path: Path, outside: Path) -> str:
    """Something else in the place of a file or folder."""
    aside = path.with_name("moved away")
    os.rename(path, aside)
    kind = rng.choice(
        [
            "pipe",
            "loop",
            "link",
            "link to a folder",
            "link to itself elsewhere",
            "folder",
            "socket",
            "huge",
            "gone",
            "device",
        ]
    )
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link":
        path.symlink_to(outside / "precious.txt")
    elif kind == "link to a folder":
        path.symlink_to(outside)
    elif kind == "link to itself elsewhere":
        path.symlink_to(aside)
        return kind
    elif kind == "folder":
        path.mkdir()
        (path / "inner").write_text("")
    elif kind == "socket":
        with (
            contextlib.closing(socket.socket(socket.AF_UNIX)) as one,
            contextlib.chdir(path.parent),
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
    remove = shutil.rmtree if aside.is_dir() else os.unlink
    remove(aside)
    return kind


def _mutation(kind: str, special: str, path: Path) -> Mutation:
    return Mutation(
        f"{kind}: {special}",
        path,
        gone=special == "gone" or (kind == "a folder" and special == "folder"),
    )


def mutate(rng: random.Random, folder: Path, outside: Path) -> Mutation:
    space = StudyFolder(folder)
    [plan] = space.plans.glob("*.json")
    runs = sorted(path for path in space.runs.iterdir() if path.is_dir())
    run = rng.choice(runs)
    files = {
        "run": run / "run.json",
        "curves": run / "curves.parquet",
        "parameters": next(space.runs.glob("*/parameters/*")),
        "plan": plan,
        "index": space.runs / ".index.json",
        "claim": next(space.claims.glob("*.json")),
        "failure": next(space.failures.glob("*.json")),
        "members": next(space.checkpoints.glob("*/*.json")),
        "log.csv": folder / "log.csv",
        "log.parquet": folder / "log.parquet",
    }
    kind = rng.choice(
        [*files, "run", "run", "run", "curves", "curves", "a run's folder", "a folder", "foreign"]
    )
    if kind == "foreign":
        parent = rng.choice(
            [folder, space.plans, space.runs, space.claims, space.failures, space.checkpoints, run]
        )
        name = rng.choice(
            [
                "notes.txt",
                "0123456789abcdef",
                "0123456789ab.json",
                "\x1b[31m[.json",
                "x.parquet",
                "0" * 16 + ".0.json",
                ".x",
            ]
        )
        (parent / name).write_bytes(rng.choice([b"", b"{", b"mine", rng.randbytes(99)]))
        return Mutation("foreign", parent / name)
    if kind in ("a run's folder", "a folder"):
        path = (
            run
            if kind == "a run's folder"
            else rng.choice(
                [space.plans, space.runs, space.claims, space.failures, space.checkpoints]
            )
        )
        return _mutation(kind, put_in_place(rng, path, outside), path)
    path = files[kind]
    how = rng.random()
    if how < 0.15:
        return _mutation(kind, put_in_place(rng, path, outside), path)
    if how < 0.6 and path.suffix == ".json":
        words, data, forged = _json(rng, path.read_bytes())
    else:
        words, data = damaged_bytes(rng, path.read_bytes())
        forged = False
    path.write_bytes(data)
    return Mutation(f"{kind}: {words}", path, forged)
