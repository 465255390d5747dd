"""Kernels for GPUs: maps of the stream below the first layer, and what its attention adds to it (`_stream.py`).

That stream is x E + c, of tokens with few features, and is not formed: queries, keys and values are x (E W) + c W, and the
stream behind the attention is m O + x E + c. By XLA each product is followed by a pass over all positions that adds c, which
takes longer than the product. Here c is added on the chip: a program has a tile of positions and columns, keeps its maps and c,
and goes through sequences. The gradients of W need x^T g and the sum of g over sequences: one kernel reads g once for both.
How many sequences a program goes through depends on how many runs are trained together: with few, programs are shorter, so that
there are enough of them to fill the GPU.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._pallas import dot, interpreted, pallas, triton, usable
from ._products import Linear, over_rows, rows, wide
from ._stream import Embedded, padded

_HOPPER = 9.0  # the compute capability of the GPUs on which it was measured
MULTIPLE = 16  # of the columns of tokens: the fewest that tensor cores multiply
_CHIP = 232_448  # bytes of a processor's memory that a program can have
_RUNS = 10  # trained together at least: by the kernels 5 runs took longer than by XLA, 20 less (docs/speed.md)
_SEQUENCES = 32  # at most, for a program
_PROGRAMS = 512  # at least where sequences suffice, of all runs together: four for each processor of an H200

Rows = Float[Array, "n length _"]
Maps = Float[Array, "_ width"]
Table = Float[Array, "length width"]
Positions = Float[Array, "n length width"]


class Tiling(NamedTuple):
    """How a kernel is cut: of 12 to 18 ways that were timed on an H200, the fastest or within 5% of it with less memory."""

    positions: int
    columns: int
    warps: int
    stages: int

    def kept(self, inner: int) -> int:
        """Bytes of maps, of the tiles of so many columns that are loaded ahead, and of what is written."""
        return 2 * (inner * (self.columns + self.stages * self.positions) + self.positions * self.columns)


SMALL_MAPS, BACK = Tiling(64, 128, 4, 4), Tiling(128, 64, 4, 3)
ALSO_MIXED = Tiling(64, 128, 4, 3), Tiling(64, 64, 4, 3)  # the first that there is room for


def applies(dtype: jnp.dtype, length: int, width: int, features: int, runs: int) -> bool:
    """Whether the kernels can be used and gain anything, in this precision, for these sizes, for so many runs together, and on
    the GPUs that are there."""
    return dtype == jnp.bfloat16 and runs >= _RUNS and fits(length, width, features) and usable(_HOPPER, _HOPPER)


def fits(length: int, width: int, features: int) -> bool:
    """Whether tiles, whose sizes are powers of two, hold these sizes, and a processor's memory what a program keeps."""
    room = ALSO_MIXED[-1].kept(padded(features, MULTIPLE) + width) <= _CHIP
    return room and length % 16 == 0 and width & (width - 1) == 0 and width >= 16


def _power(n: int, most: int) -> int:
    """The largest power of two that divides n, at most `most`."""
    return min(n & -n, most)


def _pieces(n: int, programs: int) -> int:
    """Into how many equal pieces n sequences are cut, where there would be so many programs for each piece."""
    few = (pieces for pieces in range(1, n) if n % pieces == 0)
    return next((pieces for pieces in few if pieces * programs >= _PROGRAMS and n <= pieces * _SEQUENCES), n)


