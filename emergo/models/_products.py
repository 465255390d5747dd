"""Matrix products over many rows, and products with one-hot matrices.

Some gradients are written by hand, for two reasons:

- The gradient of a small matrix is a sum over all rows of a batch. As one product it keeps only a
  few of a GPU's processors busy. We sum products over parts of the rows instead.
- The gradient of a lookup is a scatter-add, whose order of summation changes from run to run on a
  GPU. We use a product with a one-hot matrix, which gives the same bits every time.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.chunks import in_chunks

_PARTS = 40


def at_least_fp32(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype itself, or fp32 for bf16."""
    return jnp.promote_types(dtype, jnp.float32)


def wide(equation: str, a: Array, b: Array) -> Array:
    """Return an einsum whose result has at least fp32."""
    return jnp.einsum(equation, a, b, preferred_element_type=at_least_fp32(a.dtype))


def rows(
    x: Float[Array, "*rows inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "*rows outputs"]:
    """Return `x @ weight`, with all rows as one axis: XLA's CPU products are twice as fast then."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], -1)


def over_rows(
    x: Float[Array, "*rows inputs"], g: Float[Array, "*rows outputs"]
) -> Float[Array, "inputs outputs"]:
    """Return x^T g over all rows: the gradient of a map's weight."""
    return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])


def _in_parts(
    x: Float[Array, "tables n length inputs"], g: Float[Array, "tables n length outputs"]
) -> Array:
    """Return x^T g for every table, as a sum of products over parts of the rows."""
    parts = math.gcd(x.shape[1], _PARTS)
    split = [a.reshape(len(a), parts, -1, a.shape[-1]) for a in (x, g)]
    return jnp.einsum("tpri,tpro->tpio", *split).sum(1)


@jax.custom_vjp
def product(
    x: Float[Array, "n length inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "n length outputs"]:
    """Return `x @ weight`; the gradient of the weight is summed in parts."""
    return rows(x, weight)


def _product_back(saved, g):
    x, weight = saved
    return product(g, weight.T), _in_parts(x[None], g[None])[0]


product.defvjp(lambda x, weight: (product(x, weight), (x, weight)), _product_back)


@jax.custom_vjp
def look_up(
    tables: Float[Array, "tables rows columns"], tokens: Int[Array, "n length"]
) -> Float[Array, "tables n length columns"]:
    """Return the row of every token, which is a product with one-hot rows."""
    return tables[:, tokens]


def _look_up_back(saved, g):
    tokens, rows = saved
    hot = jax.nn.one_hot(tokens, rows, dtype=g.dtype)
    with jax.default_matmul_precision("highest"):
        return _in_parts(jnp.broadcast_to(hot, (len(g), *hot.shape)), g), None


look_up.defvjp(
    lambda tables, tokens: (look_up(tables, tokens), (tokens, tables.shape[1])), _look_up_back
)


@jax.custom_vjp
def embed(
    weight: Float[Array, "words width"], tokens: Int[Array, "n length"]
) -> Float[Array, "n length width"]:
    """Return the row of every token, which is a product with one-hot rows."""
    return weight[tokens]


def _embed_back(
    saved: tuple[Array, Array], g: Float[Array, "n length width"]
) -> tuple[Array, None]:
    """Multiply by one-hot rows, some at a time: all rows of a large vocabulary fill the memory."""
    weight, tokens = saved
    wide_type = at_least_fp32(g.dtype)

    def add(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        hot = jax.nn.one_hot(chunk[0], len(weight), dtype=g.dtype)
        return total + jnp.matmul(hot.T, chunk[1], preferred_element_type=wide_type), None

    by_row = (tokens.reshape(-1), g.reshape(-1, g.shape[-1]))
    words, parts = in_chunks(by_row, len(weight))
    total, _ = jax.lax.scan(add, jnp.zeros(weight.shape, wide_type), (words, parts))
    return total.astype(weight.dtype), None


embed.defvjp(lambda weight, tokens: (embed(weight, tokens), (weight, tokens)), _embed_back)


@jax.custom_vjp
def pick(
    scores: Float[Array, "n queries heads rows"], tokens: Int[Array, "n length"]
) -> Float[Array, "n queries heads length"]:
    """Return the entry of every token, a product with one-hot columns. Its gradient is `spread`."""
    return jnp.take_along_axis(scores, tokens[:, None, None], -1)


def spread(
    weights: Float[Array, "n queries heads length"], tokens: Int[Array, "n length"], rows: int
) -> Float[Array, "n queries heads rows"]:
    """Return the total weight of every token, a product with one-hot rows. Its gradient is
    `pick`."""
    return _spread(jnp.zeros(rows, weights.dtype), weights, tokens)


@jax.custom_vjp
def _spread(like: Float[Array, " rows"], weights: Array, tokens: Array) -> Array:
    n, queries, heads, length = weights.shape
    hot = jax.nn.one_hot(tokens, len(like), dtype=weights.dtype)
    sums = jnp.einsum(
        "nqi,nir->nqr", weights.reshape(n, queries * heads, length), hot, precision="highest"
    )
    return sums.reshape(n, queries, heads, -1)


pick.defvjp(lambda s, t: (pick(s, t), (t, s.shape[-1])), lambda saved, g: (spread(g, *saved), None))
_spread.defvjp(
    lambda like, w, t: (_spread(like, w, t), t), lambda tokens, g: (None, pick(g, tokens), None)
)
