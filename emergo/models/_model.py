"""The base class of models."""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Array

from ..core.contract import NO_TAP, Output, Spec, Tap
from ..core.errors import InputError
from ..core.pytree import Pytree

TapFunction = Tap | Callable[[str, Array], Array]


class Model(Pytree):
    """A model: a frozen dataclass of options, and the functions `init` and `apply`.

    Parameters are separate: `init` draws them, as any pytree of floating-point arrays.

    **`apply` defines the model.** Training calls `apply`, or an optimised path that was found to
    agree with it (`emergo.models.fast`). Optimised paths belong to one exact class, so a subclass
    trains the `apply` that it defines or inherits.

    >>> import jax, jax.numpy as jnp
    >>> class Average(em.Model):
    ...     def init(self, key, spec): return jax.random.normal(key, (spec.inputs, spec.outputs))
    ...     def apply(self, params, inputs, tap=em.Tap()):
    ...         return em.Output(tap("mean", inputs.mean(1)) @ params)
    >>> params = Average().init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> Average().apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "bf16")
    """Precisions in which the model can be trained."""
    only_tokens: ClassVar[bool] = False
    """True if inputs must be integer tokens of shape (n, length)."""
    only_features: ClassVar[bool] = False
    """True if inputs must be features of shape (n, length, inputs)."""
    pads: ClassVar[bool] = False
    """True if `init` honours `spec.used`, so that tasks of several sizes can share a program."""

    @property
    def looks_ahead(self) -> bool:
        """Return True if an answer can depend on later tokens than its own."""
        return False

    def init(self, key: Array, spec: Spec) -> Any:
        """Draw initial parameters.

        **Arguments:**

        - `key`: a JAX random key.
        - `spec`: the sizes of the task. If `spec.used` is set, draw the parameters of a model of
          those smaller sizes, and pad every axis with zeros at its end.

        **Returns:** a pytree of floating-point arrays.
        """
        raise NotImplementedError

    def apply(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        """Compute the forward pass.

        **Arguments:**

        - `params`: parameters as `init` returns them.
        - `inputs`: features (n, length, inputs) or integer tokens (n, length).
        - `tap`: pass every named point of the forward pass through `tap(name, value)`. In training
          it also holds `tap.key` (for dropout; None in evaluations), `tap.step` and `tap.spec`.

        **Returns:** an [`emergo.Output`][]. If `tap.deferred`, it may have `features` and `readout`
        in place of `value`.
        """
        raise NotImplementedError

    def to_torch(self, params: Any, spec: Spec) -> Any:
        """Return a `torch.nn.Module` with these parameters and the same outputs.

        The models of emergo have one; a custom model may define it.
        """
        from .torch_modules import to_torch

        return to_torch(self, params, spec)


def check_heads(model: Model, heads: int, width: int) -> None:
    if width % heads:
        raise InputError(
            f"{type(model).__name__}.heads must divide width, got {heads} heads with width {width}"
        )


def deferred(tap: TapFunction) -> bool:
    """Return True if the model may return features and a readout instead of a value."""
    return getattr(tap, "deferred", False)


def answers(tap: TapFunction) -> int | None:
    """Return how many of the last positions are read; None: the last one, without an axis."""
    spec = getattr(tap, "spec", None)
    return None if spec is None else spec.answers
