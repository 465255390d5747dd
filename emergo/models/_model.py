"""The base class of models."""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Array

from .._contract import NO_TAP, Output, Spec, Tap
from .._pytree import Pytree

TapFunction = Tap | Callable[[str, Array], Array]


class Model(Pytree):
    """A model: its options. Parameters are separate: any pytree of arrays that `init` draws.

    A subclass is a frozen dataclass and a pytree; it needs `init` and `apply`.

    >>> import jax, jax.numpy as jnp
    >>> class Average(em.Model):
    ...     def init(self, key, spec): return jax.random.normal(key, (spec.inputs, spec.outputs))
    ...     def apply(self, params, inputs, tap=em.Tap()):
    ...         return em.Output(tap("mean", inputs.mean(1)) @ params)
    >>> params = Average().init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> Average().apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "bf16")  # in which it can be trained
    only_tokens: ClassVar[bool] = False  # whether inputs must be whole-number tokens (n, length)
    pads: ClassVar[bool] = False  # whether `init` honours `spec.used`, so that runs on tasks of several sizes share a program

    def init(self, key: Array, spec: Spec) -> Any:
        """Draws the parameters for a task of these sizes. Where `spec.used` is given, they are those of the smaller model,
        padded with zeros at the end of each axis."""
        raise NotImplementedError

    def apply(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        """The forward pass, plain: every named point goes through `tap(name, value)`. A model that has dropout or is told how
        many positions are read finds them in `tap.key` and `tap.spec`."""
        raise NotImplementedError

    def fast(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        """The same output by a faster way that may skip taps; used where nothing reads or writes there."""
        return self.apply(params, inputs, tap)


def answers(tap: TapFunction) -> int | None:
    """How many of the last positions are read, or None: the last one, without an axis of its own."""
    spec = getattr(tap, "spec", None)
    return None if spec is None else spec.answers
