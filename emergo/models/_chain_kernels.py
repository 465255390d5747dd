"""The first layer of the minimal attention as kernels of a GPU: one forward, three for the gradient.

As products of XLA, scores, weights and values of every sequence go to memory and back many times. Here a program takes one
sequence after another and keeps most of it on the chip. Forward, scores and values are looked up in tables that stay in the
cache. Backward, one kernel has the gradient of scores, one that of values, one that of queries: a program with all sums had
more of them than registers. Sums into the places of tokens are products with one-hot matrices on the tensor cores, and a
program holds its sums over sequences in registers; those of all programs are added by XLA, in a fixed order.

Numbers are those of fp32. A number of fp32 is the sum of three of bf16, and a product of each with a one-hot matrix is exact.
Products of two matrices of fp32 are sums of six products of such parts; what is left out is about 2^-24 of them. Sums over
sequences are additions of fp32, since the tensor cores cut off where they add.

Every head is computed by the same instructions, so that equal heads stay equal bit for bit.
"""

import functools
import math
import warnings
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

try:
    from jax.experimental.pallas import triton
except ImportError:  # a JAX without this backend
    triton = None

_LARGEST = 64  # tokens, outputs and positions; all sums of a program then fit into its registers
_OLDEST = 8.0  # the compute capability that multiplies bf16


class Tuning(NamedTuple):
    """How the kernels are cut. Sequences per program change the order of sums, and so the last bits of gradients."""

    forward_rows: int = 1  # sequences of a program
    score_rows: int = 1
    value_rows: int = 30
    query_rows: int = 60
    forward_warps: int = 4
    score_warps: int = 1
    value_warps: int = 4
    query_warps: int = 4
    products: Literal["bf16x6", "tf32x3"] = "bf16x6"  # of two matrices of fp32
    interpret: bool = False  # on a CPU, for tests


TUNING = Tuning()


class Sizes(NamedTuple):
    """The sizes of a layer, and those of arrays in a kernel, which are powers of two."""

    n: int
    length: int
    last: int
    vocabulary: int
    outputs: int
    heads: int

    @property
    def size(self) -> int:
        return self.vocabulary + self.length

    @property
    def keys(self) -> int:
        return _padded(self.length)

    @property
    def queries(self) -> int:
        return _padded(self.last)

    @property
    def tokens(self) -> int:
        return _padded(self.vocabulary)

    @property
    def width(self) -> int:
        return _padded(self.outputs)


Sums = tuple[Array, ...]


