"""Equinox modules as models."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from .._contract import NO_TAP, Output, Spec
from .._errors import InputError
from ._model import Model, TapFunction


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Fixed:
    """A leaf of a module that is not an array, such as an activation function: part of the tree's structure, not a leaf."""

    value: Any


class EquinoxModel(Model):
    """A model from a function that makes an Equinox module.

    **Arguments:**

    - `make`: `make(key, spec)` returns the module; a function of a module's top level, so that other processes find it. The
      Equinox module is called on one sequence: on (length, inputs) floats, or (length,) tokens, and returns (outputs,), or
      (answers, outputs). If its `__call__` has a second argument `tap`, it passes named values through `tap(name, value)`.

    The parameters are the module itself, with its floating-point arrays as the only leaves. Taps have the module's names, and
    the shapes that values have there with the axis of sequences in front. `value` is tapped as well.

    >>> import equinox as eqx, jax, jax.numpy as jnp
    >>> class Flat(eqx.Module):
    ...     mlp: eqx.nn.MLP
    ...     def __call__(self, x): return self.mlp(x.ravel())
    >>> def make(key, spec): return Flat(eqx.nn.MLP(spec.length * spec.inputs, spec.outputs, 16, 1, key=key))
    >>> model = em.EquinoxModel(make)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> model.apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    make: Callable[[Any, Spec], Any]

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise InputError(f"EquinoxModel.make must be a function of (key, spec), got {self.make!r}")

    def init(self, key: Array, spec: Spec) -> Any:
        typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
        return jax.tree_util.tree_map_with_path(_parameter, self.make(typed, spec))

    def apply(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        def is_fixed(leaf: Any) -> bool:
            return isinstance(leaf, _Fixed)

        module = jax.tree.map(lambda leaf: leaf.value if is_fixed(leaf) else leaf, params, is_leaf=is_fixed)
        if "tap" in inspect.signature(module).parameters:
            value = jax.vmap(lambda x: module(x, tap=_per_sequence(tap)))(inputs)
        else:
            value = jax.vmap(module)(inputs)
        return Output(tap("value", value))


def _parameter(path: Any, leaf: Any) -> Any:
    if eqx.is_inexact_array(leaf):
        return jnp.asarray(leaf)
    if eqx.is_array(leaf):
        name = jax.tree_util.keystr(path).lstrip(".")
        raise InputError(f"EquinoxModel: {name} is an array of {leaf.dtype}, which cannot be trained; make it in __call__")
    return _Fixed(leaf)


def _per_sequence(tap: TapFunction) -> Callable[[str, Array], Array]:
    """A tap for the inside of a `vmap` over sequences that hands all sequences' values at once to `tap`."""

    def inner(name: str, value: Array) -> Array:
        whole = custom_vmap(lambda value: value)
        whole.def_vmap(lambda size, batched, value: (tap(name, value), True))
        return whole(value)

    return inner
