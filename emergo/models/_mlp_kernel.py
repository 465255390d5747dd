"""A kernel for GPUs: the gradient of an MLP with a ReLU, where that of its output has few vectors (`_last_query.py`).

XLA multiplies, masks and sums one after another, and writes all hidden features each time. Here their gradient is made, masked,
summed and sent on while it is on the chip, for a tile of positions at a time, and written once.
"""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_COLUMNS = 64  # hidden features at a time
_ONES = 16  # rows of a product that only sums: the fewest that tensor cores multiply


def _dot(a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
    """The product of two matrices over these axes, in fp32."""
    return jax.lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


def _tile(length: int) -> int:
    """How many positions at a time."""
    return 128 if length % 128 == 0 else 64


def applies(dtype: jnp.dtype, length: int, width: int, hidden: int, heads: int) -> bool:
    """Whether the kernel can be used here: in bf16, on a Hopper GPU, whose shared memory it fills, with the Triton backend of
    Pallas, which JAX has called deprecated since 0.11."""
    hopper = all(str(getattr(device, "compute_capability", "")) == "9.0" for device in jax.devices())
    written = importlib.util.find_spec("jax.experimental.pallas.triton") is not None
    return dtype == jnp.bfloat16 and hopper and written and fits(length, width, hidden, heads)


def fits(length: int, width: int, hidden: int, heads: int) -> bool:
    """Whether tiles, whose sizes are powers of two, hold these sizes, and registers a tile of the stream."""
    powers = all(n & (n - 1) == 0 for n in (width, hidden, heads))
    return powers and length % _tile(length) == 0 and hidden >= _COLUMNS and 16 <= width <= 256 and heads <= 8


def _kernel(
    over_positions: Any,
    over_features: Any,
    behind: Any,
    hidden: Any,
    up: Any,
    by_x: Any,
    by_hidden: Any,
    sums: Any,
    by_bias: Any,
) -> None:
    """One tile. The last four are written; `behind` holds the vectors over features behind the second map."""
    from jax.experimental import pallas

    vectors, features = over_positions[...], up.shape[1]
    ones = jnp.ones((_ONES, vectors.shape[1]), vectors.dtype)

    def with_columns(i: Array, total: Array) -> Array:
        columns = pallas.ds(i * _COLUMNS, _COLUMNS)
        seen = hidden[:, columns]
        part = jnp.where(seen > 0, _dot(vectors, behind[:, columns], (0, 0)), 0).astype(seen.dtype)
        by_hidden[:, columns] = part
        sums[:, columns] = _dot(vectors, seen).astype(sums.dtype)
        by_bias[columns] = jnp.sum(_dot(ones, part), 0) / _ONES
        return total + _dot(part, up[:, columns], (1, 1))

    direct = _dot(vectors, over_features[...], (0, 0))
    by_x[...] = jax.lax.fori_loop(0, features // _COLUMNS, with_columns, direct).astype(by_x.dtype)


def mlp_back(
    over_positions: Float[Array, "n vectors length"],
    over_features: Float[Array, "n vectors width"],
    hidden: Float[Array, "n length hidden"],
    up: Float[Array, "width hidden"],
    down: Float[Array, "hidden width"],
    interpret: bool = False,
) -> tuple[
    Float[Array, "n length width"], Float[Array, "n length hidden"], Float[Array, "n vectors hidden"], Float[Array, " hidden"]
]:
    """What `_last_query.mlp_back` returns, by the kernel; `interpret`: on a CPU, for tests."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    (n, vectors, length), (width, features), dtype = over_positions.shape, up.shape, hidden.dtype
    rows = _tile(length)
    tiles = length // rows

    def sequence(columns: int) -> Any:
        return pallas.BlockSpec((None, vectors, columns), lambda i, j: (i, 0, 0))

    def tile(columns: int) -> Any:
        return pallas.BlockSpec((None, rows, columns), lambda i, j: (i, j, 0))

    behind = (over_features.reshape(-1, width) @ down.T).reshape(n, vectors, features)
    by_x, by_hidden, sums, by_bias = pallas.pallas_call(
        _kernel,
        grid=(n, tiles),
        in_specs=[
            pallas.BlockSpec((None, vectors, rows), lambda i, j: (i, 0, j)),
            *(sequence(width), sequence(features), tile(features)),
            pallas.BlockSpec(up.shape, lambda i, j: (0, 0)),
        ],
        out_specs=[
            *(tile(width), tile(features)),
            pallas.BlockSpec((None, None, vectors, features), lambda i, j: (i, j, 0, 0)),
            pallas.BlockSpec((None, None, features), lambda i, j: (i, j, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((n, length, width), dtype),
            jax.ShapeDtypeStruct((n, length, features), dtype),
            jax.ShapeDtypeStruct((n, tiles, vectors, features), dtype),
            jax.ShapeDtypeStruct((n, tiles, features), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=rows // 16, num_stages=3),
        interpret=interpret,
    )(over_positions, over_features, behind, hidden, up)
    return by_x, by_hidden, sums.sum(1), by_bias.sum((0, 1)).astype(dtype)
