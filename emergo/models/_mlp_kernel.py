"""A kernel for GPUs: the gradient of an MLP with a ReLU, where that of its output has few vectors (`_last_query.py`).

XLA multiplies, masks and sums one after another, and writes all hidden features each time. Here their gradient is computed,
masked, summed and multiplied by the first map while it is on the chip, for a tile of positions at a time, and written once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._last_query import Down, Hidden, MlpGradient, OverFeatures, OverPositions, Up
from ._pallas import dot, interpreted, pallas, triton, usable
from ._products import rows

_HOPPER = 9.0  # the compute capability whose shared memory the kernel fills
_COLUMNS = 64  # hidden features at a time
_ONES = 16  # rows of a product that only sums: the fewest that tensor cores multiply


def applies(dtype: jnp.dtype, length: int, width: int, hidden: int, heads: int) -> bool:
    """Whether the kernel can be used, in this precision, for these sizes and on the GPUs that are there."""
    return dtype == jnp.bfloat16 and fits(length, width, hidden, heads) and usable(_HOPPER, _HOPPER)


def fits(length: int, width: int, hidden: int, heads: int) -> bool:
    """Whether tiles, whose sizes are powers of two, hold these sizes, and registers a tile of the stream. The gradient has
    2 heads + 1 vectors, filled up to a multiple of 16: to 32 for 8 heads."""
    powers = all(n & (n - 1) == 0 for n in (width, hidden, heads))
    return powers and length % _tile(length) == 0 and hidden >= _COLUMNS and 16 <= width <= 256 and heads <= 8


def _tile(length: int) -> int:
    """How many positions at a time."""
    return 128 if length % 128 == 0 else 64


def _kernel(
    over_positions: Any,
    over_features: Any,
    behind: Any,
    hidden: Any,
    up: Any,
    by_x: Any,
    by_hidden: Any,
    sums: Any,
    *by_bias: Any,
) -> None:
    """One tile. The last three or four are written; `behind` holds the vectors over features, multiplied by the second map."""
    vectors, features = over_positions[...], up.shape[1]
    ones = jnp.ones((_ONES, vectors.shape[1]), vectors.dtype)

    def add_columns(i: Array, total: Array) -> Array:
        columns = pallas.ds(i * _COLUMNS, _COLUMNS)
        seen = hidden[:, columns]
        part = jnp.where(seen > 0, dot(vectors, behind[:, columns], (0, 0)), 0).astype(seen.dtype)
        by_hidden[:, columns] = part
        sums[:, columns] = dot(vectors, seen).astype(sums.dtype)
        for asked in by_bias:
            asked[columns] = jnp.sum(dot(ones, part), 0) / _ONES
        return total + dot(part, up[:, columns], (1, 1))

    direct = dot(vectors, over_features[...], (0, 0))  # through the skip connection
    by_x[...] = jax.lax.fori_loop(0, features // _COLUMNS, add_columns, direct).astype(by_x.dtype)


def mlp_back(
    over_positions: OverPositions, over_features: OverFeatures, hidden: Hidden, up: Up, down: Down, bias: bool = True
) -> MlpGradient:
    """What `_last_query.mlp_back` returns, by the kernel. The sums for the gradient of the bias take a seventh of its time."""
    (n, vectors, length), (width, features), dtype = over_positions.shape, up.shape, hidden.dtype
    positions = _tile(length)
    tiles = length // positions

    def sequence(columns: int) -> Any:
        return pallas.BlockSpec((None, vectors, columns), lambda i, j: (i, 0, 0))

    def tile(columns: int) -> Any:
        return pallas.BlockSpec((None, positions, columns), lambda i, j: (i, j, 0))

    behind = rows(over_features, down.T)
    by_x, by_hidden, sums, *by_bias = pallas.pallas_call(
        _kernel,
        grid=(n, tiles),
        in_specs=[
            pallas.BlockSpec((None, vectors, positions), lambda i, j: (i, 0, j)),
            *(sequence(width), sequence(features), tile(features)),
            pallas.BlockSpec(up.shape, lambda i, j: (0, 0)),
        ],
        out_specs=[
            *(tile(width), tile(features)),
            pallas.BlockSpec((None, None, vectors, features), lambda i, j: (i, j, 0, 0)),
            *[pallas.BlockSpec((None, None, features), lambda i, j: (i, j, 0))] * bias,
        ],
        out_shape=[
            jax.ShapeDtypeStruct((n, length, width), dtype),
            jax.ShapeDtypeStruct((n, length, features), dtype),
            jax.ShapeDtypeStruct((n, tiles, vectors, features), dtype),
            *[jax.ShapeDtypeStruct((n, tiles, features), jnp.float32)] * bias,
        ],
        compiler_params=triton.CompilerParams(num_warps=positions // 16, num_stages=3),
        interpret=interpreted(),
    )(over_positions, over_features, behind, hidden, up)
    return by_x, by_hidden, sums.sum(1), by_bias[0].sum((0, 1)).astype(dtype) if by_bias else None
