"""Kernels for GPUs: the first layer of the minimal attention, with one kernel forward and three for its gradient.

By XLA's operations, scores, weights and values of every sequence go to memory and back many times. Here a program takes one
sequence after another and keeps most of it on the chip. Scores and values are looked up in tables in which the parts of token
and position are added already: what a program reads through its small cache, more than what it computes, decides its time.
Backward, the gradients of scores, values and queries have a kernel each: a program for all of them had more sums than
registers. Sums by token are products with one-hot matrices on the tensor cores. A program holds its sums over sequences in
registers; those of all programs are added by XLA, in a fixed order.

Results are as exact as in fp32. A number of fp32 is the sum of three of bf16, and a product of each with a one-hot matrix is
exact. Products of two matrices of fp32 are sums of six products of such parts; what is left out is about 2^-24 of them. Sums
over sequences are additions of fp32, since the tensor cores cut off digits where they add.

Every head is computed by the same instructions, so that equal heads stay equal bit for bit.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._pallas import dot, pallas, triton, usable

_OLDEST = 8.0  # the compute capability from which on GPUs multiply bf16
_LARGEST, _LONGEST = 64, 32  # tokens or outputs, and positions: then all sums of a program fit into its registers

Layer = tuple[Float[Array, "heads size size"], Float[Array, "heads size outputs"]]  # queries and values
Added = tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]
Sums = tuple[Array, ...]


class Tuning(NamedTuple):
    """How many sequences a program of each kernel takes: those that were fastest for 8 runs with batches of 3,000. They change
    the order of sums, and so the last bits of gradients."""

    forward: int = 2
    scores: int = 1
    values: int = 30
    queries: int = 94  # three programs of 166 registers share a processor, and fill all of them twice
    interpret: bool = False  # on a CPU, for tests


TUNING = Tuning()


class Sizes(NamedTuple):
    n: int  # sequences
    length: int
    last: int  # positions with a query
    size: int
    vocabulary: int
    outputs: int
    heads: int
    # Those of arrays in a kernel, filled up to powers of two.
    keys: int
    queries: int
    tokens: int
    width: int

    @classmethod
    def of(cls, n: int, length: int, last: int, size: int, outputs: int, heads: int) -> "Sizes":
        vocabulary = size - length
        padded = (_padded(count) for count in (length, last, vocabulary, outputs))
        return cls(n, length, last, size, vocabulary, outputs, heads, *padded)


def _padded(size: int) -> int:
    """The next power of two, 16 at least: what the tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


def applies(layer: Layer, x: Int[Array, "n length"]) -> bool:
    """Whether the kernels can be used, for this layer and on the GPUs that are there."""
    (query, value), length = layer, x.shape[1]
    small = max(query.shape[-1] - length, value.shape[-1]) <= _LARGEST and length <= _LONGEST
    return query.dtype == jnp.float32 and small and usable(_OLDEST)


