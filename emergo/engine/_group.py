"""Runs of one shape on the devices of this machine: a stack of places on each, filled from one queue.

A run that has ended leaves its place; when a quarter of the places is free they are filled again, and when the queue is empty
and the rest fills half of the places or less, it is gathered into a narrower stack.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._config import Run
from ._cost import Program, compile_chunk, memory_of, next_evaluation, planned_width, worth_narrowing, worth_tuning
from ._probes import kept
from ._program import gather, insert
from ._restricted import begin
from ._shape import Device, Shape, Slot

State = Literal["reached", "exhausted", "failed"]


class History(NamedTuple):
    """How one run went."""

    run: Run
    state: State
    """It passed its threshold, or came to its last step without, or its loss was no longer finite."""
    failed_step: int | None
    curves: dict[str, np.ndarray]
    """By name, a row an evaluation: `step`, `loss` (test), `train_loss` (mean since the evaluation before) and, but for Markov
    chains, `entropy` (of the last position's attention, layers x heads).

    Single location: `attention` (to the relevant token, layers x heads), `alignment` (cosine of the value path and W*), and
    for a burst over 1 at random positions `loss_single` (test with burst 1).

    Recall: `accuracy` (test), `accuracy_repeated` (on the training distribution, where that has repetition), and by layer and
    head `copying`, `selecting`, `previous` and `induction` (see [`emergo.engine.circuits`][]).

    Markov chain: `teacher_loss` (the teacher's on the same test set), `divergences` (exact KL from the references that know 1,
    2, ... groups to the student), `excess` (the last of them, from the teacher), `lags` (attention by layer, head and lag);
    with windows `restricted` (exact KL from the predictors of these windows to the student)."""
    device: str


@dataclasses.dataclass
class Place:
    """A run in a stack, and what was seen of it."""

    run: Run
    seen: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: {"step": []})
    total: float = 0.0
    """Sum of the training losses since the last evaluation."""
    at: int = 0
    """The step it is at; `step` is that of its last evaluation."""

    @property
    def step(self) -> int:
        return int(self.seen["step"][-1]) if self.seen["step"] else 0


class Pool:
    """The stack of one device."""

    def __init__(self, shape: Shape, device: Device, width: int, tuned: bool = False, budget: float | None = None) -> None:
        self.shape, self.device = shape, device
        self._budget = memory_of(device) if budget is None else budget
        self._program: Program = compile_chunk(shape, width, device, self._budget, tuned)
        self.places: list[Place | None] = [None] * self._program.width
        self.slots: Slot | None = None
        self._pending: Any = None

    @property
    def live(self) -> list[Place]:
        return [p for p in self.places if p is not None]

    @property
    def bytes(self) -> int:
        return self._program.bytes

    def fill(self, queue: deque[Run]) -> bool:
        """Takes runs from the queue into free places, if enough are free; says whether it took any."""
        free = [i for i, p in enumerate(self.places) if p is None]
        if not queue or not free or (self.live and len(free) < math.ceil(len(self.places) / 4)):
            return False
        for index in free:
            if not queue:
                break
            run = queue.popleft()
            slot = jax.device_put(begin(self.shape, run), self.device)
            if self.slots is None:
                self.slots = jax.tree.map(lambda x: jnp.repeat(x[None], len(self.places), 0), slot)
            self.slots = insert(self.slots, jnp.int32(index), slot)
            self.places[index] = Place(run)
        return True

    def next_count(self) -> int:
        """Steps until the next evaluation that a run of this stack is due for."""
        return min(_due(p) - p.at for p in self.live)

    def launch(self, count: int) -> None:
        """Starts a chunk; `collect` waits for it."""
        self.slots, seen = self._program.run(self.slots, jax.device_put(jnp.int32(count), self.device))
        assert self.slots is not None
        self._pending = (seen, self.slots.step, self.slots.failed)

    def collect(self) -> list[History]:
        """Notes what was seen, frees the places of runs that have ended and returns these."""
        seen, steps, failed = self._pending
        seen, steps, failed = {k: np.asarray(v) for k, v in seen.items()}, np.asarray(steps), np.asarray(failed)
        ended = []
        for i, place in enumerate(self.places):
            if place is None:
                continue
            place.total += float(seen["train_loss"][i])
            place.at = int(steps[i])
            broken = failed[i] >= 0 or not np.isfinite(seen["loss"][i])
            if not broken and place.seen["step"] and steps[i] < _due(place):
                continue
            since = int(steps[i]) - place.step
            row = {name: value[i] for name, value in seen.items() if kept(place.run.config.task, name)}
            row["train_loss"] = np.float32(place.total / since if since else math.nan)
            place.total = 0.0
            if not place.seen["step"] or since:
                for name, value in (row | {"step": int(steps[i])}).items():
                    place.seen.setdefault(name, []).append(value)
            state = "failed" if broken else _ended(place)
            if state:
                step = int(failed[i]) if failed[i] >= 0 else int(steps[i])
                curves = {name: np.asarray(values) for name, values in place.seen.items()}
                ended.append(History(place.run, state, step if broken else None, curves, self.device.device_kind))
                self.places[i] = None
        return ended

    def narrow(self) -> None:
        """Gathers the runs that are left into a narrower stack, where that pays."""
        width, live = len(self.places), [i for i, p in enumerate(self.places) if p is not None]
        if not live or 2 * len(live) > width:
            return
        if not worth_narrowing(self.shape, self.device, width, max(p.step for p in self.live)):
            return
        while 2 * len(live) <= width:
            width //= 2
        self._program = compile_chunk(self.shape, width, self.device, self._budget)
        spare = self._program.width - len(live)
        self.slots = gather(self.slots, jnp.array(live + [live[0]] * spare))
        self.places = [self.places[i] for i in live] + [None] * spare


def _due(place: Place) -> int:
    config = place.run.config
    return min(next_evaluation(place.step, config.task.cadence), config.steps)


def _ended(place: Place) -> State | None:
    config, step = place.run.config, place.step
    sign = -1 if config.task.rises else 1
    found = zip(place.seen["step"], place.seen[config.task.metric], strict=True)
    crossed = [at for at, value in found if sign * float(value) <= sign * config.threshold]
    if crossed and (step >= crossed[0] * (1 + config.beyond) or step >= config.steps):
        return "reached"
    return "exhausted" if step >= config.steps else None


class Group:
    """All runs of one shape, on all devices."""

    def __init__(self, shape: Shape, runs: Sequence[Run], devices: Sequence[Device], width: int | None = None) -> None:
        self.shape, self.queue = shape, deque(runs)
        self.pools = []
        for device in devices[: len(runs)]:
            wanted = width or planned_width(shape, device.platform, memory_of(device))
            share = math.ceil(len(runs) / min(len(devices), len(runs)))
            self.pools.append(Pool(shape, device, min(wanted, share), worth_tuning(shape, device, runs)))

    @property
    def live(self) -> list[Place]:
        return [place for pool in self.pools for place in pool.live]

    def advance(self) -> list[History]:
        """One chunk on every device; returns the runs that ended in it."""
        ended = []
        fresh = [pool for pool in self.pools if pool.fill(self.queue)]
        for pool in fresh:
            pool.launch(0)
        for pool in fresh:
            ended += pool.collect()
        busy = [pool for pool in self.pools if pool.live]
        for pool in busy:
            pool.launch(pool.next_count())
        for pool in busy:
            ended += pool.collect()
        if not self.queue:
            for pool in busy:
                pool.narrow()
        return ended
