"""Schedules: numbers that change while a run trains.

Any per-run field may hold a schedule. A schedule is part of the slot of its run, and the compiled
step replaces it by its value (`resolve`). Schedules that react to measurements have a state, which
`chunk` updates after every evaluation of the run.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..core.curves import find_curve
from ..core.errors import InputError
from ..core.pytree import Schedule, option, per_run

Tree = TypeVar("Tree")
Step = int | Array
_LEAST = 1e-12  # smallest measured number, so that its logarithm is finite


class Switch(Schedule):
    """`before` until step `at`, then `after`.

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


def _check_order(schedule: Schedule, first: int, end: int) -> None:
    if end <= first:
        raise InputError(f"{type(schedule).__name__}.end must be later than {first}, got {end}")


class Ramp(Schedule):
    """`first` until step `begin`, then a linear change to `last` at step `end`.

    >>> float(em.Ramp(0.0, 1.0, begin=100, end=200).value(150, ()))
    0.5
    """

    first: float = per_run()
    last: float = per_run()
    begin: int = per_run(low=0)
    end: int = per_run(low=1)

    def __post_init__(self) -> None:
        _check_order(self, self.begin, self.end)

    def value(self, step: Step, state: PyTree) -> Array:
        share = jnp.clip((step - self.begin) / (self.end - self.begin), 0.0, 1.0)
        return self.first + share * (self.last - self.first)

    def extremes(self) -> tuple[float, ...]:
        return (self.first, self.last)


class WarmupCosine(Schedule):
    """A linear warm-up to `peak` over `warmup` steps, then half a cosine to `last` at step `end`.

    The first step has the value `peak / warmup`.

    >>> em.Optimizer("adam", learning_rate=em.WarmupCosine(1e-3, warmup=100, end=5000))
    Optimizer('adam', learning_rate=WarmupCosine(peak=0.001, warmup=100, end=5000))
    """

    peak: float = per_run()
    warmup: int = per_run(low=1)
    end: int = per_run(low=2)
    last: float = per_run(default=0.0)

    def __post_init__(self) -> None:
        _check_order(self, self.warmup, self.end)

    def value(self, step: Step, state: PyTree) -> Array:
        rising = self.peak * (step + 1) / self.warmup
        share = jnp.clip((step - self.warmup) / (self.end - self.warmup), 0.0, 1.0)
        falling = self.last + (self.peak - self.last) * 0.5 * (1 + jnp.cos(math.pi * share))
        return jnp.where(step < self.warmup, rising, falling)

    def extremes(self) -> tuple[float, ...]:
        return (self.last, self.peak)


class When(Schedule):
    """`before` until a metric reaches a threshold, then `after`.

    The metric is any curve of the run's own evaluations: the loss, a metric of the task, or a curve
    of a probe. If it has several numbers, such as the attention of every head, `above` compares the
    largest and `below` the smallest.

    **Arguments:**

    - `metric`: the name of the curve.
    - `above`, `below`: the threshold, and its direction. Exactly one of them must be set.
    - `before`, `after`: the values.

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
            raise InputError(f"When needs either above or below, got {self!r}")

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
    """The state of a `WhenStuck` in its current window. It uses the logarithm of the metric."""

    stuck: Bool[Array, ""]
    evaluations: Int[Array, ""]  # number of evaluations in the window
    first: Float[Array, ""]  # sum over the first half of the window
    second: Float[Array, ""]  # sum over the second half of the window
    recent: Float[Array, ""]  # running mean over about three evaluations


class WhenStuck(Schedule):
    """`stuck` while a metric stands still, and `moving` while it falls.

    The value begins as `moving`. It becomes `stuck` if the metric falls by a share of less than
    `tolerance` between the two halves of a window of evaluations. The metric may jump when the
    value changes, so one more window determines its new level. When the metric leaves that level by
    `tolerance`, in either direction, the value is `moving` again and a new window starts.

    **Arguments:**

    - `metric`: the name of a positive curve of the run's evaluations. Several numbers are averaged.
    - `stuck`, `moving`: the values.
    - `patience`: number of evaluations in a window.
    - `tolerance`: the smallest relative change that counts.

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
        count = state.evaluations + 1
        half = self.patience // 2
        first = state.first + jnp.where(count <= half, value, 0)
        second = state.second + jnp.where((count > half) & (count <= self.patience), value, 0)
        recent = jnp.where(count == 1, value, state.recent + (value - state.recent) / 3)
        before = first / half
        level = second / (self.patience - half)
        falls = before - level > self.tolerance
        left = jnp.abs(recent - level) > self.tolerance
        # A window of `moving` ends after `patience` evaluations. A window of `stuck` goes on until
        # the metric leaves its level.
        ends = (count >= self.patience) & jnp.where(state.stuck, left, True)
        stuck = jnp.where(ends, ~state.stuck & ~falls, state.stuck)
        count, first, second = (jnp.where(ends, 0, x) for x in (count, first, second))
        return StuckState(stuck, count, first, second, recent)

    def value(self, step: Step, state: StuckState) -> Array:
        return jnp.where(state.stuck, self.stuck, self.moving)

    def extremes(self) -> tuple[float, ...]:
        return (self.stuck, self.moving)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)


