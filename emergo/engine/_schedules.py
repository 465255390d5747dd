"""Schedules: numbers that change while a run trains."""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._errors import InputError
from .._pytree import Schedule, per_run

Tree = TypeVar("Tree")
Step = int | Array
_LEAST = 1e-12  # below which a measured number counts as this: its logarithm is taken


class Switch(Schedule):
    """`before` until step `at`, `after` from then on.

    >>> em.SingleLocation(length=32, dim=8, repeat=em.Switch(0.4, 0.0, at=2000))
    SingleLocation(length=32, dim=8, repeat=Switch(before=0.4, after=0.0, at=2000))
    """

    before: float = per_run()
    after: float = per_run()
    at: int = per_run(low=0)

    def value(self, step: Step, state: PyTree) -> Array:
        return jnp.where(step < self.at, self.before, self.after)

    def extremes(self) -> tuple[float, ...]:
        return (self.before, self.after)


class Ramp(Schedule):
    """`first` until step `begin`, then in a straight line to `last` at step `end`.

    >>> float(em.Ramp(0.0, 1.0, begin=100, end=200).value(150, ()))
    0.5
    """

    first: float = per_run()
    last: float = per_run()
    begin: int = per_run(low=0)
    end: int = per_run(low=1)

    def __post_init__(self) -> None:
        if self.end <= self.begin:
            raise InputError(f"Ramp.end must be later than Ramp.begin, got {self.end} and {self.begin}")

    def value(self, step: Step, state: PyTree) -> Array:
        share = jnp.clip((step - self.begin) / (self.end - self.begin), 0.0, 1.0)
        return self.first + share * (self.last - self.first)

    def extremes(self) -> tuple[float, ...]:
        return (self.first, self.last)


class WarmupCosine(Schedule):
    """From peak / warmup in a straight line to `peak` over `warmup` steps, then along half a cosine to `last` at step `end`.

    >>> em.Optimizer("adam", learning_rate=em.WarmupCosine(1e-3, warmup=100, end=5000))
    Optimizer('adam', learning_rate=WarmupCosine(peak=0.001, warmup=100, end=5000))
    """

    peak: float = per_run()
    warmup: int = per_run(low=1)
    end: int = per_run(low=2)
    last: float = per_run(default=0.0)

    def __post_init__(self) -> None:
        if self.end <= self.warmup:
            raise InputError(f"WarmupCosine.end must be later than the warm-up, got {self.end} and {self.warmup}")

    def value(self, step: Step, state: PyTree) -> Array:
        rising = self.peak * (step + 1) / self.warmup
        share = jnp.clip((step - self.warmup) / (self.end - self.warmup), 0.0, 1.0)
        falling = self.last + (self.peak - self.last) * 0.5 * (1 + jnp.cos(math.pi * share))
        return jnp.where(step < self.warmup, rising, falling)

    def extremes(self) -> tuple[float, ...]:
        return (self.last, self.peak)


class When(Schedule):
    """`before` until a measured number has once come to `above` (or, if that is given instead, to `below`), then `after`.

    The number is what the run's own evaluations measure: the loss, a metric of the task or a probe's. Of several numbers, such
    as the attention of every head, the largest counts for `above` and the smallest for `below`.

    >>> em.When("attention", above=0.3, before=0.4, after=0.0)
    When(metric='attention', above=0.3, before=0.4)
    """

    metric: str
    above: float | None = per_run(default=None)
    before: float = per_run(default=0.0)
    after: float = per_run(default=0.0)
    below: float | None = per_run(default=None)

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise InputError(f"When needs either above or below, got above={self.above!r} and below={self.below!r}")

    def start(self) -> Bool[Array, ""]:
        return jnp.array(False)

    def update(self, state: Bool[Array, ""], metrics: Mapping[str, Array]) -> Bool[Array, ""]:
        measured = metrics[self.metric]
        above = self.above is not None and jnp.max(measured) >= self.above
        below = self.below is not None and jnp.min(measured) <= self.below
        return state | above | below

    def value(self, step: Step, state: Bool[Array, ""]) -> Array:
        return jnp.where(state, self.after, self.before)

    def extremes(self) -> tuple[float, ...]:
        return (self.before, self.after)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)


