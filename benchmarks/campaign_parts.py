"""Tasks, a form of attention and a schedule that only campaigns need; see campaigns.py."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import emergo as em
from emergo.core.contract import Batch


class ScaledLocation(em.SingleLocation):
    """Single-location regression with features and targets of other sizes.

    **Arguments:**

    - `tokens`, `marks`, `targets`: factors of tokens, of the indicator and of targets. With
      targets, the loss starts at `targets`² times its usual value.
    """

    tokens: float = em.per_run(default=1.0, low=0.0)
    marks: float = em.per_run(default=1.0, low=0.0)
    targets: float = em.per_run(default=1.0, low=0.0)

    def batch(self, key: Array, n: int, truth: Any) -> Batch:
        batch = super().batch(key, n, truth)
        feature = jnp.arange(batch.inputs.shape[-1])
        scale = jnp.where(feature < int(self.indicator), self.marks, self.tokens)
        return batch._replace(inputs=batch.inputs * scale, target=batch.target * self.targets)


class FewQueries(em.Recall):
    """Recall with another number of tokens that are repeated across sequences.

    **Arguments:**

    - `tokens`: the query is one of the first `tokens` tokens with probability `repeat`.
    """

    tokens: int = em.option(default=2, low=1)

    def repeated_tokens(self) -> int:
        return self.tokens


class SharedSigmoid(em.Attention):
    """Sigmoid attention whose weights are divided by their sum."""

    def weights(
        self, params: Any, scores: Float[Array, "*rows length"], visible: Bool[Array, "..."] | None
    ) -> Float[Array, "*rows length"]:
        count = scores.shape[-1] if visible is None else jnp.sum(visible, -1, keepdims=True)
        weights = jax.nn.sigmoid(scores - jnp.log(jnp.asarray(count, scores.dtype)))
        weights = weights if visible is None else jnp.where(visible, weights, 0)
        return weights / jnp.sum(weights, -1, keepdims=True)


class Waited(NamedTuple):
    """The state of a `PatientWhenStuck`. It uses the logarithm of the metric."""

    stuck: Bool[Array, ""]
    evaluations: Int[Array, ""]  # since `stuck` changed
    first: Float[Array, ""]  # sum over the first half of the window
    second: Float[Array, ""]  # sum over the second half of the window
    recent: Float[Array, ""]  # running mean over about three evaluations
    highest: Float[Array, ""]  # of `recent`, while stuck
    rest: Int[Array, ""]  # evaluations before it may be stuck again


class PatientWhenStuck(em.Schedule):
    """`stuck` while a metric stands still, through a rise of the metric and half of its return.

    Like [`emergo.WhenStuck`][], but a rise of the metric does not end `stuck`: repetition in recall
    makes the test loss rise while a shortcut is learned, and the loss falls again before recall
    begins. `stuck` ends when the metric is below its first level by `tolerance`, or has lost `back`
    of a rise that was larger than `tolerance`. Then the value is `moving` for at least `rest`
    evaluations, and twice as long after the next time.
    """

    metric: str
    stuck: float = em.per_run()
    moving: float = em.per_run(default=0.0)
    patience: int = em.per_run(default=12, low=2)
    tolerance: float = em.per_run(default=0.1, low=0.0)
    back: float = em.per_run(default=0.5, low=0.0, high=1.0)
    rest: int = em.per_run(default=40, low=1)

    def start(self) -> Waited:
        zero = jnp.zeros((), jnp.float32)
        rest = jnp.asarray(self.patience, jnp.int32)
        return Waited(jnp.array(False), jnp.int32(0), zero, zero, zero, zero, rest)

    def update(self, state: Waited, metrics: Mapping[str, Array]) -> Waited:
        value = jnp.log(jnp.maximum(jnp.mean(metrics[self.metric]), 1e-12)).astype(jnp.float32)
        count = state.evaluations + 1
        half = self.patience // 2
        recent = jnp.where(count == 1, value, state.recent + (value - state.recent) / 3)
        # Means over the halves of the last window before `stuck`, or of the first one within it.
        begin = jnp.where(state.stuck, 0, state.rest - self.patience)
        place = count - begin
        first = state.first + jnp.where((place > 0) & (place <= half), value, 0)
        second = state.second + jnp.where((place > half) & (place <= self.patience), value, 0)
        level = second / (self.patience - half)
        known = place >= self.patience
        highest = jnp.where(place > self.patience, jnp.maximum(state.highest, recent), recent)
        rise = jnp.maximum(highest - level, 0)
        returned = (rise > self.tolerance) & (recent < highest - self.back * rise)
        ends = known & (returned | (recent < level - self.tolerance))
        still = first / half - level <= self.tolerance
        changes = jnp.where(state.stuck, ends, known)
        stuck = jnp.where(state.stuck, ~ends, known & still)
        # After `stuck`, wait; after a window in which the metric moved, look at the next window.
        longer = jnp.maximum(2 * state.rest, self.rest)
        rest = jnp.where(state.stuck & ends, longer, state.rest)
        rest = jnp.where(~state.stuck & known & ~still, self.patience, rest)
        count, first, second = (jnp.where(changes, 0, x) for x in (count, first, second))
        return Waited(stuck, count, first, second, recent, highest, rest.astype(jnp.int32))

    def value(self, step: Any, state: Waited) -> Array:
        return jnp.where(state.stuck, self.stuck, self.moving)

    def extremes(self) -> tuple[float, ...]:
        return (self.stuck, self.moving)

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)