class StopState(NamedTuple):
    """The state of an `EarlyStopping`."""

    best: Float[Array, ""]
    waited: Int[Array, ""]  # evaluations since the best one


class EarlyStopping(Schedule):
    """A stopping rule: 1 once a metric has not improved for `patience` evaluations, 0 before.

    The argument `stop` of a study or config takes it, or any other schedule. The default metric is
    the loss on the test set, which no run trains on, so it serves as the validation loss.

    **Arguments:**

    - `metric`: a curve of the run's evaluations. Several numbers are averaged.
    - `patience`: number of evaluations without an improvement after which the run ends.
    - `tolerance`: the smallest relative change that counts as an improvement.
    - `best`: whether `"low"` or `"high"` values of the metric are good.

    >>> em.EarlyStopping("loss", patience=20)
    EarlyStopping(patience=20)
    """

    metric: str = "loss"
    patience: int = per_run(default=10, low=1)
    tolerance: float = per_run(default=0.0, low=0.0)
    best: Literal["low", "high"] = option(default="low")

    def start(self) -> StopState:
        return StopState(jnp.float32(jnp.inf), jnp.int32(0))

    def update(self, state: StopState, metrics: Mapping[str, Array]) -> StopState:
        value = jnp.mean(metrics[self.metric]).astype(jnp.float32)
        value = value if self.best == "low" else -value
        gained = state.best - value
        # The first value improves on infinity, and nothing improves on NaN.
        better = (gained > self.tolerance * jnp.abs(state.best)) | jnp.isinf(state.best)
        return StopState(
            jnp.where(better, value, state.best), jnp.where(better, 0, state.waited + 1)
        )

    def value(self, step: Step, state: StopState) -> Array:
        return (state.waited >= self.patience).astype(jnp.float32)

    def extremes(self) -> tuple[float, ...]:
        return (0.0, 1.0)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)


def _is_schedule(node: object) -> TypeGuard[Schedule]:
    return isinstance(node, Schedule)


def schedules_in(tree: PyTree) -> list[Schedule]:
    """Return all schedules of a pytree, in the order of its leaves."""
    return list(filter(_is_schedule, jax.tree.leaves(tree, is_leaf=_is_schedule)))


def start_states(tree: PyTree) -> tuple[PyTree, ...]:
    """Return the states of all schedules of a pytree before the first step."""
    return tuple(schedule.start() for schedule in schedules_in(tree))


def updated_states(
    tree: PyTree, states: tuple[PyTree, ...], metrics: Mapping[str, Array]
) -> tuple[PyTree, ...]:
    """Update the states after an evaluation. A schedule receives only the metrics that it names."""
    return tuple(
        schedule.update(state, metrics_of(schedule, metrics))
        for schedule, state in zip(schedules_in(tree), states, strict=True)
    )


def metrics_of(schedule: Schedule, metrics: Mapping[str, Array]) -> dict[str, Array]:
    """Return the metrics that a schedule names; a name such as `attention_0_1` is one number."""
    what = f"metric of {type(schedule).__name__}"
    return {name: find_curve(metrics, name, what, leading=0) for name in schedule.metrics()}


def schedules_by_name(
    varying: Any, states: tuple[PyTree, ...]
) -> dict[str, tuple[Schedule, PyTree]]:
    """Return schedules and their states by the fields that hold them.

    If several fields have a name, it is the path with underscores, such as `model_scale`.
    """
    leaves = jax.tree_util.tree_leaves_with_path(varying, is_leaf=_is_schedule)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator=".").replace("optimizer.numbers.", "")
        for path, leaf in leaves
        if _is_schedule(leaf)
    ]
    names = [path.rpartition(".")[2] for path in paths]
    unique = [
        name if names.count(name) == 1 else path.replace(".", "_")
        for path, name in zip(paths, names, strict=True)
    ]
    return dict(zip(unique, zip(schedules_in(varying), states, strict=True), strict=True))


def resolve(tree: Tree, step: Step, states: tuple[PyTree, ...]) -> Tree:
    """Replace every schedule of a pytree by its value at a step."""
    remaining = iter(states)
    return jax.tree.map(
        lambda x: x.value(step, next(remaining)) if _is_schedule(x) else x,
        tree,
        is_leaf=_is_schedule,
    )


def at_start(tree: Tree) -> Tree:
    """Replace every schedule of a pytree by its value before the first step."""
    return resolve(tree, jnp.int32(0), start_states(tree))