def _padded(size: int) -> int:
    """The next power of two, 16 at least: what the tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


@functools.cache
def _capable() -> bool:
    device = next((device for device in jax.local_devices() if device.platform == "gpu"), None)
    try:
        return float(getattr(device, "compute_capability", 0)) >= _OLDEST
    except ValueError:  # of another maker: it has a name
        return False


def applies(query: Float[Array, "heads size size"], value: Float[Array, "heads size outputs"], tokens: Array) -> bool:
    """Whether the kernels can be used, on the GPU that is there."""
    length = tokens.shape[1]
    small = max(query.shape[-1] - length, value.shape[-1]) <= _LARGEST and length <= _LARGEST // 2
    return triton is not None and query.dtype == jnp.float32 and small and _capable()


def _cut(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The part of a number that bf16 holds. In whole numbers: a compiler may leave out a cast there and back."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type(bits & jnp.int32(-0x10000), jnp.float32)


def _parts(x: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
    """Three arrays of bf16 whose sum is x, the largest first."""
    high = _cut(x)
    rest = x - high
    middle = _cut(rest)
    return high.astype(jnp.bfloat16), middle.astype(jnp.bfloat16), (rest - middle).astype(jnp.bfloat16)


def _dot(a: Array, b: Array, over: tuple[int, int], precision: Any = jax.lax.Precision.DEFAULT) -> Array:
    """The product of two matrices over these axes, as fp32."""
    axes = ((over[:1], over[1:]), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)


def _sum(terms: list[Array]) -> Array:
    """The sum, in this order."""
    return functools.reduce(jnp.add, terms)


def _to_places(x: Array, hot: Array) -> Array:
    """x with its columns moved and added to places."""
    return _sum([_dot(part, hot, (1, 0)) for part in reversed(_parts(x))])


def _from_places(hot: Array, x: Array, over: tuple[int, int]) -> Array:
    """x with its rows, or columns, moved and added to places."""
    return _sum([_dot(hot, part, over) for part in reversed(_parts(x))])


def _product(a: Array, b: Array, over: tuple[int, int], how: Tuning) -> Array:
    """The product of two matrices of fp32, as exact as one of fp32."""
    if how.products == "tf32x3":
        return _dot(a, b, over, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3)
    left, right = _parts(a), _parts(b)
    pairs = [(0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)]  # the smallest first
    return _sum([_dot(left[i], right[j], over) for i, j in pairs])


def _load(ref: Any, index: Any, mask: Array, other: float = 0) -> Array:
    assert triton is not None
    return triton.load(ref.at[index], mask=mask, other=other)


def _store(ref: Any, index: Any, value: Array, mask: Array) -> None:
    assert triton is not None
    triton.store(ref.at[index], value, mask=mask)


def _down(count: int) -> Int[Array, "count 1"]:
    return jnp.arange(count, dtype=jnp.int32)[:, None]


def _along(count: int) -> Int[Array, "1 count"]:
    return jnp.arange(count, dtype=jnp.int32)[None]


def _tokens(ref: Any, sequence: Any, first: int, count: int) -> Int[Array, " count"]:
    """Tokens of a sequence; what is behind its end is no token."""
    return ref[sequence, first + jnp.arange(count)]


def _hot(ref: Any, tokens: Int[Array, " count"], sizes: Sizes) -> Array:
    """One-hot rows: looked up, which takes fewer instructions than comparisons."""
    return ref[tokens[:, None] * sizes.tokens + _along(sizes.tokens)]


def _values(ref: Any, head: Any, keys: Int[Array, " keys"], sizes: Sizes) -> Float[Array, "keys width"]:
    """What every position gives: the row of its token and that of the position."""
    start, column = head * (sizes.tokens + sizes.keys), _along(sizes.width)
    of_token, of_position = start + keys[:, None], start + sizes.tokens + _down(sizes.keys)
    return ref[of_token * sizes.width + column] + ref[of_position * sizes.width + column]


def _rows(sizes: Sizes, rows: int, program: Any) -> tuple[Any, Any]:
    """The first sequence of a program, and how many it has."""
    first = program * rows
    return first, rows if sizes.n % rows == 0 else jnp.minimum(rows, sizes.n - first)


def _tile(sequence: Any, head: Any, sizes: Sizes) -> tuple[Any, Array]:
    """Where queries and keys of a head are, and which queries there are."""
    there = (_down(sizes.queries) < sizes.last) & (_along(sizes.keys) < sizes.keys)
    return (sequence, head, pl.ds(0, sizes.queries), pl.ds(0, sizes.keys)), there


def _answers(sequence: Any, sizes: Sizes) -> tuple[Any, Array]:
    there = (_down(sizes.queries) < sizes.last) & (_along(sizes.width) < sizes.outputs)
    return (sequence, pl.ds(0, sizes.queries), pl.ds(0, sizes.width)), there


def _forward_kernel(context: Any, tokens: Any, query: Any, value: Any, out: Any, attention: Any, *, sizes: Sizes, how: Tuning):
    asking, key = _down(sizes.queries), _along(sizes.keys)
    behind = sizes.length - sizes.last + asking - key
    seen = (behind >= 0) & (behind < context[0]) & (asking < sizes.last) & (key < sizes.length)
    least = jnp.where(asking < sizes.last, -jnp.inf, 0.0)  # no row is without a number
    pitch = sizes.size
    at_query = (sizes.vocabulary + sizes.length - sizes.last + asking) * pitch
    at_key = sizes.vocabulary + key
    first, count = _rows(sizes, how.forward_rows, pl.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _tokens(tokens, sequence, 0, sizes.keys)
        asked = _tokens(tokens, sequence, sizes.length - sizes.last, sizes.queries)

        def of_head(head: Any, total: Array) -> Array:
            start = head * pitch * pitch
            by_token, by_position = start + asked[:, None] * pitch, start + at_query
            places = (by_token + keys[None], by_token + at_key, by_position + keys[None], by_position + at_key)
            scores = _sum([_load(query, place, seen) for place in places]) * (1 / math.sqrt(sizes.size))
            scores = jnp.where(seen, scores, least)
            weights = jnp.exp(scores - jnp.max(scores, 1, keepdims=True))
            weights = weights / jnp.sum(weights, 1, keepdims=True)
            place, there = _tile(sequence, head, sizes)
            _store(attention, place, weights, there)
            return total + _product(weights, _values(value, head, keys, sizes), (1, 0), how)

        total = jax.lax.fori_loop(0, sizes.heads, of_head, jnp.zeros((sizes.queries, sizes.width), jnp.float32))
        place, there = _answers(sequence, sizes)
        _store(out, place, total, there)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _score_kernel(
    tokens: Any, value: Any, attention: Any, by_out: Any, by_last: Any, by_scores: Any, *, sizes: Sizes, how: Tuning
):
    """The gradient of the scores in some sequences."""
    asking, scale = _down(sizes.queries), 1 / math.sqrt(sizes.size)
    first, count = _rows(sizes, how.score_rows, pl.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _tokens(tokens, sequence, 0, sizes.keys)
        g = _load(by_out, *_answers(sequence, sizes))

        def of_head(head: Any, _: None) -> None:
            place, there = _tile(sequence, head, sizes)
            weights = _load(attention, place, there)
            by_weights = _product(g, _values(value, head, keys, sizes), (1, 1), how)
            by_weights = by_weights + jnp.where(asking == sizes.last - 1, by_last[sequence, head][None], 0.0)
            mean = jnp.sum(weights * by_weights, 1, keepdims=True)
            _store(by_scores, place, weights * (by_weights - mean) * scale, there)

        jax.lax.fori_loop(0, sizes.heads, of_head, None)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _value_kernel(tokens: Any, hot: Any, attention: Any, by_out: Any, sums: Any, *, sizes: Sizes, how: Tuning):
    """The gradient of one head's values over some sequences: outputs by tokens and positions."""
    program = pl.program_id(0)
    head, (first, count) = program % sizes.heads, _rows(sizes, how.value_rows, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        by_token, by_position = sums
        sequence = first + i
        keys = _hot(hot, _tokens(tokens, sequence, 0, sizes.keys), sizes)
        weights, g = _load(attention, *_tile(sequence, head, sizes)), _load(by_out, *_answers(sequence, sizes))
        by_values = _product(g, weights, (0, 0), how)
        return by_token + _to_places(by_values, keys), by_position + by_values

    shapes = (sizes.width, sizes.tokens), (sizes.width, sizes.keys)
    done = jax.lax.fori_loop(0, count, of_sequence, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))
    row = _down(sizes.width) * (sizes.tokens + sizes.keys)
    sums[row + _along(sizes.tokens)], sums[row + sizes.tokens + _along(sizes.keys)] = done


