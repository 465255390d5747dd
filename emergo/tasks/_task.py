"""The base class of tasks: what there is to learn."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..core.attention import attention_entropy, attention_mass
from ..core.contract import Batch, Below, Output, Spec, Threshold
from ..core.pytree import Pytree
from ..core.random import fold_in


class Variant(NamedTuple):
    """A further test distribution."""

    task: "Task"
    fold: int = 0  # folded into the key of the test set; 0: the same draws as the test set's


class Task(Pytree):
    """What there is to learn. Subclassing makes a frozen dataclass and a pytree; it needs `spec`,
    `truth`, `batch` and `loss`.

    >>> import jax, jax.numpy as jnp
    >>> class Mean(em.Task):
    ...     length: int
    ...     noise: float = em.per_run(0.0, low=0.0)
    ...     @property
    ...     def spec(self): return em.Spec(length=self.length, inputs=1, outputs=1)
    ...     def truth(self, key): return ()
    ...     def batch(self, key, n, truth):
    ...         x = jax.random.normal(key, (n, self.length, 1))
    ...         return em.Batch(x + self.noise, x.mean(1))
    ...     def loss(self, output, batch): return jnp.sum((output.value - batch.target) ** 2, -1)
    >>> Mean(8).batch(jax.random.key(0), 2, ()).target.shape
    (2, 1)
    """

    learned: ClassVar[Threshold] = Below(
        "loss", 0.1
    )  # what tells that a run has learned; a study may override the number
    forecast_probes: ClassVar[bool] = (
        False  # whether forecasts may rest on probes: they hold where one token is to be found
    )
    eval_every: ClassVar[int] = (
        25  # steps between evaluations at first; later 2% of the step, where that is more
    )

    @property
    def spec(self) -> Spec:
        """The sizes that a model has to fit."""
        raise NotImplementedError

    def truth(self, key: Array) -> Any:
        """What a run has to find: drawn once, the same for all its sequences; any pytree."""
        raise NotImplementedError

    def batch(self, key: Array, n: int, truth: Any) -> Batch:
        """Draws `n` sequences."""
        raise NotImplementedError

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        """The loss of each sequence. `output.value` is in fp32 (fp64 where the run is)."""
        raise NotImplementedError

    # What has a default.

    def metrics(self, output: Output, batch: Batch, truth: Any) -> Mapping[str, Float[Array, " n"]]:
        """Further numbers of each sequence of the test set; their means are curves."""
        return {}

    def probes(self) -> tuple[Any, ...]:
        """What else is measured in every evaluation: functions of (params, output, batch, truth,
        step)."""
        return (attention_probe,)

    def at_test(self) -> "Task":
        """The task whose distribution the test set has."""
        return self

    def variants(self) -> Mapping[str, Variant]:
        """Further test distributions: the loss and every metric is measured there too, as
        `loss_NAME`. Which there are may depend on numbers of the run only where these are not
        traced."""
        return {}

    def check_threshold(self, number: float) -> None:
        """Raises an `InputError` for a threshold that makes no sense."""

    def hardness(self) -> tuple[float, ...]:
        """Larger for a task whose plateau is longer, as far as theory tells: runs begin with the
        hardest."""
        return (self.spec.inputs, self.spec.length)

    def data_key(self, key: Array, step: Any) -> Array:
        """The key of a step's batch, from the run's key of data."""
        return fold_in(key, step)


def attention_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """By layer and head, of the last position: the entropy of its attention, and its attention to
    the relevant tokens."""
    if output.attention is None:
        return {}
    attention = widened(output.attention)
    curves = {"entropy": attention_entropy(attention).mean(0)}
    if batch.relevant is not None:
        curves["attention"] = attention_mass(attention, batch.relevant)
    return curves


def hardness_repeated(task: Task, burst: Any, repeat: Any) -> tuple[float, ...]:
    """The hardness of a task with repetition; that of a schedule is not known."""
    burst, repeat = (
        x if isinstance(x, int | float) else usual for x, usual in ((burst, 1), (repeat, 0))
    )
    return (task.spec.inputs, task.spec.length / burst, -repeat)


def widened(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The same numbers in at least 32 bits."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def half_squared_error(output: Output, batch: Batch) -> Float[Array, " n"]:
    """Half the squared distance of each answer from its target."""
    return 0.5 * jnp.sum((widened(output.value) - batch.target) ** 2, -1)


@jax.custom_jvp
def cross_entropy(
    logits: Float[Array, "*rows classes"], target: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Minus the log-probability of each target, in nats. The derivative is written by hand: one
    pass over all logits."""
    return _cross_entropy(logits, target)[0]


def _cross_entropy(logits: Array, target: Array) -> tuple[Array, Array]:
    """The same, and the logarithms of all probabilities."""
    top = jnp.max(logits, -1, keepdims=True)
    total = jnp.log(jnp.sum(jnp.exp(logits - top), -1, keepdims=True))
    right = jnp.sum(jnp.where(_is(target, logits), logits - top, 0), -1)
    return total[..., 0] - right, logits - top - total


@cross_entropy.defjvp
def _cross_entropy_jvp(
    given: tuple[Array, Array], turned: tuple[Array, Any]
) -> tuple[Array, Array]:
    logits, target = given
    loss, log_chances = _cross_entropy(logits, target)
    return loss, jnp.sum((jnp.exp(log_chances) - _is(target, logits)) * turned[0], -1)


def _is(
    target: Int[Array, "*rows"], logits: Float[Array, "*rows classes"]
) -> Bool[Array, "*rows classes"]:
    return target[..., None] == jnp.arange(logits.shape[-1])


def stacked_patterns(output: Output) -> Float[Array, "n layers heads length length"] | None:
    """The attention from every position to every other, from the taps `layers.*.pattern`; None
    where there are none."""
    taps = output.taps or {}
    patterns = []
    while (name := f"layers.{len(patterns)}.pattern") in taps:
        patterns.append(widened(taps[name]))
    return jnp.stack(patterns, 1) if patterns else None
