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

from ..core.contract import NO_TAP, Output, Spec
from ..core.errors import InputError
from ._model import Model, TapFunction


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Fixed:
    """A leaf of a module that is not an array, such as an activation function.

    It becomes part of the tree's structure.
    """

    value: Any


class EquinoxModel(Model):
    """A model made from an Equinox module.

    **Arguments:**

    - `make`: `make(key, spec)` returns the module. It must be a top-level function of an importable
      Python module, so that other processes can find it.

    The Equinox module is called on one sequence: floats (length, inputs) or tokens (length,). It
    returns (outputs,) or (answers, outputs). If its `__call__` has a second argument `tap`, it may
    pass values through `tap(name, value)`. Taps see the values of all sequences, with the axis of
    sequences first; `value` is tapped as well.

    The parameters are the module itself, with its floating-point arrays as the only leaves.

    >>> import equinox as eqx, jax, jax.numpy as jnp
    >>> class Flat(eqx.Module):
    ...     mlp: eqx.nn.MLP
    ...     def __call__(self, x): return self.mlp(x.ravel())
    >>> def make(key, spec):
    ...     size = spec.length * spec.inputs
    ...     return Flat(eqx.nn.MLP(size, spec.outputs, 16, 1, key=key))
    >>> model = em.EquinoxModel(make)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> model.apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    make: Callable[[Any, Spec], Any]

    def init(self, key: Array, spec: Spec) -> Any:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        return jax.tree_util.tree_map_with_path(_parameter, self.make(key, spec))

    def apply(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        module = jax.tree.map(
            lambda leaf: leaf.value if isinstance(leaf, _Fixed) else leaf,
            params,
            is_leaf=lambda leaf: isinstance(leaf, _Fixed),
        )
        tapped = "tap" in inspect.signature(module).parameters
        options = {"tap": _per_sequence(tap)} if tapped else {}
        return Output(tap("value", jax.vmap(lambda x: module(x, **options))(inputs)))


def _parameter(path: Any, leaf: Any) -> Any:
    if eqx.is_inexact_array(leaf):
        return jnp.asarray(leaf)
    if eqx.is_array(leaf):
        name = jax.tree_util.keystr(path).lstrip(".")
        raise InputError(
            f"EquinoxModel: {name} is an array of {leaf.dtype}, which cannot be trained; make it "
            f"in __call__"
        )
    return _Fixed(leaf)


def _per_sequence(tap: TapFunction) -> Callable[[str, Array], Array]:
    """Return a tap for use inside a `vmap` over sequences.

    It passes the values of all sequences to `tap` at once. A `custom_vmap` gives access to the
    batched array.
    """

    def inner(name: str, value: Array) -> Array:
        whole = custom_vmap(lambda value: value)
        whole.def_vmap(lambda size, batched, value: (tap(name, value), True))
        return whole(value)

    return inner
