"""An optimised forward pass of `MinimalAttention`.

Products with one-hot inputs are lookups, and the last layer computes only the queries and outputs
that the task reads. On a GPU the first layer uses our kernels (`_chain_kernels.py`).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...core.contract import Output, Tap
from .._minimal import (
    MinimalAttention,
    MinimalLayer,
    MinimalParameters,
    dot,
    masked_softmax,
    stack_rows,
)
from .._model import answers
from .._products import look_up, pick, product, spread

LayerOutput = tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]


def forward(
    model: MinimalAttention,
    params: MinimalParameters,
    inputs: Int[Array, "n length"],
    tap: Tap,
    stack_size: int,
) -> Output:
    """Compute `model.apply(params, inputs, tap)`; the only tap is `value`."""
    read = answers(tap)
    length = inputs.shape[1]
    first = functools.partial(_first, model)
    if stack_size:
        from . import _chain_kernels as kernels  # here, since Pallas takes 0.3 s to import

        if kernels.applies(params[0], inputs):
            first = functools.partial(kernels.first_layer, model.context)
    x = inputs
    last_rows = []
    for i, layer in enumerate(params):
        last = (read or 1) if i == len(params) - 1 else length
        compute = functools.partial(_later, model) if i else first
        x, row = _sum_heads(functools.partial(compute, x=x, last=last), layer)
        last_rows.append(row)
    return Output(tap("value", x[:, 0] if read is None else x), stack_rows(last_rows))


def _first(
    model: MinimalAttention, layer: MinimalLayer, x: Int[Array, "n length"], last: int
) -> LayerOutput:
    """Compute the first layer, whose inputs are one-hot.

    Queries are rows of the query map, scores are entries of these rows, and a weighted sum of
    inputs holds the total weight of every token and of every position.
    """
    n, length = x.shape
    heads, size, outputs = layer.value.shape
    vocabulary = size - length
    by_query = jnp.transpose(layer.query, (2, 0, 1))

    def query_rows(table: Float[Array, "size heads keys"]) -> Float[Array, "n last heads keys"]:
        """Look up the rows of the queries, by token and by position."""
        flat = table[None, :vocabulary].reshape(1, vocabulary, -1)
        by_token = look_up(flat, x[:, length - last :])[0]
        return by_token.reshape(n, last, heads, -1) + table[size - last :]

    def weighted(
        weights: Float[Array, "n last heads keys"], values: Float[Array, "heads keys outputs"]
    ) -> Float[Array, "n last outputs"]:
        return product(weights.reshape(n, last, -1), values.reshape(-1, outputs))

    # Tokens and positions have separate products. Concatenating them would write them once more.
    scores = pick(query_rows(by_query[..., :vocabulary]), x)
    scores = (scores + query_rows(by_query[..., vocabulary:])) / math.sqrt(size)
    attention = masked_softmax(scores, model.visible(length, last)[:, None])
    by_token = weighted(spread(attention, x, vocabulary), layer.value[:, :vocabulary])
    by_position = weighted(attention, layer.value[:, vocabulary:])
    return by_token + by_position, jnp.moveaxis(attention[:, -1], 1, 0)


def _later(
    model: MinimalAttention, layer: MinimalLayer, x: Float[Array, "n length size"], last: int
) -> LayerOutput:
    """Compute a later layer. Values are mapped after the weighted sum."""
    length = x.shape[1]
    queries = dot("hkc,ntc->hntk", layer.query, x[:, length - last :])
    scores = dot("hntk,nik->hnti", queries, x) / math.sqrt(x.shape[-1])
    attention = masked_softmax(scores, model.visible(length, last))
    mixed = dot("hnti,nic->hntc", attention, x)
    return dot("hntc,hco->nto", mixed, layer.value), attention[:, :, -1]


def _sum_heads(
    compute: Callable[[MinimalLayer], tuple[Array, Array]], layer: MinimalLayer
) -> tuple[Array, Array]:
    """Sum the outputs of all heads; in float64 one head after another, as in the plain forward."""
    if layer.query.dtype != jnp.float64:
        return compute(layer)
    added, rows = jax.lax.map(lambda head: compute(jax.tree.map(lambda a: a[None], head)), layer)
    return jnp.sum(added, 0), rows[:, 0]
