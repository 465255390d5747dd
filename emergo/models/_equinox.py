"""Equinox modules as models."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from ..core.contract import NO_TAP, Output, Spec
from ..core.errors import InputError
from ..core.identity import canonical
from ..core.pytree import as_tuple
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

    - `make`: `make(key, spec, **options)` returns the module. It must be a top-level function of an
      importable Python module, so that other processes can find it.
    - Further keywords are options of `make`: numbers, texts and tuples, part of a run's identity.

    The Equinox module is called on one sequence: floats (length, inputs) or tokens (length,). It
    returns (outputs,) or (answers, outputs), or an [`emergo.Output`][] whose `attention` has shape
    (layers, heads, length). If its `__call__` has an argument

    - `tap`, it may pass values through `tap(name, value)`. Taps see the values of all sequences,
      with the axis of sequences first; `value` is tapped as well.
    - `key`, it gets a random key in training, and None in evaluations. In evaluations layers such
      as `eqx.nn.Dropout` are in inference mode.

    The parameters are the module itself, with its floating-point arrays as the only leaves.

    >>> import equinox as eqx, jax, jax.numpy as jnp
    >>> class Flat(eqx.Module):
    ...     mlp: eqx.nn.MLP
    ...     def __call__(self, x): return self.mlp(x.ravel())
    >>> def make(key, spec, width):
    ...     size = spec.length * spec.inputs
    ...     return Flat(eqx.nn.MLP(size, spec.outputs, width, 1, key=key))
    >>> model = em.EquinoxModel(make, width=16)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> model.apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    make: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __init__(
        self,
        make: Callable[..., Any],
        options: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        **more: Any,
    ) -> None:
        named = sorted((dict(options) | more).items())
        canonical(named)  # raises for values that cannot be identified
        object.__setattr__(self, "make", make)
        object.__setattr__(self, "options", as_tuple(named))
        self.__post_init__()

    def init(self, key: Array, spec: Spec) -> Any:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        module = self.make(key, spec, **dict(self.options))
        return jax.tree_util.tree_map_with_path(_parameter, module)

    def apply(self, params: Any, inputs: Array, tap: TapFunction = NO_TAP) -> Output:
        module = jax.tree.map(
            lambda leaf: leaf.value if isinstance(leaf, _Fixed) else leaf,
            params,
            is_leaf=lambda leaf: isinstance(leaf, _Fixed),
        )
        takes = inspect.signature(module).parameters
        key = getattr(tap, "key", None)
        keys = None
        if key is None:
            from equinox.nn import inference_mode  # here, because it is slow to import

            module = inference_mode(module)
        elif "key" in takes:
            keys = jax.random.split(key, len(inputs))

        def call(x: Array, key: Array | None) -> Any:
            options: dict[str, Any] = {"tap": _per_sequence(tap)} if "tap" in takes else {}
            return module(x, **options, **({"key": key} if "key" in takes else {}))

        given = jax.vmap(call, in_axes=(0, None if keys is None else 0))(inputs, keys)
        if isinstance(given, Output):
            return Output(tap("value", given.value), given.attention)
        return Output(tap("value", given))


def _parameter(path: Any, leaf: Any) -> Any:
    import equinox as eqx  # here, because it is slow to import

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
