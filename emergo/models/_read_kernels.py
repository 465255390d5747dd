"""Kernels for GPUs: what one query takes from a stream by a softmax, and the gradient of that (`_last_query.py`).

By XLA's operations the stream is read for scores and again for the sum with their weights, and twice more for the gradient.
Here a program has a sequence and reads it once each time, a tile of positions after another: scores, and sums with weights that
are scaled anew whenever a larger score is found (Dao et al. 2022). The stream may be a sum of two arrays, which is not formed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._last_query import Parts, Taken, Weights
from ._pallas import dot, interpreted, pallas, triton, usable

_HOPPER = 9.0  # the compute capability of the GPUs on which it was measured
_HEADS = 16  # rows of a product: the fewest that tensor cores multiply
_WIDEST = 256  # features: sums of all heads stay in registers


class Tiling(NamedTuple):
    """How a kernel is cut. Of 27 ways that were timed for 64 runs on an H200 (T = 256) it was within 4% of the fastest, and the
    fastest of 8 for 5 runs of T = 512; the timings are not kept."""

    positions: int
    warps: int
    stages: int


TILING = Tiling(32, 4, 3)


def applies(dtype: jnp.dtype, width: int, heads: int) -> bool:
    """Whether the kernels can be used, in this precision, for these sizes and on the GPUs that are there."""
    return dtype == jnp.bfloat16 and fits(width, heads) and usable(_HOPPER, _HOPPER) and not jax.config.values["jax_enable_x64"]


def fits(width: int, heads: int) -> bool:
    """Whether tiles, whose sizes are powers of two, hold these sizes."""
    return width & (width - 1) == 0 and 16 <= width <= _WIDEST and heads <= _HEADS


class _Sequence(NamedTuple):
    """The arrays of one sequence, by tiles of positions."""

    index: Any
    length: int
    width: int
    heads: int
    positions: int

    def rows(self) -> Array:
        return jax.lax.broadcasted_iota(jnp.int32, (_HEADS, 1), 0)

    def columns(self, tile: Any) -> Array:
        return tile * self.positions + jax.lax.broadcasted_iota(jnp.int32, (1, self.positions), 1)

    def inside(self, tile: Any) -> Array:
        """Which of a tile's scores there are."""
        return (self.rows() < self.heads) & (self.columns(tile) < self.length)

    def of_heads(self, ref: Any) -> Array:
        """One row per head."""
        everything = pallas.ds(0, self.width)
        there = jnp.broadcast_to(self.rows() < self.heads, (_HEADS, self.width))
        return triton.load(ref.at[self.index, pallas.ds(0, _HEADS), everything], mask=there, other=0)

    def write_heads(self, ref: Any, value: Array) -> None:
        there = jnp.broadcast_to(self.rows() < self.heads, (_HEADS, self.width))
        triton.store(ref.at[self.index, pallas.ds(0, _HEADS), pallas.ds(0, self.width)], value.astype(ref.dtype), mask=there)

    def of_positions(self, ref: Any, tile: Any) -> Array:
        """One number per head and position of a tile."""
        here = pallas.ds(tile * self.positions, self.positions)
        return triton.load(ref.at[self.index, pallas.ds(0, _HEADS), here], mask=self.inside(tile), other=0)

    def write_positions(self, ref: Any, tile: Any, value: Array) -> None:
        here = pallas.ds(tile * self.positions, self.positions)
        triton.store(ref.at[self.index, pallas.ds(0, _HEADS), here], value.astype(ref.dtype), mask=self.inside(tile))

    def stream(self, parts: tuple[Any, ...], tile: Any) -> Array:
        """A tile of the stream, the sum of its parts, in 16 bits."""
        here, everything = pallas.ds(tile * self.positions, self.positions), pallas.ds(0, self.width)
        if self.length % self.positions:
            there = tile * self.positions + jax.lax.broadcasted_iota(jnp.int32, (self.positions, self.width), 0) < self.length
            read = [triton.load(part.at[self.index, here, everything], mask=there, other=0) for part in parts]
        else:
            read = [part[self.index, here, everything] for part in parts]
        return functools.reduce(lambda a, b: (a.astype(jnp.float32) + b.astype(jnp.float32)).astype(a.dtype), read)