def _high(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x cut off to the digits of bf16. By its bits: a compiler may leave out a cast to bf16 and back."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type(bits & jnp.int32(-0x10000), jnp.float32)


def _parts(x: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
    """Three arrays of bf16 whose sum is x, the largest first."""
    high = _high(x)
    rest = x - high
    middle = _high(rest)
    return high.astype(jnp.bfloat16), middle.astype(jnp.bfloat16), (rest - middle).astype(jnp.bfloat16)


def _sum(terms: list[Array]) -> Array:
    """The sum, in this order."""
    return functools.reduce(jnp.add, terms)


def _times_one_hot(x: Array, one_hot: Array) -> Array:
    return _sum([dot(part, one_hot) for part in reversed(_parts(x))])


def _one_hot_times(one_hot: Array, x: Array, over: tuple[int, int]) -> Array:
    return _sum([dot(one_hot, part, over) for part in reversed(_parts(x))])


def _product(a: Array, b: Array, over: tuple[int, int]) -> Array:
    """The product of two matrices of fp32, as exact as one of fp32."""
    left, right = _parts(a), _parts(b)
    pairs = [(0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)]  # the smallest first
    return _sum([dot(left[i], right[j], over) for i, j in pairs])


def _load(ref: Any, index: Any, mask: Array) -> Array:
    return triton.load(ref.at[index], mask=mask, other=0)


def _store(ref: Any, index: Any, value: Array, mask: Array) -> None:
    triton.store(ref.at[index], value, mask=mask)


def _column(count: int) -> Int[Array, "count 1"]:
    return jnp.arange(count, dtype=jnp.int32)[:, None]


def _row(count: int) -> Int[Array, "1 count"]:
    return jnp.arange(count, dtype=jnp.int32)[None]


def _tokens(ref: Any, sequence: Any, first: int, count: int) -> Int[Array, " count"]:
    """Tokens of a sequence from a position on; what is behind its end is no token."""
    return ref[sequence, first + jnp.arange(count)]


def _one_hot(ref: Any, tokens: Int[Array, " count"], sizes: Sizes) -> Array:
    """One-hot rows: looked up, which takes fewer instructions than comparisons."""
    return ref[tokens[:, None] * sizes.tokens + _row(sizes.tokens)]


def _values(ref: Any, head: Any, keys: Int[Array, " keys"], sizes: Sizes) -> Float[Array, "keys width"]:
    """The value of every position, by its token; zeros behind the end."""
    position, column = _column(sizes.keys), _row(sizes.width)
    row = (head * sizes.length + position) * sizes.vocabulary + jnp.minimum(keys, sizes.vocabulary - 1)[:, None]
    return _load(ref, row * sizes.width + column, jnp.broadcast_to(position < sizes.length, (sizes.keys, sizes.width)))


def _share(sizes: Sizes, most: int, program: Any) -> tuple[Any, Any]:
    """The first sequence of a program, and how many it takes."""
    first = program * most
    return first, most if sizes.n % most == 0 else jnp.minimum(most, sizes.n - first)


def _of_head(sequence: Any, head: Any, sizes: Sizes) -> tuple[Any, Array]:
    """Where the weights or scores of a head are, and which of them there are."""
    there = (_column(sizes.queries) < sizes.last) & (_row(sizes.keys) < sizes.keys)
    return (sequence, head, pallas.ds(0, sizes.queries), pallas.ds(0, sizes.keys)), there


def _of_outputs(sequence: Any, sizes: Sizes) -> tuple[Any, Array]:
    """Where the outputs of a sequence are, and which of them there are."""
    there = (_column(sizes.queries) < sizes.last) & (_row(sizes.width) < sizes.outputs)
    return (sequence, pallas.ds(0, sizes.queries), pallas.ds(0, sizes.width)), there


def _forward_kernel(
    context: Any, tokens: Any, score: Any, value: Any, out: Any, attention: Any, *, sizes: Sizes, most: int
) -> None:
    """The outputs of some sequences, summed over heads, and the weights of every head."""
    asking, key = jnp.minimum(_column(sizes.queries), sizes.last - 1), _row(sizes.keys)  # rows that fill up see something, too
    behind = sizes.length - sizes.last + asking - key
    seen = (behind >= 0) & (behind < context[0]) & (key < sizes.length)
    at_key = sizes.vocabulary + jnp.minimum(key, sizes.length - 1)
    first, count = _share(sizes, most, pallas.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _tokens(tokens, sequence, 0, sizes.keys)
        asked = _tokens(tokens, sequence, sizes.length - sizes.last, sizes.queries)
        row = asking * sizes.vocabulary + jnp.minimum(asked, sizes.vocabulary - 1)[:, None]
        at_token = jnp.minimum(keys, sizes.vocabulary - 1)[None]

        def of_head(head: Any, total: Array) -> Array:
            start = (head * sizes.last * sizes.vocabulary + row) * sizes.size
            scores = jnp.where(seen, score[start + at_token] + score[start + at_key], -jnp.inf)
            weights = jnp.exp(scores - jnp.max(scores, 1, keepdims=True))
            weights = weights / jnp.sum(weights, 1, keepdims=True)
            place, there = _of_head(sequence, head, sizes)
            _store(attention, place, weights, there)
            return total + _product(weights, _values(value, head, keys, sizes), (1, 0))

        total = jax.lax.fori_loop(0, sizes.heads, of_head, jnp.zeros((sizes.queries, sizes.width), jnp.float32))
        place, there = _of_outputs(sequence, sizes)
        _store(out, place, total, there)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _score_kernel(
    tokens: Any, value: Any, attention: Any, by_out: Any, by_last: Any, by_scores: Any, *, sizes: Sizes, most: int
) -> None:
    """The gradient of the scores in some sequences."""
    asking, scale = _column(sizes.queries), 1 / math.sqrt(sizes.size)
    first, count = _share(sizes, most, pallas.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _tokens(tokens, sequence, 0, sizes.keys)
        g = _load(by_out, *_of_outputs(sequence, sizes))

        def of_head(head: Any, _: None) -> None:
            place, there = _of_head(sequence, head, sizes)
            weights = _load(attention, place, there)
            by_weights = _product(g, _values(value, head, keys, sizes), (1, 1))
            by_weights = by_weights + jnp.where(asking == sizes.last - 1, by_last[sequence, head][None], 0.0)
            mean = jnp.sum(weights * by_weights, 1, keepdims=True)
            _store(by_scores, place, weights * (by_weights - mean) * scale, there)

        jax.lax.fori_loop(0, sizes.heads, of_head, None)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _value_kernel(tokens: Any, one_hot: Any, attention: Any, by_out: Any, sums: Any, *, sizes: Sizes, most: int) -> None:
    """The gradient of one head's values over some sequences: outputs by tokens and positions."""
    program = pallas.program_id(0)
    head, (first, count) = program % sizes.heads, _share(sizes, most, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        by_token, by_position = sums
        sequence = first + i
        keys = _one_hot(one_hot, _tokens(tokens, sequence, 0, sizes.keys), sizes)
        weights, g = _load(attention, *_of_head(sequence, head, sizes)), _load(by_out, *_of_outputs(sequence, sizes))
        by_values = _product(g, weights, (0, 0))
        return by_token + _times_one_hot(by_values, keys), by_position + by_values

    shapes = (sizes.width, sizes.tokens), (sizes.width, sizes.keys)
    done = jax.lax.fori_loop(0, count, of_sequence, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))
    row = _column(sizes.width) * (sizes.tokens + sizes.keys)
    sums[row + _row(sizes.tokens)], sums[row + sizes.tokens + _row(sizes.keys)] = done


def _query_kernel(tokens: Any, one_hot: Any, by_scores: Any, sums: Any, *, sizes: Sizes, most: int) -> None:
    """The gradient of one head's queries over some sequences: tokens and positions of queries by those of keys."""
    program = pallas.program_id(0)
    head, (first, count) = program % sizes.heads, _share(sizes, most, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        token_token, token_position, position_token, position_position = sums
        sequence = first + i
        keys = _one_hot(one_hot, _tokens(tokens, sequence, 0, sizes.keys), sizes)
        asked = _one_hot(one_hot, _tokens(tokens, sequence, sizes.length - sizes.last, sizes.queries), sizes)
        by_score = _load(by_scores, *_of_head(sequence, head, sizes))
        by_query = _one_hot_times(asked, by_score, (0, 0))
        return (
            token_token + _times_one_hot(by_query, keys),
            token_position + by_query,
            position_token + _one_hot_times(keys, by_score, (0, 1)),
            position_position + by_score,
        )

    shapes = (sizes.tokens,) * 2, (sizes.tokens, sizes.keys), (sizes.tokens, sizes.queries), (sizes.queries, sizes.keys)
    done = jax.lax.fori_loop(0, count, of_sequence, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))
    columns = sizes.tokens + sizes.keys
    row, below = _column(sizes.tokens) * columns, (sizes.tokens + _column(sizes.queries)) * columns
    token, right = _row(sizes.tokens), sizes.tokens + _row(sizes.keys)
    turned = (sizes.tokens + _row(sizes.queries)) * columns + _column(sizes.tokens)
    for place, array in zip((row + token, row + right, turned, below + right), done, strict=True):
        sums[place] = array


def _call(
    kernel: Any, sizes: Sizes, most: int, programs: int, warps: int, stages: int, interpret: bool, *shapes: tuple[int, ...]
) -> Any:
    """A kernel with outputs of these shapes; of one with two axes, every program writes a row. With two stages, what the next
    sequence needs is read while this one is computed."""
    row = functools.partial(pallas.BlockSpec, index_map=lambda program: (program, 0))
    return pallas.pallas_call(
        functools.partial(kernel, sizes=sizes, most=most),
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=(programs,),
        out_specs=[row((None, shape[1])) if len(shape) == 2 else pallas.BlockSpec() for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
    )


def _sums(
    kernel: Any, sizes: Sizes, most: int, stages: int, rows: int, interpret: bool, *args: Array
) -> Float[Array, "heads rows size"]:
    """The sums of a kernel whose programs have one head each, over all sequences; columns without what fills them up."""
    programs, columns = -(-sizes.n // most) * sizes.heads, sizes.tokens + sizes.keys
    (sums,) = _call(kernel, sizes, most, programs, 4, stages, interpret, (programs, rows * columns))(*args)
    sums = jnp.sum(sums.reshape(-1, sizes.heads, rows, columns), 0)
    return jnp.concatenate([sums[..., : sizes.vocabulary], sums[..., sizes.tokens : sizes.tokens + sizes.length]], -1)


def first_layer(
    context: int | Int[Array, ""] | None, layer: Layer, x: Int[Array, "n length"], last: int, tuning: Tuning = TUNING
) -> Added:
    """What `MinimalAttention._first` returns, by the kernels; `context`: how many positions a query sees, None: all."""
    return _first_layer(tuning, last, jnp.int32(x.shape[1] if context is None else context), x, *layer)


def _score_table(query: Float[Array, "heads size size"], sizes: Sizes) -> Float[Array, " entries"]:
    """By head, position and token of the query: the part of its scores that each token or position of a key has."""
    by_query = jnp.swapaxes(query, 1, 2) * (1 / math.sqrt(sizes.size))
    return (by_query[:, sizes.size - sizes.last :, None] + by_query[:, None, : sizes.vocabulary]).reshape(-1)


def _value_table(value: Float[Array, "heads size outputs"], sizes: Sizes) -> Float[Array, " entries"]:
    """By head, position and token: the value, filled up."""
    both = value[:, sizes.vocabulary :, None] + value[:, None, : sizes.vocabulary]
    return jnp.pad(both, ((0, 0),) * 3 + ((0, sizes.width - sizes.outputs),)).reshape(-1)


def _of_layer(tuning: Tuning, last: int, context: Array, tokens: Array, query: Array, value: Array) -> Any:
    return _forward(tuning, last, context, tokens, query, value)[0]


def _forward(tuning: Tuning, last: int, context: Array, tokens: Array, query: Array, value: Array) -> tuple[Added, Any]:
    (n, length), (heads, size, outputs) = tokens.shape, value.shape
    sizes = Sizes.of(n, length, last, size, outputs, heads)
    spare = max(sizes.keys, length - last + sizes.queries) - length
    tokens = jnp.pad(tokens, ((0, 0), (0, spare)), constant_values=sizes.tokens)
    scores, values = _score_table(query, sizes), _value_table(value, sizes)
    shapes = (n, last, outputs), (n, heads, last, sizes.keys)
    call = _call(_forward_kernel, sizes, tuning.forward, -(-n // tuning.forward), 4, 1, tuning.interpret, *shapes)
    out, weights = call(jnp.reshape(context, 1), tokens, scores, values)
    rows = jnp.moveaxis(weights[:, :, -1, :length], 1, 0)
    return (out, rows), (tokens, values, weights, query)


def _backward(tuning: Tuning, last: int, saved: Any, g: Added) -> tuple[None, None, Array, Array]:
    (tokens, values, weights, query), (by_out, by_rows) = saved, g
    (heads, n, length), size, outputs = by_rows.shape, query.shape[1], by_out.shape[-1]
    sizes, interpret = Sizes.of(n, length, last, size, outputs, heads), tuning.interpret
    one_hot = jnp.eye(sizes.tokens + 1, sizes.tokens, dtype=jnp.bfloat16).reshape(-1)  # its last row is of no token: zeros
    at_last = jnp.pad(jnp.moveaxis(by_rows, 0, 1), ((0, 0), (0, 0), (0, sizes.keys - length)))
    call = _call(_score_kernel, sizes, tuning.scores, -(-n // tuning.scores), 1, 1, interpret, weights.shape)
    (by_scores,) = call(tokens, values, weights, by_out, at_last)
    by_value = _sums(_value_kernel, sizes, tuning.values, 1, sizes.width, interpret, tokens, one_hot, weights, by_out)
    by_value = by_value[:, :outputs]
    rows = sizes.tokens + sizes.queries
    by_query = _sums(_query_kernel, sizes, tuning.queries, 2, rows, interpret, tokens, one_hot, by_scores)
    unread = jnp.zeros((heads, length - last, size), jnp.float32)
    by_position = by_query[:, sizes.tokens : sizes.tokens + last]
    by_query = jnp.concatenate([by_query[:, : sizes.vocabulary], unread, by_position], 1)
    return None, None, jnp.swapaxes(by_query, 1, 2), jnp.swapaxes(by_value, 1, 2)


_first_layer = jax.custom_vjp(_of_layer, nondiff_argnums=(0, 1))
_first_layer.defvjp(_forward, _backward)