class StuckState(NamedTuple):
    """Of `WhenStuck`, since it changed its value or began to look anew. Means are of the logarithm of the measured number."""

    stuck: Bool[Array, ""]
    evaluations: Int[Array, ""]
    first: Float[Array, ""]  # sum over the first half of the evaluations to wait for
    second: Float[Array, ""]  # sum over the second half
    recent: Float[Array, ""]  # mean of the last few


class WhenStuck(Schedule):
    """`stuck` while a measured number stands still, `moving` while it moves: help for as long as nothing happens.

    It begins with `moving` and looks at `patience` evaluations at a time. Where the number has not fallen by `tolerance`, as a
    share, from their first half to the second, it is stuck. After another `patience` evaluations the number has found a level
    under the help; when it leaves this, up or down, by `tolerance`, the help ends, and it all begins anew. The number is what
    the run's own evaluations measure, such as the loss on the test set, positive, of several their mean.

    >>> em.WhenStuck("loss", stuck=0.5)
    WhenStuck(metric='loss', stuck=0.5)
    """

    metric: str
    stuck: float = per_run()
    moving: float = per_run(default=0.0)
    patience: int = per_run(default=12, low=2)
    tolerance: float = per_run(default=0.1, low=0.0)

    def start(self) -> StuckState:
        zero = jnp.zeros((), jnp.float32)
        return StuckState(jnp.array(False), jnp.int32(0), zero, zero, zero)

    def update(self, state: StuckState, metrics: Mapping[str, Array]) -> StuckState:
        value = jnp.log(jnp.maximum(jnp.mean(metrics[self.metric]), _LEAST)).astype(jnp.float32)
        count, half = state.evaluations + 1, self.patience // 2
        first = state.first + jnp.where(count <= half, value, 0)
        second = state.second + jnp.where((count > half) & (count <= self.patience), value, 0)
        recent = jnp.where(count == 1, value, state.recent + (value - state.recent) / 3)
        before, level = first / half, second / (self.patience - half)
        waited = count >= self.patience
        falls = before - level > self.tolerance
        left = jnp.abs(recent - level) > self.tolerance
        anew = waited & jnp.where(state.stuck, left, True)
        stuck = jnp.where(anew, ~state.stuck & ~falls, state.stuck)
        count, first, second = (jnp.where(anew, 0, x) for x in (count, first, second))
        return StuckState(stuck, count, first, second, recent)

    def value(self, step: Step, state: StuckState) -> Array:
        return jnp.where(state.stuck, self.stuck, self.moving)

    def extremes(self) -> tuple[float, ...]:
        return (self.stuck, self.moving)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)


def _is_schedule(node: object) -> bool:
    return isinstance(node, Schedule)


def schedules_in(tree: PyTree) -> list[Schedule]:
    """All schedules of a tree, in the order of its leaves."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_schedule) if isinstance(leaf, Schedule)]


def start_states(tree: PyTree) -> tuple[PyTree, ...]:
    """The states of all schedules of a tree before the first step."""
    return tuple(schedule.start() for schedule in schedules_in(tree))


def updated_states(tree: PyTree, states: tuple[PyTree, ...], metrics: Mapping[str, Array]) -> tuple[PyTree, ...]:
    """The states after an evaluation. A schedule is given only the metrics that it names: they are part of what was checked."""
    given = [{name: metrics[name] for name in schedule.metrics()} for schedule in schedules_in(tree)]
    return tuple(s.update(state, named) for s, state, named in zip(schedules_in(tree), states, given, strict=True))


def resolve(tree: Tree, step: Step, states: tuple[PyTree, ...]) -> Tree:
    """The tree with every schedule replaced by its value at a step."""
    remaining = iter(states)
    return jax.tree.map(lambda x: x.value(step, next(remaining)) if _is_schedule(x) else x, tree, is_leaf=_is_schedule)


def at_start(tree: Tree) -> Tree:
    """The tree with the values that its schedules have before the first step."""
    return resolve(tree, jnp.int32(0), start_states(tree))
