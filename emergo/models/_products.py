"""Products with linear maps, over very many rows and with one-hot matrices, and layer normalisation.

Some gradients are written by hand. That of a small matrix is a sum over all rows of a batch: as one product it would keep but a
few of a GPU's processors busy; here it is a sum of products over parts of the rows. The gradients of look-ups are products with
one-hot matrices: sums into places would have another order in every run on a GPU.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_PARTS = 40

wide = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
"""Products of numbers of 16 bits, kept in 32."""


def rows(x: Float[Array, "*rows inputs"], weight: Float[Array, "inputs outputs"]) -> Float[Array, "*rows outputs"]:
    """A product over all rows as one axis: XLA's CPU products are half as fast over two."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], -1)


def over_rows(x: Float[Array, "*rows inputs"], g: Float[Array, "*rows outputs"]) -> Float[Array, "inputs outputs"]:
    """x^T g over all rows: the gradient of a map."""
    return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])


class Linear(NamedTuple):
    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        return rows(x, self.weight) + self.bias

    def on_gpu(self, x: Float[Array, "n length inputs"]) -> Float[Array, "n length outputs"]:
        """The same; the gradient of the bias is summed over positions first, then over sequences. One sum over all rows of few
        runs takes a GPU far longer, presumably since there are few columns to divide among its processors."""
        return _with_bias(rows(x, self.weight), self.bias)


@jax.custom_vjp
def _with_bias(y: Float[Array, "n length outputs"], bias: Float[Array, " outputs"]) -> Float[Array, "n length outputs"]:
    return y + bias


def _with_bias_back(_: None, g: Float[Array, "n length outputs"]) -> tuple[Array, Array]:
    by_sequence = jax.lax.optimization_barrier(jnp.sum(g, 1, dtype=jnp.promote_types(g.dtype, jnp.float32)))
    return g, jnp.sum(by_sequence, 0).astype(g.dtype)


_with_bias.defvjp(lambda y, bias: (y + bias, None), _with_bias_back)


class Scale(NamedTuple):
    """Layer normalisation with a learned gain and offset; its moments are computed in fp32 at least."""

    gain: Float[Array, " width"]
    offset: Float[Array, " width"]

    @classmethod
    def identity(cls, width: int) -> "Scale":
        return cls(jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32))

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - wide.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        return normal.astype(x.dtype) * self.gain + self.offset


def _in_parts(x: Float[Array, "tables n length inputs"], g: Float[Array, "tables n length outputs"]) -> Array:
    """x^T g of every table."""
    parts = math.gcd(x.shape[1], _PARTS)
    split = [a.reshape(len(a), parts, -1, a.shape[-1]) for a in (x, g)]
    return jnp.einsum("tpri,tpro->tpio", *split).sum(1)


@jax.custom_vjp
def product(x: Float[Array, "n length inputs"], weight: Float[Array, "inputs outputs"]) -> Float[Array, "n length outputs"]:
    """`rows`, with a gradient by hand."""
    return rows(x, weight)


def _product_back(saved, g):
    x, weight = saved
    return product(g, weight.T), _in_parts(x[None], g[None])[0]


product.defvjp(lambda x, weight: (product(x, weight), (x, weight)), _product_back)


@jax.custom_vjp
def look_up(
    tables: Float[Array, "tables rows columns"], tokens: Int[Array, "n length"]
) -> Float[Array, "tables n length columns"]:
    """The row of every token: a product with one-hot rows."""
    return tables[:, tokens]


def _look_up_back(saved, g):
    tokens, rows = saved
    hot = jax.nn.one_hot(tokens, rows, dtype=g.dtype)
    with jax.default_matmul_precision("highest"):
        return _in_parts(jnp.broadcast_to(hot, (len(g), *hot.shape)), g), None


look_up.defvjp(lambda tables, tokens: (look_up(tables, tokens), (tokens, tables.shape[1])), _look_up_back)


@jax.custom_vjp
def pick(
    scores: Float[Array, "n queries heads rows"], tokens: Int[Array, "n length"]
) -> Float[Array, "n queries heads length"]:
    """The entry of every token: a product with one-hot columns. Its gradient is `spread`."""
    return jnp.take_along_axis(scores, tokens[:, None, None], -1)


def spread(
    weights: Float[Array, "n queries heads length"], tokens: Int[Array, "n length"], rows: int
) -> Float[Array, "n queries heads rows"]:
    """The sum of the weights of every token: a product with one-hot rows. Its gradient is `pick`."""
    return _spread(jnp.zeros(rows, weights.dtype), weights, tokens)


@jax.custom_vjp
def _spread(like: Float[Array, " rows"], weights: Array, tokens: Array) -> Array:
    n, queries, heads, length = weights.shape
    hot = jax.nn.one_hot(tokens, len(like), dtype=weights.dtype)
    sums = jnp.einsum("nqi,nir->nqr", weights.reshape(n, queries * heads, length), hot, precision="highest")
    return sums.reshape(n, queries, heads, -1)


pick.defvjp(lambda s, t: (pick(s, t), (t, s.shape[-1])), lambda saved, g: (spread(g, *saved), None))
_spread.defvjp(lambda like, w, t: (_spread(like, w, t), t), lambda tokens, g: (None, pick(g, tokens), None))