def _query_kernel(tokens: Any, hot: Any, by_scores: Any, sums: Any, *, sizes: Sizes, how: Tuning):
    """The gradient of one head's queries over some sequences: tokens and positions of queries by those of keys."""
    program = pl.program_id(0)
    head, (first, count) = program % sizes.heads, _rows(sizes, how.query_rows, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        token_token, token_position, position_token, position_position = sums
        sequence = first + i
        keys = _hot(hot, _tokens(tokens, sequence, 0, sizes.keys), sizes)
        asked = _hot(hot, _tokens(tokens, sequence, sizes.length - sizes.last, sizes.queries), sizes)
        by_score = _load(by_scores, *_tile(sequence, head, sizes))
        by_query = _from_places(asked, by_score, (0, 0))
        return (
            token_token + _to_places(by_query, keys),
            token_position + by_query,
            position_token + _from_places(keys, by_score, (0, 1)),
            position_position + by_score,
        )

    shapes = (sizes.tokens,) * 2, (sizes.tokens, sizes.keys), (sizes.tokens, sizes.queries), (sizes.queries, sizes.keys)
    done = jax.lax.fori_loop(0, count, of_sequence, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))
    columns = sizes.tokens + sizes.keys
    row, below = _down(sizes.tokens) * columns, (sizes.tokens + _down(sizes.queries)) * columns
    token, right = _along(sizes.tokens), sizes.tokens + _along(sizes.keys)
    turned = (sizes.tokens + _along(sizes.queries)) * columns + _down(sizes.tokens)
    for place, array in zip((row + token, row + right, turned, below + right), done, strict=True):
        sums[place] = array


