"""Attention of all positions in the first layer, without a query, key, value or mixture of any token.

The stream is x E + c there: a token of few columns, and a position. So scores are sums of four forms (of token and token, token
and position, position and token, position and position), whose matrices are small products of the maps; and values go through
the output map beforehand, one for every column of a token and one for every position. For a CPU: where sequences are short it
is no more arithmetic, and no array of heads is moved about, which took longer than the arithmetic.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._products import Linear, rows
from ._stream import Embedded, padded

Scores = Float[Array, "n length heads length"]
Table = Float[Array, "length columns"]


def folds(features: int, length: int, width: int, heads: int) -> bool:
    """Whether it takes no more multiplications for a token than queries, keys, values, attention and output map do."""
    columns = padded(features)
    plain = width * (3 * columns + 2 * length + width)
    return heads * (columns * (columns + 3 * length) + (columns + length) * width) <= plain


def folded(
    embedded: Embedded, maps: tuple[Linear, Linear, Linear, Linear], heads: int, weigh: Callable[[Scores], Scores]
) -> tuple[Float[Array, "n length width"], Scores]:
    """What attention adds to the stream, and its weights. `maps`: of queries, keys, values and the output."""
    tokens, (query, key, value, out) = embedded.tokens, maps
    n, length, columns = tokens.shape

    def parts(map: Linear) -> tuple[Float[Array, "columns heads size"], Float[Array, "length heads size"]]:
        """What a map makes of every column of a token, with its bias, and of every position."""
        by_column = embedded.embed @ map.weight + embedded.one[:, None] * map.bias
        by_position = embedded.positions @ map.weight
        return by_column.reshape(columns, heads, -1), by_position.reshape(length, heads, -1)

    def against(key: Float[Array, "keys heads size"]) -> Float[Array, "n length columns"]:
        """What all queries make of such parts of keys."""
        of_column, of_position = (
            jnp.einsum("ahs,bhs->ahb", part / math.sqrt(part.shape[-1]), key).reshape(len(part), -1) for part in parts(query)
        )
        return _with_table(embedded.one[-8:], tokens[:, 0, -8:], rows(tokens, of_column), of_position)

    def through(value: Float[Array, "values heads size"]) -> Float[Array, "rows width"]:
        outward = out.weight.reshape(heads, -1, out.weight.shape[1])
        return jnp.einsum("ahs,hsw->haw", value, outward).reshape(-1, out.weight.shape[1])

    probe, there = map(against, parts(key))
    scores = jnp.einsum("nrc,nkc->nrk", probe.reshape(n, -1, columns), tokens)
    # Reshaped before they are added: XLA would add them once more where they are read.
    weights = weigh(scores.reshape(n, length, heads, length) + there.reshape(n, length, heads, length))
    taken = jnp.einsum("nrk,nkc->nrc", weights.reshape(n, -1, length), tokens)
    of_column, of_position = map(through, parts(value))
    added = rows(taken.reshape(n, length, -1), of_column) + rows(weights.reshape(n, length, -1), of_position)
    return added + out.bias, weights


@jax.custom_vjp
def _with_table(
    which: Float[Array, "8"], constant: Float[Array, "n 8"], x: Float[Array, "n length columns"], table: Table
) -> Float[Array, "n length columns"]:
    """x + table. Of the columns of `constant` the one that `which` tells is 1: the gradient of the table, a sum over sequences,
    is a product with these. XLA would make the gradient of the scores anew inside of a sum, on one core and slowly; eight
    columns, as it does so with a single one, too."""
    return x + table


def _with_table_back(kept: tuple[Array, Array], g: Float[Array, "n length columns"]) -> tuple[None, None, Array, Table]:
    which, constant = kept
    sums = jnp.einsum("ne,nr->er", constant, g.reshape(len(g), -1))
    return None, None, g, (which @ sums).reshape(g.shape[1:])


_with_table.defvjp(lambda which, constant, x, table: (x + table, (which, constant)), _with_table_back)
