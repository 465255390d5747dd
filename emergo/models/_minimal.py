r"""The minimal attention of yuksel2026: one-hot tokens and positions, full-size maps, no MLP.

The input of position t is $x_t = \mathrm{onehot}(\text{token}) \oplus \mathrm{onehot}(t)$, of size
D = vocabulary + length. A head has scores $x_i^\top W_Q x_t / \sqrt D$ (the key map is the
identity) and adds $\sum_i a_{ti} W_V x_i$; heads are summed. The last layer keeps the first
`outputs` coordinates, which are the prediction.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..core.contract import NO_TAP, Output, Spec
from ..core.pytree import option, per_run
from ..core.random import fold_in, raw, uniform
from ._attention import causal
from ._model import Model, TapFunction, answers

dot = functools.partial(jnp.einsum, precision="highest")


class MinimalLayer(NamedTuple):
    # W_Q: (head, coordinate of the key, coordinate of the query)
    query: Float[Array, "heads size size"]
    # W_V: (head, coordinate of the input, coordinate of the output)
    value: Float[Array, "heads size outputs"]


MinimalParameters = tuple[MinimalLayer, ...]


def _each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Apply a function to all heads; in float64, to one head after another.

    Equal heads must stay equal. A product over all heads at once may round the heads at its edge
    differently. This was never seen in fp32, where a loop would cost time.
    """
    if jax.tree.leaves(arrays)[0].dtype != jnp.float64:
        return function(*arrays)

    def one(head: Any) -> Any:
        return jax.tree.map(lambda a: a[0], function(*jax.tree.map(lambda a: a[None], head)))

    return jax.lax.map(one, arrays)


class MinimalAttention(Model):
    r"""The minimal attention of yuksel2026, on integer tokens (n, length).

    **Arguments:**

    - `heads`: number of heads per layer.
    - `layers`: number of layers. All but the last output all D = vocabulary + length coordinates.
    - `start`: `"small"`: values 0 and queries uniform in ± `scale` (Fig. 1); `"xavier"`: both
      uniform in ± √(6/2D).
    - `scale`: scale of small initial queries. At scale 0 all heads are equal.
    - `context`: number of positions that a query sees, including itself; None: all before it.

    >>> import jax, jax.numpy as jnp
    >>> model = em.MinimalAttention(heads=2, context=3)
    >>> spec = em.Spec(length=6, inputs=5, outputs=5, answers=4)
    >>> params = model.init(jax.random.key(0), spec)
    >>> model.apply(params, jnp.zeros((7, 6), int), em.Tap(spec)).value.shape
    (7, 4, 5)
    """

    heads: int = option(default=3, low=1)
    layers: int = option(default=1, low=1)
    start: Literal["xavier", "small"] = option(default="small", at_start=True)
    scale: float = per_run(default=1e-9, low=0.0)
    context: int | None = per_run(default=None, low=1)
    precisions = ("fp32", "fp64")
    only_tokens = True

    def init(self, key: Array, spec: Spec) -> MinimalParameters:
        size = spec.inputs + spec.length
        heads = self.heads
        bound = math.sqrt(3 / size)

        def draw(number: int, columns: int) -> Array:
            chance = uniform(fold_in(raw(key), number), heads * size, max(size, columns))
            return (2 * chance[:, :columns] - 1).reshape(heads, size, columns)

        layers = []
        for layer in range(self.layers):
            outputs = spec.outputs if layer == self.layers - 1 else size
            query = draw(2 * layer, size)
            if self.start == "xavier":
                layers.append(MinimalLayer(bound * query, bound * draw(2 * layer + 1, outputs)))
            else:
                values = jnp.zeros((heads, size, outputs), jnp.float32)
                layers.append(MinimalLayer(self.scale * query, values))
        return tuple(layers)

    def apply(
        self, params: MinimalParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP
    ) -> Output:
        count, length = inputs.shape
        dtype = params[0].query.dtype
        read = answers(tap)
        tokens = jax.nn.one_hot(inputs, params[0].query.shape[-1] - length, dtype=dtype)
        positions = jnp.broadcast_to(jnp.eye(length, dtype=dtype), (count, length, length))
        x = tap("embed", jnp.concatenate([tokens, positions], -1))
        last_rows = []
        for i, layer in enumerate(params):
            x, pattern = self._layer(layer, x, tap, f"layers.{i}")
            last_rows.append(pattern[:, :, -1])
        value = tap("value", x[:, -1] if read is None else x[:, length - read :])
        return Output(value, stack_rows(last_rows))

    def _layer(
        self, layer: MinimalLayer, x: Float[Array, "n length size"], tap: TapFunction, name: str
    ) -> tuple[Float[Array, "n length outputs"], Float[Array, "heads n length length"]]:
        """Return the output of a layer and its attention patterns."""
        length = x.shape[1]

        def tapped(point: str, by_head: Array, axis: int) -> Array:
            """Tap an array whose first axis is the head; taps have heads at `axis`."""
            return jnp.moveaxis(tap(f"{name}.{point}", jnp.moveaxis(by_head, 0, axis)), axis, 0)

        queries = _each(lambda query: dot("hkc,ntc->hntk", query, x), layer.query)
        queries = tapped("queries", queries, 2)
        scores = _each(lambda queries: dot("hntk,nik->hnti", queries, x), queries)
        scores = tapped("scores", scores / math.sqrt(x.shape[-1]), 1)
        pattern = tapped("pattern", masked_softmax(scores, self.visible(length, length)), 1)
        values = _each(lambda value: dot("nic,hco->hnio", x, value), layer.value)
        values = tapped("values", values, 2)
        mixed = _each(lambda a, v: dot("hnti,hnio->hnto", a, v), pattern, values)
        return tap(f"{name}.output", jnp.sum(tapped("mixed", mixed, 2), 0)), pattern

    def visible(self, length: int, last: int) -> Bool[Array, "last length"]:
        return causal(length, self.context)[length - last :]


def masked_softmax(
    scores: Float[Array, "*rows length"], visible: Bool[Array, "*#rows length"]
) -> Float[Array, "*rows length"]:
    return jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)


def stack_rows(rows: list[Float[Array, "heads n length"]]) -> Float[Array, "n layers heads length"]:
    return jnp.moveaxis(jnp.stack(rows), 2, 0)
