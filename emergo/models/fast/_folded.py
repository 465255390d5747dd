r"""The first attention with all of its maps folded into small matrices, for CPUs.

The stream below the first layer is $x E + c$: a token of few columns and a position. So a score
$q_s \cdot k_t$ is a sum of four bilinear forms: token-token, token-position, position-token and
position-position. Their matrices are small products of the maps, computed once per step. The values
compose with the output map in the same way: one row of the stream's width for every column of a
token and for every position.

No query, key, value or mixture of any token is formed. For short sequences this needs no more
arithmetic than the usual form, and it saves the transpositions of arrays of heads, which took a CPU
longer than the arithmetic.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._layers import Linear
from .._products import rows
from ._stream import Embedded, padded

Scores = Float[Array, "n length heads length"]
Table = Float[Array, "length columns"]


def folds(features: int, length: int, width: int, heads: int) -> bool:
    """Return True if folded maps need no more multiplications per token than the usual form."""
    columns = padded(features)
    plain = width * (3 * columns + 2 * length + width)
    return heads * (columns * (columns + 3 * length) + (columns + length) * width) <= plain


def folded(
    embedded: Embedded,
    maps: tuple[Linear, Linear, Linear, Linear],
    heads: int,
    weigh: Callable[[Scores], Scores],
) -> tuple[Float[Array, "n length width"], Scores]:
    """Compute attention.

    **Arguments:**

    - `embedded`: the stream below the first layer.
    - `maps`: maps of queries, keys, values and the output.
    - `heads`: number of heads.
    - `weigh`: returns attention weights for scores (n, query, head, key).

    **Returns:** what attention adds to the stream, and the attention weights.
    """
    tokens = embedded.tokens
    query, key, value, out = maps
    n, length, columns = tokens.shape

    def tables(
        map: Linear,
    ) -> tuple[Float[Array, "columns heads size"], Float[Array, "length heads size"]]:
        """Apply a map to every column of a token (with the bias) and to every position."""
        by_column = embedded.embed @ map.weight + embedded.one[:, None] * map.bias
        by_position = embedded.positions @ map.weight
        return by_column.reshape(columns, heads, -1), by_position.reshape(length, heads, -1)

    def against(keys: Float[Array, "keys heads size"]) -> Float[Array, "n length columns"]:
        """Return inner products of all queries with these keys, (n, length, heads · keys)."""
        by_column, by_position = (
            jnp.einsum("ahs,bhs->ahb", part / math.sqrt(part.shape[-1]), keys)
            for part in tables(query)
        )
        by_token = rows(tokens, by_column.reshape(columns, -1))
        table = by_position.reshape(length, -1)
        return _with_table(embedded.one[-8:], tokens[:, 0, -8:], by_token, table)

    def outward(values: Float[Array, "values heads size"]) -> Float[Array, "rows width"]:
        """Compose values with the output map: one row per head and value."""
        by_head = out.weight.reshape(heads, -1, out.weight.shape[1])
        return jnp.einsum("ahs,hsw->haw", values, by_head).reshape(-1, out.weight.shape[1])

    against_columns, against_positions = map(against, tables(key))
    by_token = jnp.einsum("nrc,nkc->nrk", against_columns.reshape(n, -1, columns), tokens)
    # Both are reshaped before they are added: otherwise XLA repeats the addition at every use.
    shape = (n, length, heads, length)
    weights = weigh(by_token.reshape(shape) + against_positions.reshape(shape))
    sums = jnp.einsum("nrk,nkc->nrc", weights.reshape(n, -1, length), tokens)
    by_column, by_position = map(outward, tables(value))
    added = rows(sums.reshape(n, length, -1), by_column)
    added = added + rows(weights.reshape(n, length, -1), by_position)
    return added + out.bias, weights


@jax.custom_vjp
def _with_table(
    which: Float[Array, "8"],
    constant: Float[Array, "n 8"],
    x: Float[Array, "n length columns"],
    table: Table,
) -> Float[Array, "n length columns"]:
    """Return `x + table`, with a gradient of the table that a CPU computes quickly.

    That gradient is a sum over sequences. XLA would fuse the computation of the scores' gradient
    into the sum, and run both slowly on one core. So the sum is written as a matrix product with a
    column of ones: `constant` holds eight columns of the tokens, and `which` marks the column that
    is 1 everywhere. We pass eight columns because XLA turns a product with one column back into a
    fused sum.
    """
    return x + table


def _with_table_back(
    saved: tuple[Array, Array], g: Float[Array, "n length columns"]
) -> tuple[None, None, Array, Table]:
    which, constant = saved
    sums = jnp.einsum("ne,nr->er", constant, g.reshape(len(g), -1))
    return None, None, g, (which @ sums).reshape(g.shape[1:])


_with_table.defvjp(
    lambda which, constant, x, table: (x + table, (which, constant)), _with_table_back
)
