r"""The minimal attention of yuksel2026: one-hot tokens and positions, full-size queries and values, and nothing else.

The input of position t is $x_t = \mathrm{onehot}(\text{token}) \oplus \mathrm{onehot}(t)$, of size D = vocabulary + length. A
head has scores $x_i^\top W_Q x_t / \sqrt D$ (the key map is the identity) and adds $\sum_i a_{ti} W_V x_i$; heads are summed.
The last layer keeps the first `outputs` coordinates, which are the prediction.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._contract import NO_TAP, Output, Spec
from .._pytree import option, per_run
from .._random import fold_in, raw, uniform
from ._attention import causal
from ._model import Model, TapFunction, answers
from ._products import look_up, pick, product, spread

_dot = functools.partial(jnp.einsum, precision="highest")


class MinimalLayer(NamedTuple):
    query: Float[Array, "heads size size"]  # W_Q: (head, coordinate of the key, coordinate of the query)
    value: Float[Array, "heads size outputs"]  # W_V: (head, coordinate of the input, coordinate of the output)


MinimalParameters = tuple[MinimalLayer, ...]


def _each(function: Callable[..., Any], *arrays: Any) -> Any:
    """What a function of heads gives for all of them; in 64 bits for one after another, so that equal heads stay equal: a
    product over all heads at once may round those at its edge otherwise. In fp32 that was not seen, and a loop costs time."""
    if jax.tree.leaves(arrays)[0].dtype != jnp.float64:
        return function(*arrays)

    def one(head: Any) -> Any:
        return jax.tree.map(lambda a: a[0], function(*jax.tree.map(lambda a: a[None], head)))

    return jax.lax.map(one, arrays)


class MinimalAttention(Model):
    r"""The minimal attention of yuksel2026, on whole-number tokens (n, length).

    **Arguments:**

    - `heads`: the number of heads of a layer.
    - `layers`: the number of layers. All but the last put out all D = vocabulary + length coordinates.
    - `start`: `"small"`: values 0 and queries uniform in ± `scale` (Fig. 1); `"xavier"`: both uniform in ± √(6/2D).
    - `scale`: of small initial queries. At scale 0 all heads are the same.
    - `context`: how many positions a query sees, itself among them; None: all before it.

    >>> import jax, jax.numpy as jnp
    >>> model, spec = em.MinimalAttention(heads=2, context=3), em.Spec(length=6, inputs=5, outputs=5, answers=4)
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
        size, heads = spec.inputs + spec.length, self.heads
        bound, layers = math.sqrt(3 / size), []

        def draw(number: int, columns: int) -> Array:
            chance = uniform(fold_in(raw(key), number), heads * size, max(size, columns))[:, :columns]
            return (2 * chance - 1).reshape(heads, size, columns)

        for layer in range(self.layers):
            outputs, query = spec.outputs if layer == self.layers - 1 else size, draw(2 * layer, size)
            if self.start == "xavier":
                layers.append(MinimalLayer(bound * query, bound * draw(2 * layer + 1, outputs)))
            else:
                layers.append(MinimalLayer(self.scale * query, jnp.zeros((heads, size, outputs), jnp.float32)))
        return tuple(layers)

    def apply(self, params: MinimalParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP) -> Output:
        (count, length), dtype, read = inputs.shape, params[0].query.dtype, answers(tap)
        tokens = jax.nn.one_hot(inputs, params[0].query.shape[-1] - length, dtype=dtype)
        positions = jnp.broadcast_to(jnp.eye(length, dtype=dtype), (count, length, length))
        x, last_rows = tap("embed", jnp.concatenate([tokens, positions], -1)), []

        def tapped(name: str, by_head: Array, axis: int) -> Array:
            """A tap's value has its heads at this axis."""
            return jnp.moveaxis(tap(name, jnp.moveaxis(by_head, 0, axis)), axis, 0)

        for i, layer in enumerate(params):
            name = f"layers.{i}"
            queries = tapped(f"{name}.queries", _each(lambda query, x=x: _dot("hkc,ntc->hntk", query, x), layer.query), 2)
            scores = _each(lambda queries, x=x: _dot("hntk,nik->hnti", queries, x), queries) / math.sqrt(x.shape[-1])
            pattern = tapped(f"{name}.pattern", _weigh(tapped(f"{name}.scores", scores, 1), self._visible(length, length)), 1)
            values = tapped(f"{name}.values", _each(lambda value, x=x: _dot("nic,hco->hnio", x, value), layer.value), 2)
            mixed = _each(lambda pattern, values: _dot("hnti,hnio->hnto", pattern, values), pattern, values)
            x = tap(f"{name}.output", jnp.sum(tapped(f"{name}.mixed", mixed, 2), 0))
            last_rows.append(pattern[:, :, -1])
        value = tap("value", x[:, -1] if read is None else x[:, length - read :])
        return Output(value, _last_rows(last_rows))

    def fast(self, params: MinimalParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP) -> Output:
        """Computes what the task reads: products with one-hot inputs are look-ups, and the last layer has only the queries and
        outputs that are compared. With `tap.fused`, the first layer is by kernels of a GPU where they apply. Of the taps, only
        `value` is there."""
        read, length, x, last_rows = answers(tap), inputs.shape[1], inputs, []
        first = self._first
        if getattr(tap, "fused", 0):
            from . import _chain_kernels as kernels  # here, since Pallas takes 0.3 s to import

            first = functools.partial(kernels.first_layer, self.context) if kernels.applies(params[0], inputs) else first
        for i, layer in enumerate(params):
            last = (read or 1) if i == len(params) - 1 else length
            x, row = _summed(functools.partial(self._dense if i else first, x=x, last=last), layer)
            last_rows.append(row)
        return Output(tap("value", x[:, 0] if read is None else x), _last_rows(last_rows))

    def _visible(self, length: int, last: int) -> Bool[Array, "last length"]:
        return causal(length, self.context)[length - last :]

    def _first(
        self, layer: MinimalLayer, x: Int[Array, "n length"], last: int
    ) -> tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]:
        """The first layer, whose input is one-hot: queries are rows of the map, scores are entries of these, and a weighted sum
        of inputs holds the weight of every token and of every position."""
        n, length, (heads, size, outputs) = *x.shape, layer.value.shape
        vocabulary = size - length
        by_query = jnp.transpose(layer.query, (2, 0, 1))

        def asked(table: Float[Array, "size heads keys"]) -> Float[Array, "n last heads keys"]:
            """The rows of the queries, by token and by position."""
            by_token = look_up(table[None, :vocabulary].reshape(1, vocabulary, -1), x[:, length - last :])[0]
            return by_token.reshape(n, last, heads, -1) + table[size - last :]

        def given(weights: Float[Array, "n last heads keys"], values: Float[Array, "heads keys outputs"]) -> Array:
            return product(weights.reshape(n, last, -1), values.reshape(-1, outputs))

        # Keys and values by token and by position, each a product of its own: put together, they would be written once more.
        scores = pick(asked(by_query[..., :vocabulary]), x) + asked(by_query[..., vocabulary:])
        attention = _weigh(scores / math.sqrt(size), self._visible(length, last)[:, None])
        of_tokens = given(spread(attention, x, vocabulary), layer.value[:, :vocabulary])
        return of_tokens + given(attention, layer.value[:, vocabulary:]), jnp.moveaxis(attention[:, -1], 1, 0)

    def _dense(
        self, layer: MinimalLayer, x: Float[Array, "n length size"], last: int
    ) -> tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]:
        """A later layer: the key map moves to the queries, and values behind the weighted sum."""
        scores = _dot("hntk,nik->hnti", _dot("hkc,ntc->hntk", layer.query, x[:, x.shape[1] - last :]), x)
        attention = _weigh(scores / math.sqrt(x.shape[-1]), self._visible(x.shape[1], last))
        mixed = _dot("hnti,nic->hntc", attention, x)
        return _dot("hntc,hco->nto", mixed, layer.value), attention[:, :, -1]


def _weigh(scores: Float[Array, "*rows length"], visible: Bool[Array, "*#rows length"]) -> Float[Array, "*rows length"]:
    return jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)


def _summed(layer_of: Callable[[MinimalLayer], tuple[Array, Array]], layer: MinimalLayer) -> tuple[Array, Array]:
    """What the heads of a layer add together, and their weights; in 64 bits of one after another, as in `_each`."""
    if layer.query.dtype != jnp.float64:
        return layer_of(layer)
    added, rows = jax.lax.map(lambda head: layer_of(jax.tree.map(lambda a: a[None], head)), layer)
    return jnp.sum(added, 0), rows[:, 0]


def _last_rows(rows: list[Float[Array, "heads n length"]]) -> Float[Array, "n layers heads length"]:
    return jnp.moveaxis(jnp.stack(rows), 2, 0)