def _call(kernel: Any, programs: int, warps: int, sizes: Sizes, how: Tuning, *shapes: tuple[int, ...]) -> Any:
    """A kernel with outputs of these shapes. Of sums every program has a row of its own."""
    assert triton is not None
    # JAX 0.11 says so wherever it lowers such a kernel, which is later.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    row = functools.partial(pl.BlockSpec, index_map=lambda program: (program, 0))
    return pl.pallas_call(
        functools.partial(kernel, sizes=sizes, how=how),
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=(programs,),
        out_specs=[row((None, shape[1])) if len(shape) == 2 else pl.BlockSpec() for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=how.interpret,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def first_layer(
    how: Tuning,
    last: int,
    context: Int[Array, ""],
    tokens: Int[Array, "n length"],
    query: Float[Array, "heads size size"],
    value: Float[Array, "heads size outputs"],
) -> tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]:
    """What the heads of the first layer add together at the last positions, and the weights of the last one. `context`: how
    many positions a query sees."""
    return _forward(how, last, context, tokens, query, value)[0]


def _forward(how: Tuning, last: int, context: Array, tokens: Array, query: Array, value: Array) -> tuple[Any, Any]:
    (n, length), (heads, size, outputs) = tokens.shape, value.shape
    sizes = Sizes(n, length, last, size - length, outputs, heads)
    spare = max(sizes.keys, length - last + sizes.queries) - length
    tokens = jnp.pad(tokens, ((0, 0), (0, spare)), constant_values=sizes.tokens)
    by_query = jnp.swapaxes(query, 1, 2).reshape(-1)  # keys side by side: those of one query are in few lines of the cache
    wide = ((0, 0), (0, 0), (0, sizes.width - outputs))
    of_tokens = jnp.pad(value[:, : sizes.vocabulary], ((0, 0), (0, sizes.tokens - sizes.vocabulary), wide[2]))
    of_positions = jnp.pad(value[:, sizes.vocabulary :], ((0, 0), (0, sizes.keys - length), wide[2]))
    values = jnp.concatenate([of_tokens, of_positions], 1).reshape(-1)
    shapes = (n, last, outputs), (n, heads, last, sizes.keys)
    call = _call(_forward_kernel, -(-n // how.forward_rows), how.forward_warps, sizes, how, *shapes)
    out, weights = call(jnp.reshape(context, 1), tokens, by_query, values)
    rows = jnp.moveaxis(weights[:, :, -1, :length], 1, 0)
    return (out, rows), (tokens, values, weights, query)


def _backward(how: Tuning, last: int, saved: Any, g: tuple[Array, Array]) -> tuple[None, None, Array, Array]:
    (tokens, values, weights, query), (by_out, by_rows) = saved, g
    (heads, n, length), size, outputs = by_rows.shape, query.shape[1], by_out.shape[-1]
    sizes = Sizes(n, length, last, size - length, outputs, heads)
    columns = sizes.tokens + sizes.keys
    hot = jnp.eye(sizes.tokens + 1, sizes.tokens, dtype=jnp.bfloat16).reshape(-1)
    at_last = jnp.pad(jnp.moveaxis(by_rows, 0, 1), ((0, 0), (0, 0), (0, sizes.keys - length)))

    def summed(sums: Array) -> Float[Array, "heads rows size"]:
        sums = jnp.sum(sums.reshape(-1, heads, sums.shape[-1] // columns, columns), 0)
        return jnp.concatenate([sums[..., : sizes.vocabulary], sums[..., sizes.tokens : sizes.tokens + length]], -1)

    call = _call(_score_kernel, -(-n // how.score_rows), how.score_warps, sizes, how, weights.shape)
    by_scores = call(tokens, values, weights, by_out, at_last)[0]
    programs = -(-n // how.value_rows) * heads
    call = _call(_value_kernel, programs, how.value_warps, sizes, how, (programs, sizes.width * columns))
    by_value = summed(call(tokens, hot, weights, by_out)[0])[:, :outputs]
    programs = -(-n // how.query_rows) * heads
    shape = programs, (sizes.tokens + sizes.queries) * columns
    call = _call(_query_kernel, programs, how.query_warps, sizes, how, shape)
    by_query = summed(call(tokens, hot, by_scores)[0])
    unread = jnp.zeros((heads, length - last, size), jnp.float32)
    by_position = by_query[:, sizes.tokens : sizes.tokens + last]
    by_query = jnp.concatenate([by_query[:, : sizes.vocabulary], unread, by_position], 1)
    return None, None, jnp.swapaxes(by_query, 1, 2), jnp.swapaxes(by_value, 1, 2)


first_layer.defvjp(_forward, _backward)
