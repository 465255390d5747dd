"""GPU kernels for the residual stream around the first attention.

Below the first layer the stream is x E + c: a token x of few features and a position's vector c
(`_stream.py`). It is never formed. Queries, keys and values are x (E W) + c W, and the stream after
the attention is m O + x E + c, with the mixed values m and the output map O.

With XLA every product is followed by a pass over all positions that adds a table such as c W, and
that pass takes longer than the product. Here the table is added on the chip: a program owns a tile
of positions and columns, keeps its part of the maps and of the table on the chip, and loops over
sequences (`summed`). The gradients of E W and c W need x^T g and the sum of g over sequences; one
kernel reads g once for both (`summed_back`).

A program that loops over many sequences loads its maps rarely, but few programs leave processors
idle. So the number of sequences per program shrinks when few runs are trained together (`_pieces`).
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._layers import Linear
from .._products import over_rows, rows, wide
from ._pallas import dot, interpreted, pallas, triton, usable
from ._stream import Embedded, padded

_HOPPER = 9.0  # the compute capability of the GPUs on which the kernels were measured
MULTIPLE = 16  # tokens are padded to a multiple of this, the least that tensor cores multiply
_CHIP = 232_448  # bytes of shared memory that a program can use
_RUNS = 10  # 5 runs trained together took longer with the kernels, 20 less (docs/speed.md)
_SEQUENCES = 32  # largest number of sequences per program
_PROGRAMS = 512  # smallest number of programs, if sequences suffice: four per processor of an H200

Rows = Float[Array, "n length _"]
Maps = Float[Array, "_ width"]
Table = Float[Array, "length width"]
Positions = Float[Array, "n length width"]


class Tiling(NamedTuple):
    """Sizes of a kernel's tiles.

    Of 12 to 18 tilings per kernel timed on an H200, these were the fastest, or within 5% of it with
    less shared memory.
    """

    positions: int
    columns: int
    warps: int
    stages: int

    def bytes(self, inner: int) -> int:
        """Return the shared memory for maps, prefetched inputs and output, in bf16.

        `inner` is the number of columns of the inputs.
        """
        maps = inner * self.columns
        inputs = self.stages * inner * self.positions
        return 2 * (maps + inputs + self.positions * self.columns)


SMALL_MAPS = Tiling(64, 128, 4, 4)
BACK = Tiling(128, 64, 4, 3)
ALSO_MIXED = (Tiling(64, 128, 4, 3), Tiling(64, 64, 4, 3))  # the first that fits is used


def applies(dtype: jnp.dtype, length: int, width: int, features: int, runs: int) -> bool:
    """Return True if the kernels support these sizes and GPUs, and save time for so many runs."""
    supported = dtype == jnp.bfloat16 and fits(length, width, features)
    return supported and runs >= _RUNS and usable(_HOPPER, _HOPPER)


def fits(length: int, width: int, features: int) -> bool:
    """Return True if the sizes divide into tiles and a program fits into shared memory.

    Triton's tiles have sizes that are powers of two.
    """
    enough = ALSO_MIXED[-1].bytes(padded(features, MULTIPLE) + width) <= _CHIP
    return enough and length % 16 == 0 and width & (width - 1) == 0 and width >= 16


def _grid(
    tiling: Tiling, runs: int, n: int, length: int, width: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the grid, over tiles of columns, tiles of positions and pieces of the batch, and the
    positions, columns and sequences of one program."""
    positions = min(length & -length, tiling.positions)  # the largest power of two that divides
    columns = min(width, tiling.columns)
    tiles = (width // columns, length // positions)
    pieces = _pieces(n, runs * math.prod(tiles))
    return (*tiles, pieces), (positions, columns, n // pieces)


def _pieces(n: int, programs: int) -> int:
    """Return the number of equal pieces into which n sequences are divided.

    It is the smallest with enough programs and not too many sequences per program; `programs` is
    the number of programs per piece.
    """
    for pieces in range(1, n):
        if n % pieces == 0 and pieces * programs >= _PROGRAMS and n <= pieces * _SEQUENCES:
            return pieces
    return n


def _parts(columns: int) -> list[Any]:
    """Split columns into slices whose sizes are powers of two, as tiles must be."""
    ends = [columns >> i << i for i in reversed(range(columns.bit_length()))]
    pairs = zip([0, *ends], ends, strict=False)
    return [pallas.ds(begin, end - begin) for begin, end in pairs if end > begin]


def _sum_kernel(*refs: Any, tile: tuple[int, int, int]) -> None:
    """Compute one tile of several sequences.

    `refs` are the inputs, as many maps, a table, and the output.
    """
    *both, table, out = refs
    positions, columns, sequences = tile
    count = len(both) // 2
    here = pallas.ds(pallas.program_id(1) * positions, positions)
    there = pallas.ds(pallas.program_id(0) * columns, columns)
    first = pallas.program_id(2) * sequences
    parts = []
    for x, map in zip(both[:count], both[count:], strict=True):
        parts += [(x, part, map[part, there]) for part in _parts(x.shape[-1])]
    added = table[here, there]
    width = table.shape[1]

    def of_sequence(i: Array, _: None) -> None:
        total = added
        for x, part, map in parts:
            total = total + dot(x[first + i, here, part], map)
        out[first + i, here, there] = total.astype(out.dtype)
        if out.shape[-1] > width:  # every program writes the same column of ones, and zeros
            one = jax.lax.broadcasted_iota(jnp.int32, (positions, MULTIPLE), 1) == 0
            out[first + i, here, pallas.ds(width, MULTIPLE)] = one.astype(out.dtype)

    jax.lax.fori_loop(0, sequences, of_sequence, None)


def summed(
    tiling: Tiling,
    runs: int,
    inputs: tuple[Rows, ...],
    maps: tuple[Maps, ...],
    table: Table,
    ones: bool = False,
) -> Rows:
    """Return `sum(x @ map for x, map in zip(inputs, maps)) + table`.

    **Arguments:**

    - `tiling`: sizes of tiles.
    - `runs`: number of runs trained together.
    - `inputs`, `maps`, `table`: the summands; `table` has one row per position.
    - `ones`: append a column of ones, padded with zeros to `MULTIPLE` columns.
    """
    n, length, _ = inputs[0].shape
    width = table.shape[1]
    grid, tile = _grid(tiling, runs, n, length, width)
    return pallas.pallas_call(
        functools.partial(_sum_kernel, tile=tile),
        grid=grid,
        out_shape=jax.ShapeDtypeStruct((n, length, width + ones * MULTIPLE), inputs[0].dtype),
        compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpreted(),
    )(*inputs, *maps, table)


def _back_kernel(
    tokens: Any, g: Any, by_maps: Any, by_table: Any, *, tile: tuple[int, int, int]
) -> None:
    """Sum the gradient of one tile over several sequences."""
    positions, columns, sequences = tile
    piece = pallas.program_id(2)
    at = pallas.program_id(1)
    here = pallas.ds(at * positions, positions)
    there = pallas.ds(pallas.program_id(0) * columns, columns)
    parts = _parts(tokens.shape[-1])

    def add_sequence(i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        of_table, *of_maps = totals
        seen = g[piece * sequences + i, here, there]
        more = [dot(seen, tokens[piece * sequences + i, here, part], (0, 0)) for part in parts]
        return of_table + seen.astype(jnp.float32), *map(jnp.add, of_maps, more)

    shapes = [(positions, columns), *((columns, part.size) for part in parts)]
    zeros = tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)
    of_table, *of_maps = jax.lax.fori_loop(0, sequences, add_sequence, zeros)
    by_table[piece, here, there] = of_table.astype(by_table.dtype)
    for part, total in zip(parts, of_maps, strict=True):
        by_maps[piece, at, there, part] = total


def summed_back(runs: int, tokens: Rows, g: Positions) -> tuple[Maps, Table]:
    """Return the gradients of a map of tokens, x^T g, and of the table: g summed over sequences."""
    n, length, features = tokens.shape
    width = g.shape[2]
    grid, tile = _grid(BACK, runs, n, length, width)
    pieces = grid[2]
    by_maps, by_table = pallas.pallas_call(
        functools.partial(_back_kernel, tile=tile),
        grid=grid,
        out_shape=[
            jax.ShapeDtypeStruct((pieces, length // tile[0], width, features), jnp.float32),
            jax.ShapeDtypeStruct((pieces, length, width), g.dtype if pieces == 1 else jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=BACK.warps, num_stages=BACK.stages),
        interpret=interpreted(),
    )(tokens, g)
    return by_maps.sum((0, 1)).T.astype(g.dtype), by_table.sum(0).astype(g.dtype)


def _through(runs: int, embedded: Embedded, maps: tuple[Linear, ...]) -> tuple[Positions, ...]:
    """Map the stream below the first layer; `runs` is the number of runs trained together."""

    def mapped(linear: Linear) -> Positions:
        composed = embedded.embed @ linear.weight + embedded.one[:, None] * linear.bias
        table = wide("tw,wo->to", embedded.positions, linear.weight)
        return summed(SMALL_MAPS, runs, (embedded.tokens,), (composed,), table)

    return tuple(mapped(linear) for linear in maps)


def _through_back(
    runs: int, saved: tuple[Embedded, tuple[Linear, ...]], g: tuple[Positions, ...]
) -> tuple[Embedded, tuple[Linear, ...]]:
    embedded, maps = saved
    both = [summed_back(runs, embedded.tokens, one) for one in g]
    # W enters E W and c W. So its gradient is one product of E and c, stacked, with both gradients.
    stacked = jnp.concatenate([embedded.embed, embedded.positions]).T
    by_maps = [Linear(stacked @ jnp.concatenate(pair), embedded.one @ pair[0]) for pair in both]
    weights = jnp.concatenate([map.weight for map in maps], 1)
    biases = jnp.concatenate([map.bias for map in maps])
    by_composed, by_tables = (jnp.concatenate(parts, 1) for parts in zip(*both, strict=True))
    # XLA drops what nothing reads, such as the gradient of the tokens.
    by_tokens = rows(jnp.concatenate(g, -1), (embedded.embed @ weights).T)
    by_embedded = Embedded(
        by_tokens, by_composed @ weights.T, by_tables @ weights.T, by_composed @ biases
    )
    return by_embedded, tuple(by_maps)


through = jax.custom_vjp(_through, nondiff_argnums=(0,))
through.defvjp(lambda runs, *parts: (through(runs, *parts), parts), _through_back)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Together:
    """The number of runs trained together, as a static part of a pytree."""

    runs: int


class AfterAttention(NamedTuple):
    """The stream after the first attention, as summands."""

    together: Together
    embedded: Embedded
    out: Linear
    mixed: Positions

    def formed(self, ones: bool = False) -> Rows:
        """Form the stream; with `ones` a column of ones follows, so that a map can store its bias
        as a row."""
        together, embedded, out, mixed = self
        table = embedded.positions.astype(jnp.float32) + out.bias.astype(jnp.float32)
        inner = mixed.shape[-1] + embedded.tokens.shape[-1]
        tiling = next(tiling for tiling in ALSO_MIXED if tiling.bytes(inner) <= _CHIP)
        inputs = (mixed, embedded.tokens)
        maps = (out.weight, embedded.embed)
        return summed(tiling, together.runs, inputs, maps, table, ones)

    def back(self, g: Positions) -> "AfterAttention":
        """Map the gradient of the stream to gradients of the summands."""
        together, (tokens, embed, _, one), out, mixed = self
        by_embed = over_rows(tokens, g)
        # XLA drops what nothing reads: the gradients of tokens, positions and the constant.
        by_embedded = Embedded(rows(g, embed.T), by_embed, g.sum(0), jnp.zeros_like(one))
        by_out = Linear(over_rows(mixed, g), one @ by_embed)
        return AfterAttention(together, by_embedded, by_out, rows(g, out.weight.T))


@jax.custom_vjp
def formed(stream: AfterAttention) -> Positions:
    """Form the stream after the first attention."""
    return stream.formed()


formed.defvjp(lambda stream: (formed(stream), stream), lambda stream, g: (stream.back(g),))
