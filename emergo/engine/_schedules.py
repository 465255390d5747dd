"""Schedules: numbers that change while a run trains."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .._errors import InputError
from .._pytree import Schedule, per_run


class Switch(Schedule):
    """`before` until step `at`, `after` from then on.

    ```python
    >>> em.SingleLocation(length=32, dim=8, repeat=em.Switch(0.4, 0.0, at=2000))
    SingleLocation(length=32, dim=8, repeat=Switch(before=0.4, after=0.0, at=2000))

    ```
    """

    before: float = per_run()
    after: float = per_run()
    at: int = per_run(low=0)

    def value(self, step: Any, state: Any) -> Any:
        return jnp.where(step < self.at, self.before, self.after)

    def extremes(self) -> tuple[float, ...]:
        return (self.before, self.after)


class Ramp(Schedule):
    """`first` until step `begin`, then in a straight line to `last` at step `end`.

    ```python
    >>> float(em.Ramp(0.0, 1.0, begin=100, end=200).value(150, ()))
    0.5

    ```
    """

    first: float = per_run()
    last: float = per_run()
    begin: int = per_run(low=0)
    end: int = per_run(low=1)

    def __post_init__(self) -> None:
        if self.end <= self.begin:
            raise InputError(f"Ramp.end must be later than Ramp.begin, got {self.end} and {self.begin}")

    def value(self, step: Any, state: Any) -> Any:
        share = jnp.clip((step - self.begin) / (self.end - self.begin), 0.0, 1.0)
        return self.first + share * (self.last - self.first)

    def extremes(self) -> tuple[float, ...]:
        return (self.first, self.last)


class WarmupCosine(Schedule):
    """From 0 to `peak` in a straight line over `warmup` steps, then along half a cosine to `last` at step `end`.

    The first step has peak / warmup, so that no step is lost.

    ```python
    >>> em.Optimizer("adam", learning_rate=em.WarmupCosine(1e-3, warmup=100, end=5000))
    Optimizer('adam', learning_rate=WarmupCosine(peak=0.001, warmup=100, end=5000))

    ```
    """

    peak: float = per_run()
    warmup: int = per_run(low=1)
    end: int = per_run(low=2)
    last: float = per_run(default=0.0)

    def __post_init__(self) -> None:
        if self.end <= self.warmup:
            raise InputError(f"WarmupCosine.end must be later than the warm-up, got {self.end} and {self.warmup}")

    def value(self, step: Any, state: Any) -> Any:
        rising = self.peak * (step + 1) / self.warmup
        share = jnp.clip((step - self.warmup) / (self.end - self.warmup), 0.0, 1.0)
        falling = self.last + (self.peak - self.last) * 0.5 * (1 + jnp.cos(math.pi * share))
        return jnp.where(step < self.warmup, rising, falling)

    def extremes(self) -> tuple[float, ...]:
        return (self.last, self.peak)


class When(Schedule):
    """`before` until a measured number has once come to `above` (or, if that is given instead, to `below`), then `after`.

    The number is what the run's own evaluations measure: the loss, a metric of the task or a probe's. Of a metric with several
    numbers, such as the attention of every head, the largest counts for `above` and the smallest for `below`.

    ```python
    >>> em.When("attention", above=0.3, before=0.4, after=0.0)
    When(metric='attention', above=0.3, before=0.4)

    ```
    """

    metric: str
    above: float | None = per_run(default=None)
    before: float = per_run(default=0.0)
    after: float = per_run(default=0.0)
    below: float | None = per_run(default=None)

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise InputError(f"When needs either above or below, got above={self.above!r} and below={self.below!r}")

    def start(self) -> Any:
        return jnp.array(False)

    def update(self, state: Any, metrics: Mapping[str, Any]) -> Any:
        measured = metrics[self.metric]
        above = self.above is not None and jnp.max(measured) >= self.above
        below = self.below is not None and jnp.min(measured) <= self.below
        return state | above | below

    def value(self, step: Any, state: Any) -> Any:
        return jnp.where(state, self.after, self.before)

    def extremes(self) -> tuple[float, ...]:
        return (self.before, self.after)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)


Tree = TypeVar("Tree")


def _is_schedule(node: Any) -> bool:
    return isinstance(node, Schedule)


def schedules_in(tree: Any) -> list[Schedule]:
    """All schedules of a tree, in the order of its leaves."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_schedule) if _is_schedule(leaf)]


def start_states(tree: Any) -> tuple[Any, ...]:
    """The states of all schedules of a tree before the first step."""
    return tuple(schedule.start() for schedule in schedules_in(tree))


def updated_states(tree: Any, states: tuple[Any, ...], metrics: Mapping[str, Any]) -> tuple[Any, ...]:
    """The states after an evaluation. A schedule is given only the metrics that it names: they are part of what was checked."""

    def updated(schedule: Schedule, state: Any) -> Any:
        return schedule.update(state, {name: metrics[name] for name in schedule.metrics()})

    return tuple(updated(schedule, state) for schedule, state in zip(schedules_in(tree), states, strict=True))


def resolve(tree: Tree, step: Any, states: tuple[Any, ...]) -> Tree:
    """The tree with every schedule replaced by its value at a step."""
    remaining = iter(states)

    def number(node: Any) -> Any:
        return node.value(step, next(remaining)) if _is_schedule(node) else node

    return jax.tree.map(number, tree, is_leaf=_is_schedule)
