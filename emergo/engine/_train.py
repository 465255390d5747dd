"""Training many runs: by shape, as few programs as there are shapes."""

import contextlib
import dataclasses
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from .._errors import InputError
from ._checkpoint import load_group, save_group
from ._config import Run
from ._group import Group, History
from ._shape import Device, Shape, arithmetic, family


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a call of [`emergo.engine.train`][] is."""

    total: int
    done: int
    failed: int
    running: Sequence[tuple[Run, int, float]]
    """Run, step and test loss of those in training."""
    steps: int
    """Steps of all runs together so far, in this call."""
    seconds: float
    seconds_left: float | None
    """A guess from the runs that have ended; None before the first."""
    bytes: int
    """What the current programs need, over all devices."""

    @property
    def rate(self) -> float:
        """Steps a second, of all runs together."""
        return self.steps / max(self.seconds, 1e-9)


def train(
    runs: Sequence[Run],
    *,
    width: int | None = None,
    devices: Sequence[Device] | None = None,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 60.0,
    on_end: Callable[[History], None] = lambda history: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[History]:
    """Trains runs, those of one shape together as one compiled program, on all devices of this machine.

    A run's numbers are a function of its config and seed: it draws the same data and is evaluated at the same steps whatever
    runs are beside it. Runs that share all but seed, learning rate, initialisation, dim, burst and
    repeat share a program.

    **Arguments:**

    - `runs`: what to train. Within a shape they begin in this order; putting the longest first leaves the least idle at the
      end.
    - `width`: how many runs of a shape to train at once on a device. By default what its memory holds and its cores need.
    - `devices`: by default all.
    - `checkpoint`: a folder for checkpoints, written at most every `checkpoint_seconds`, and at an interrupt. A later call
      with the same runs, or with those of them that had not ended, goes on from there.
    - `on_end`: called with each run as soon as it has ended.
    - `progress`: called after every chunk.

    **Returns:**

    One [`emergo.engine.History`][] a run, in the order of `runs`.
    """
    if width is not None and width < 1:
        raise InputError(f"width must be at least 1, got {width}")
    devices = list(devices or jax.devices())
    for run in runs:
        if run.config.precision == "tf32" and devices[0].platform == "cpu":
            raise InputError("precision tf32 is a GPU's; on a CPU use fp32")
    unique = {run.identity: run for run in runs}
    families = _families(runs)
    done: dict[str, History] = {}
    begun, steps = time.monotonic(), 0

    def report(group: Group) -> None:
        seconds = time.monotonic() - begun
        lengths = [int(h.curves["step"][-1]) for h in done.values()]
        typical = max(sum(lengths) / len(lengths), 1.0) if lengths else None
        left = None
        if typical is not None:
            share = len(done) + sum(min(place.step / typical, 0.9) for place in group.live)
            left = seconds * (len(unique) - share) / share
        running = [(p.run, p.step, float(p.seen["loss"][-1])) for p in group.live if p.seen["step"]]
        failed = sum(h.state == "failed" for h in done.values())
        progress(Progress(len(unique), len(done), failed, running, steps, seconds, left, sum(p.bytes for p in group.pools)))

    def prepare(members: list[Run]) -> tuple[Path | None, Group, list[History]]:
        path = None
        if checkpoint is not None:
            # Named by the family and the runs: a later call may ask for fewer runs, and looks through those of the family.
            prefix = _digest(repr(family(members[0].config)))
            for saved in sorted(Path(checkpoint).glob(f"{prefix}-*.npz")):
                found = load_group(saved, members, devices)
                if found is not None:
                    return saved, found[0], found[1]
            path = Path(checkpoint) / f"{prefix}-{_digest(*sorted(run.identity for run in members))}.npz"
        return path, Group(Shape.of([run.config for run in members]), members, devices, width), []

    def follow(members: list[Run], interrupted: Callable[[], bool]) -> None:
        nonlocal steps
        path, group, ended = prepare(members)
        for history in ended:
            done[history.run.identity] = history
            on_end(history)
        saved = time.monotonic()
        while group.queue or group.live:
            before = _total(group, ended)
            for history in group.advance():
                ended.append(history)
                done[history.run.identity] = history
                on_end(history)
            steps += _total(group, ended) - before
            report(group)
            if path is not None and (interrupted() or time.monotonic() - saved >= checkpoint_seconds):
                save_group(path, group, ended)
                saved = time.monotonic()
            if interrupted():
                raise KeyboardInterrupt
        if path is not None:
            path.unlink(missing_ok=True)

    with _interrupts() as interrupted:
        for shape, members in families.items():
            with arithmetic(shape.precision):
                follow(members, interrupted)
    return [done[run.identity] for run in runs]


def _families(runs: Sequence[Run]) -> dict[Shape, list[Run]]:
    families: dict[Shape, list[Run]] = {}
    for run in {run.identity: run for run in runs}.values():
        families.setdefault(family(run.config), []).append(run)
    return families


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Inside the block a first Ctrl-C only makes the function true, so that no chunk is cut in two; a second is as ever."""
    seen = False

    def note(number: int, frame: object) -> None:
        nonlocal seen
        seen = True
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, before)


def _total(group: Group, ended: Sequence[History]) -> int:
    return sum(place.step for place in group.live) + sum(int(history.curves["step"][-1]) for history in ended)


def _digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