def _parts(columns: int) -> list[Any]:
    """Columns as slices whose sizes are powers of two, as tiles must be."""
    ends = [columns >> i << i for i in reversed(range(columns.bit_length()))]
    return [pallas.ds(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def _sum_kernel(*refs: Any, tile: tuple[int, int, int]) -> None:
    """A tile of positions and columns, of some sequences. `refs`: inputs, as many maps, a table, and what is written."""
    (*both, table, out), (positions, columns, sequences) = refs, tile
    count = len(both) // 2
    here = pallas.ds(pallas.program_id(1) * positions, positions)
    there, first = pallas.ds(pallas.program_id(0) * columns, columns), pallas.program_id(2) * sequences
    pairs = zip(both[:count], both[count:], strict=True)
    parts = [(x, part, map[part, there]) for x, map in pairs for part in _parts(x.shape[-1])]
    added, width = table[here, there], table.shape[1]

    def of_sequence(i: Array, _: None) -> None:
        total = added
        for x, part, map in parts:
            total = total + dot(x[first + i, here, part], map)
        out[first + i, here, there] = total.astype(out.dtype)
        if out.shape[-1] > width:  # a constant 1, and zeros: the same by every program
            one = jax.lax.broadcasted_iota(jnp.int32, (positions, MULTIPLE), 1) == 0
            out[first + i, here, pallas.ds(width, MULTIPLE)] = one.astype(out.dtype)

    jax.lax.fori_loop(0, sequences, of_sequence, None)


def summed(
    tiling: Tiling, runs: int, inputs: tuple[Rows, ...], maps: tuple[Maps, ...], table: Table, ones: bool = False
) -> Rows:
    """The sum of `inputs` through `maps`, and of a table by position. `ones`: with a column of ones, and zeros, behind it."""
    (n, length, _), width = inputs[0].shape, table.shape[1]
    positions, columns = _power(length, tiling.positions), min(width, tiling.columns)
    tiles = width // columns, length // positions
    pieces = _pieces(n, runs * math.prod(tiles))
    return pallas.pallas_call(
        functools.partial(_sum_kernel, tile=(positions, columns, n // pieces)),
        grid=(*tiles, pieces),
        out_shape=jax.ShapeDtypeStruct((n, length, width + ones * MULTIPLE), inputs[0].dtype),
        compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpreted(),
    )(*inputs, *maps, table)


def _back_kernel(tokens: Any, g: Any, by_maps: Any, by_table: Any, *, tile: tuple[int, int, int]) -> None:
    """A tile of positions and columns, of some sequences."""
    positions, columns, sequences = tile
    piece, at = pallas.program_id(2), pallas.program_id(1)
    here, there = pallas.ds(at * positions, positions), pallas.ds(pallas.program_id(0) * columns, columns)
    parts = _parts(tokens.shape[-1])

    def add_sequence(i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        of_table, *of_maps = totals
        seen = g[piece * sequences + i, here, there]
        more = [dot(seen, tokens[piece * sequences + i, here, part], (0, 0)) for part in parts]
        return of_table + seen.astype(jnp.float32), *map(jnp.add, of_maps, more)

    zeros = [jnp.zeros(shape, jnp.float32) for shape in ((positions, columns), *((columns, part.size) for part in parts))]
    of_table, *of_maps = jax.lax.fori_loop(0, sequences, add_sequence, tuple(zeros))
    by_table[piece, here, there] = of_table.astype(by_table.dtype)
    for part, total in zip(parts, of_maps, strict=True):
        by_maps[piece, at, there, part] = total


def summed_back(runs: int, tokens: Rows, g: Positions) -> tuple[Maps, Table]:
    """The gradients of a map of tokens and of the table that is added: x^T g, and the sum of g over sequences."""
    (n, length, features), width = tokens.shape, g.shape[2]
    positions, columns = _power(length, BACK.positions), min(width, BACK.columns)
    tiles = width // columns, length // positions
    pieces = _pieces(n, runs * math.prod(tiles))
    by_maps, by_table = pallas.pallas_call(
        functools.partial(_back_kernel, tile=(positions, columns, n // pieces)),
        grid=(*tiles, pieces),
        out_shape=[
            jax.ShapeDtypeStruct((pieces, length // positions, width, features), jnp.float32),
            jax.ShapeDtypeStruct((pieces, length, width), g.dtype if pieces == 1 else jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=BACK.warps, num_stages=BACK.stages),
        interpret=interpreted(),
    )(tokens, g)
    return by_maps.sum((0, 1)).T.astype(g.dtype), by_table.sum(0).astype(g.dtype)


def _through(runs: int, embedded: Embedded, maps: tuple[Linear, ...]) -> tuple[Positions, ...]:
    """The stream through several maps. `runs`: how many are trained together."""

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
    # The gradient of a weight is one product: of E and c, one below the other, with these two.
    below = jnp.concatenate([embedded.embed, embedded.positions]).T
    by_maps = tuple(Linear(below @ jnp.concatenate(pair), embedded.one @ pair[0]) for pair in both)
    weights, biases = jnp.concatenate([map.weight for map in maps], 1), jnp.concatenate([map.bias for map in maps])
    by_composed, by_tables = (jnp.concatenate(parts, 1) for parts in zip(*both, strict=True))
    by_tokens = rows(jnp.concatenate(g, -1), (embedded.embed @ weights).T)
    by_embedded = by_tokens, by_composed @ weights.T, by_tables @ weights.T, by_composed @ biases
    return Embedded(*by_embedded), by_maps  # of the first, what nothing asks for is dropped


through = jax.custom_vjp(_through, nondiff_argnums=(0,))
through.defvjp(lambda runs, *parts: (through(runs, *parts), parts), _through_back)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Together:
    """How many runs are trained together; not an array, wherever it is."""

    runs: int


class BehindAttention(NamedTuple):
    """The stream with what the output map of the first attention adds to it, not formed yet."""

    together: Together
    embedded: Embedded
    out: Linear
    mixed: Positions

    def formed(self, ones: bool = False) -> Rows:
        """All positions. `ones`: with a column of ones, so that a map that reads it can have its bias as a row."""
        together, embedded, out, mixed = self
        table = embedded.positions.astype(jnp.float32) + out.bias.astype(jnp.float32)
        inner = mixed.shape[-1] + embedded.tokens.shape[-1]
        tiling = next(tiling for tiling in ALSO_MIXED if tiling.kept(inner) <= _CHIP)
        return summed(tiling, together.runs, (mixed, embedded.tokens), (out.weight, embedded.embed), table, ones)

    def back(self, g: Positions) -> "BehindAttention":
        """The gradient of its parts."""
        together, (tokens, embed, _, one), out, mixed = self
        by_embed = over_rows(tokens, g)
        # Dropped where nothing asks for them: those of tokens, of positions and of the constant.
        by_embedded = Embedded(rows(g, embed.T), by_embed, g.sum(0), jnp.zeros_like(one))
        return BehindAttention(together, by_embedded, Linear(over_rows(mixed, g), one @ by_embed), rows(g, out.weight.T))


@jax.custom_vjp
def formed(stream: BehindAttention) -> Positions:
    """The stream behind the first attention, of all positions."""
    return stream.formed()


formed.defvjp(lambda stream: (formed(stream), stream), lambda stream, g: (stream.back(g),))