def _forward_kernel(probe: Any, *refs: Any, sizes: tuple[int, int, int, int]) -> None:
    """One sequence. `refs`: parts of the stream, and what is written: scores, the logarithm of the sum of their exponentials,
    and what is taken."""
    *parts, scores, norm, taken = refs
    sequence = _Sequence(pallas.program_id(0), *sizes)
    asked = sequence.of_heads(probe)

    def add_tile(i: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        top, total, rounded, sums = before
        x = sequence.stream(tuple(parts), i)
        found = dot(asked, x, (1, 1))
        sequence.write_positions(scores, i, found)
        found = jnp.where(sequence.columns(i) < sequence.length, found, -jnp.inf)
        higher = jnp.maximum(top, jnp.max(found, 1))
        weights, scale = jnp.exp(found - higher[:, None]), jnp.exp(top - higher)
        low = weights.astype(x.dtype)
        sums = sums * scale[:, None] + dot(low, x)
        rounded = rounded * scale + jnp.sum(low.astype(jnp.float32), 1)
        return higher, total * scale + jnp.sum(weights, 1), rounded, sums

    begun = jnp.full(_HEADS, -jnp.inf), jnp.zeros(_HEADS), jnp.zeros(_HEADS), jnp.zeros((_HEADS, sequence.width))
    tiles = pallas.cdiv(sequence.length, sequence.positions)
    top, total, rounded, sums = jax.lax.fori_loop(0, tiles, add_tile, begun)
    there = jnp.arange(_HEADS) < sequence.heads
    triton.store(norm.at[sequence.index, pallas.ds(0, _HEADS)], top + jnp.log(total), mask=there)
    # By the weights as they were multiplied: they sum to 1, so that what all positions share is not scaled.
    sequence.write_heads(taken, sums / rounded[:, None])


def _back_kernel(by_taken: Any, weights: Any, by_weights: Any, mean: Any, *refs: Any, sizes: tuple[int, int, int, int]) -> None:
    """One sequence. `refs`: parts of the stream, and what is written: the gradients of scores and of the probe."""
    *parts, by_scores, by_probe = refs
    sequence = _Sequence(pallas.program_id(0), *sizes)
    g = sequence.of_heads(by_taken)
    there = jnp.arange(_HEADS) < sequence.heads
    middle = triton.load(mean.at[sequence.index, pallas.ds(0, _HEADS)], mask=there, other=0)

    def add_tile(i: Array, total: Array) -> Array:
        x = sequence.stream(tuple(parts), i)
        by_weight = dot(g, x, (1, 1)) + sequence.of_positions(by_weights, i)
        by_score = (sequence.of_positions(weights, i) * (by_weight - middle[:, None])).astype(x.dtype)
        sequence.write_positions(by_scores, i, by_score)
        return total + dot(by_score, x)

    tiles = pallas.cdiv(sequence.length, sequence.positions)
    sequence.write_heads(by_probe, jax.lax.fori_loop(0, tiles, add_tile, jnp.zeros((_HEADS, sequence.width))))


def read(probe: Taken, parts: Parts, tiling: Tiling = TILING) -> tuple[Weights, Taken]:
    """The softmax, over positions, of inner products of the stream with `probe`, and sums of the stream with these weights;
    both in fp32. The stream is the sum of `parts`, of which the first columns count."""
    (n, heads, width), length = probe.shape, parts[0].shape[1]
    shapes = (n, heads, length), (n, heads), (n, heads, width)
    scores, norm, taken = _call(_forward_kernel, tiling, (length, width, heads), (probe, *parts), [jnp.float32] * 3, shapes)
    return jnp.exp(scores - norm[..., None]), taken


def read_back(
    weights: Weights, taken: Taken, by_weights: Weights, by_taken: Taken, parts: Parts, tiling: Tiling = TILING
) -> tuple[Weights, Taken]:
    """The gradients of scores and of `probe`, from those of weights and of what is taken."""
    (heads, width), length = taken.shape[1:], weights.shape[2]
    mean = jnp.sum(weights * by_weights, -1) + jnp.sum(taken * by_taken.astype(jnp.float32), -1)
    given, dtype = (by_taken, weights, by_weights, mean, *parts), by_taken.dtype
    return tuple(_call(_back_kernel, tiling, (length, width, heads), given, [dtype] * 2, (weights.shape, taken.shape)))


def _call(kernel: Any, tiling: Tiling, sizes: tuple[int, int, int], given: Any, dtypes: Any, shapes: Any) -> Any:
    """A program for each sequence."""
    return pallas.pallas_call(
        functools.partial(kernel, sizes=(*sizes, tiling.positions)),
        grid=(len(given[0]),),
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)],
        compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpreted(),
    )(*given)
