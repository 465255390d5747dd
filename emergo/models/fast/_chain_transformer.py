"""An optimised forward pass of `ChainTransformer`.

The last block computes only the queries that are read. The first block maps its tables of tokens
and positions instead of every token: a map of a token's row plus a position's row is the sum of the
mapped tables' rows. Dropout of the embedding rules out mapped tables.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...core.contract import NO_TAP, Output, Tap
from .._chain_transformer import (
    ChainParameters,
    ChainTransformer,
    QueriesKeysValues,
    embed,
    linear,
    project,
    rows_of,
)
from .._model import answers


def forward(
    model: ChainTransformer,
    params: ChainParameters,
    inputs: Int[Array, "n length"],
    tap: Tap,
    stack_size: int,
) -> Output:
    """Compute `model.apply(params, inputs, tap)`; the only tap is `value`."""
    read = answers(tap)
    rate = model.rate(tap.step)
    key = tap.key if model.dropout else None
    without = functools.partial(_logits, model, inputs, read or 1, rate, None)
    if key is None:
        logits, rows = without(params)
    elif "embedding" in model.dropout_at and isinstance(rate, Array):
        # Steps without dropout can map the tables, which takes half the time. The branch is the
        # same for all runs of a stack.
        with_dropout = functools.partial(_logits, model, inputs, read or 1, rate, key)
        logits, rows = jax.lax.cond(_in_any_run(rate > 0), with_dropout, without, params)
    else:
        logits, rows = _logits(model, inputs, read or 1, rate, key, params)
    return Output(tap("value", logits[:, 0] if read is None else logits), rows)


def _logits(
    model: ChainTransformer,
    inputs: Int[Array, "n length"],
    last: int,
    rate: float | Float[Array, ""],
    key: Array | None,
    params: ChainParameters,
) -> tuple[Float[Array, "n last outputs"], Float[Array, "n layers heads length"]]:
    """Return logits at the last positions, and the attention of the very last one."""
    length = inputs.shape[1]
    embedding = model.dropout_of(key, rate, model.layers, length)
    maps_tables = not embedding.at("embedding")
    tokens = inputs[:, length - last :] if maps_tables and model.layers == 1 else inputs
    x = embedding(embed(params, tokens), 0, "embedding")
    last_rows = []
    for i, block in enumerate(params.blocks):
        count = last if i == model.layers - 1 else x.shape[1]
        above = x[:, x.shape[1] - count :]
        if maps_tables and i == 0:
            maps = _project_tables(params, tokens, inputs)
        else:
            maps = project(block, above, x)
        dropout = model.dropout_of(key, rate, i, count)
        x, row = model.block(block, above, maps, dropout, NO_TAP, f"layers.{i}")
        last_rows.append(row)
    return linear(params.decode, x[:, x.shape[1] - last :]), jnp.stack(last_rows, 1)


def _project_tables(
    params: ChainParameters, last: Int[Array, "n last"], tokens: Int[Array, "n length"]
) -> QueriesKeysValues:
    """Return queries of the last tokens, keys and values of all, from mapped tables."""
    query, key, value = params.blocks[0][:3]
    (queries,) = rows_of(params.encode @ query[None], params.positions @ query[None], last)
    both = jnp.stack([key, value])
    return queries, *rows_of(params.encode @ both, params.positions @ both, tokens)


@jax.custom_batching.custom_vmap
def _in_any_run(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """Return True if the flag is set in any run of a stack.

    Under `vmap` the result is one value, not one per run, so that a branch on it stays a branch.
    """
    return flag


@_in_any_run.def_vmap
def _in_any_run_of_a_stack(
    size: int, batched: list[bool], flags: Bool[Array, " runs"]
) -> tuple[Bool[Array, ""], bool]:
    return (jnp.any(flags) if batched[0] else flags), False
