"""A GPU kernel for the gradient of a ReLU MLP whose output gradient has low rank.

It computes what `_last_query.mlp_back` computes. The gradient of the MLP's output is a sum of few
outer products, `over_positions[k] ⊗ over_features[k]`. XLA computes the gradient of the hidden
features, applies the ReLU mask, sums and multiplies by the first map in separate operations, each
of which reads or writes an array of all hidden features in memory.

The kernel has one program per sequence and tile of positions. It loops over blocks of 64 hidden
features. For each block it forms the gradient of the hidden features in registers, masks it, adds
it to the sums, multiplies it by the first map, and writes it once. So every hidden feature is read
once and its gradient is written once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._products import rows
from ._last_query import Down, Hidden, MlpGradient, OverFeatures, OverPositions, Up
from ._pallas import dot, interpreted, pallas, triton, usable

_HOPPER = 9.0  # the kernel fills the shared memory of GPUs with this compute capability
_COLUMNS = 64  # hidden features per block
_ONES = 16  # rows of the matrix of ones that sums over positions: the least for tensor cores


def applies(dtype: jnp.dtype, length: int, width: int, hidden: int, heads: int) -> bool:
    """Return True if the kernel supports this precision, these sizes and the present GPUs."""
    return dtype == jnp.bfloat16 and fits(length, width, hidden, heads) and usable(_HOPPER, _HOPPER)


def fits(length: int, width: int, hidden: int, heads: int) -> bool:
    """Return True if the sizes divide into tiles and a tile of the stream fits into registers.

    Triton's tiles have sizes that are powers of two. The output gradient has 2 heads + 1 vectors,
    padded to a multiple of 16: 32 for 8 heads.
    """
    powers_of_two = all(size & (size - 1) == 0 for size in (width, hidden, heads))
    whole_tiles = length % _tile(length) == 0 and hidden >= _COLUMNS
    return powers_of_two and whole_tiles and 16 <= width <= 256 and heads <= 8


def _tile(length: int) -> int:
    """Return the number of positions per program."""
    return 128 if length % 128 == 0 else 64


def _kernel(
    over_positions: Any,
    over_features: Any,
    mapped: Any,
    hidden: Any,
    up: Any,
    by_x: Any,
    by_hidden: Any,
    sums: Any,
    *by_bias: Any,
) -> None:
    """Process one tile of positions of one sequence.

    Inputs: `over_positions` (vectors, positions), `over_features` (vectors, width), `mapped`, which
    is `over_features @ down.T` (vectors, hidden), `hidden` (positions, hidden), `up`. All others
    are outputs; `by_bias` is absent if the gradient of the bias is not wanted.
    """
    vectors = over_positions[...]
    features = up.shape[1]
    ones = jnp.ones((_ONES, vectors.shape[1]), vectors.dtype)

    def add_block(i: Array, total: Array) -> Array:
        columns = pallas.ds(i * _COLUMNS, _COLUMNS)
        active = hidden[:, columns]
        gradient = dot(vectors, mapped[:, columns], (0, 0))
        gradient = jnp.where(active > 0, gradient, 0).astype(active.dtype)
        by_hidden[:, columns] = gradient
        sums[:, columns] = dot(vectors, active).astype(sums.dtype)
        for ref in by_bias:  # a sum over positions, as a product with ones on tensor cores
            ref[columns] = jnp.sum(dot(ones, gradient), 0) / _ONES
        return total + dot(gradient, up[:, columns], (1, 1))

    through_skip = dot(vectors, over_features[...], (0, 0))
    total = jax.lax.fori_loop(0, features // _COLUMNS, add_block, through_skip)
    by_x[...] = total.astype(by_x.dtype)


def mlp_back(
    over_positions: OverPositions,
    over_features: OverFeatures,
    hidden: Hidden,
    up: Up,
    down: Down,
    bias: bool = True,
) -> MlpGradient:
    """Compute `_last_query.mlp_back` with the kernel.

    Without `bias` it takes a seventh less time.
    """
    n, vectors, length = over_positions.shape
    width, features = up.shape
    dtype = hidden.dtype
    positions = _tile(length)
    tiles = length // positions

    def whole_sequence(columns: int) -> Any:
        return pallas.BlockSpec((None, vectors, columns), lambda i, j: (i, 0, 0))

    def one_tile(columns: int) -> Any:
        return pallas.BlockSpec((None, positions, columns), lambda i, j: (i, j, 0))

    by_x, by_hidden, sums, *by_bias = pallas.pallas_call(
        _kernel,
        grid=(n, tiles),
        in_specs=[
            pallas.BlockSpec((None, vectors, positions), lambda i, j: (i, 0, j)),
            whole_sequence(width),
            whole_sequence(features),
            one_tile(features),
            pallas.BlockSpec(up.shape, lambda i, j: (0, 0)),
        ],
        out_specs=[
            one_tile(width),
            one_tile(features),
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
    )(over_positions, over_features, rows(over_features, down.T), hidden, up)
    by_up_bias = by_bias[0].sum((0, 1)).astype(dtype) if by_bias else None
    return by_x, by_hidden, sums.sum(1), by_up_bias
