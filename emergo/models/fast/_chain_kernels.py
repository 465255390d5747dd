"""GPU kernels for the first layer of `MinimalAttention`: one forward, three for its gradient.

With XLA the scores, weights and values of every sequence travel to memory and back many times. Here
a program processes one sequence after another and keeps almost everything on the chip.

**Tables.** Inputs are one-hot tokens and positions. So a score is looked up: the query's token and
position select a row, the key's token and position two entries of it. We add the parts of token and
position beforehand (`_score_table`, `_value_table`), because reads through the small cache, not
arithmetic, limit the speed of a program.

**Gradient.** The gradients of scores, values and queries have separate kernels. One kernel for all
of them needed more registers than a GPU has. A sum by token is a product with a one-hot matrix
on the tensor cores. Every program keeps its sums over sequences in registers and writes them once.
XLA then adds the sums of all programs in a fixed order, so that results are reproducible.

**Precision.** Results are as exact as in fp32, although tensor cores multiply bf16. An fp32 number
is the exact sum of three bf16 numbers (`_parts`). So products with one-hot matrices are exact, and
a product of two fp32 matrices is a sum of six bf16 products, which leaves out about 2^-24 of it
(`_product`). Sums over sequences are fp32 additions, because tensor cores truncate when they add.

All heads run the same instructions, so equal heads stay equal bit for bit.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._pallas import dot, interpreted, pallas, triton, usable

_OLDEST = 8.0  # GPUs multiply bf16 from this compute capability on
# All sums of a program fit into its registers up to this many tokens or outputs, and positions.
_LARGEST = 64
_LONGEST = 32

# The maps of queries and of values.
Layer = tuple[Float[Array, "heads size size"], Float[Array, "heads size outputs"]]
LayerOutput = tuple[Float[Array, "n last outputs"], Float[Array, "heads n length"]]
Sums = tuple[Array, ...]


class Tuning(NamedTuple):
    """Number of sequences per program of each kernel.

    The defaults were fastest for 8 runs with batches of 3,000. Other numbers change the order of
    summation, and so the last bits of gradients.
    """

    forward: int = 2
    scores: int = 1
    values: int = 30
    # Three programs of 166 registers share a processor and fill all processors exactly twice.
    queries: int = 94


TUNING = Tuning()


class Sizes(NamedTuple):
    n: int  # sequences
    length: int
    last: int  # positions that have a query
    size: int  # vocabulary + length
    vocabulary: int
    outputs: int
    heads: int
    # Sizes of arrays in a kernel: length, last, vocabulary and outputs, padded to powers of two.
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
    """Return the next power of two; at least 16, the smallest size that tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


def applies(layer: Layer, x: Int[Array, "n length"]) -> bool:
    """Return True if the kernels support this layer and the present GPUs."""
    query, value = layer
    length = x.shape[1]
    small = max(query.shape[-1] - length, value.shape[-1]) <= _LARGEST and length <= _LONGEST
    return query.dtype == jnp.float32 and small and usable(_OLDEST)


# Products in fp32 precision on tensor cores.


def _high(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Truncate x to the digits of bf16.

    We mask bits, because a compiler may remove a cast to bf16 and back.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type(bits & jnp.int32(-0x10000), jnp.float32)


def _parts(x: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
    """Split x into three bf16 arrays whose sum is x, the largest first."""
    high = _high(x)
    rest = x - high
    middle = _high(rest)
    low = rest - middle
    return high.astype(jnp.bfloat16), middle.astype(jnp.bfloat16), low.astype(jnp.bfloat16)


def _sum(terms: list[Array]) -> Array:
    """Add terms in their order, which is from small to large."""
    return functools.reduce(jnp.add, terms)


def _times_one_hot(x: Array, one_hot: Array) -> Array:
    return _sum([dot(part, one_hot) for part in reversed(_parts(x))])


def _one_hot_times(one_hot: Array, x: Array, over: tuple[int, int]) -> Array:
    return _sum([dot(one_hot, part, over) for part in reversed(_parts(x))])


def _product(a: Array, b: Array, over: tuple[int, int]) -> Array:
    """Multiply two fp32 matrices with fp32 precision."""
    left = _parts(a)
    right = _parts(b)
    # The three smallest of the nine products of parts are below the precision of fp32.
    pairs = [(0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)]
    return _sum([dot(left[i], right[j], over) for i, j in pairs])


# Loads and stores of padded tiles. Masked loads return 0.


def _load(ref: Any, index: Any, mask: Array) -> Array:
    return triton.load(ref.at[index], mask=mask, other=0)


def _store(ref: Any, index: Any, value: Array, mask: Array) -> None:
    triton.store(ref.at[index], value, mask=mask)


def _column(count: int) -> Int[Array, "count 1"]:
    return jnp.arange(count, dtype=jnp.int32)[:, None]


def _row(count: int) -> Int[Array, "1 count"]:
    return jnp.arange(count, dtype=jnp.int32)[None]


def _key_tokens(ref: Any, sequence: Any, sizes: Sizes) -> Int[Array, " keys"]:
    """Load the tokens of a sequence; padded positions hold a number beyond the vocabulary."""
    return ref[sequence, jnp.arange(sizes.keys)]


def _query_tokens(ref: Any, sequence: Any, sizes: Sizes) -> Int[Array, " queries"]:
    """Load the tokens of the last positions, padded in the same way."""
    return ref[sequence, sizes.length - sizes.last + jnp.arange(sizes.queries)]


def _one_hot(ref: Any, tokens: Int[Array, " count"], sizes: Sizes) -> Array:
    """Load one-hot rows from a table, which takes fewer instructions than comparisons."""
    return ref[tokens[:, None] * sizes.tokens + _row(sizes.tokens)]


def _values(
    ref: Any, head: Any, keys: Int[Array, " keys"], sizes: Sizes
) -> Float[Array, "keys width"]:
    """Load the value of every position and its token; zeros for padded positions."""
    position = _column(sizes.keys)
    token = jnp.minimum(keys, sizes.vocabulary - 1)[:, None]
    row = (head * sizes.length + position) * sizes.vocabulary + token
    real = jnp.broadcast_to(position < sizes.length, (sizes.keys, sizes.width))
    return _load(ref, row * sizes.width + _row(sizes.width), real)


def _share(sizes: Sizes, most: int, program: Any) -> tuple[Any, Any]:
    """Return the first sequence of a program, and the number of its sequences."""
    first = program * most
    return first, most if sizes.n % most == 0 else jnp.minimum(most, sizes.n - first)


def _tile_of_head(sequence: Any, head: Any, sizes: Sizes) -> tuple[Any, Array]:
    """Return the index and the mask of the weights (or scores) of a head."""
    mask = (_column(sizes.queries) < sizes.last) & (_row(sizes.keys) < sizes.keys)
    return (sequence, head, pallas.ds(0, sizes.queries), pallas.ds(0, sizes.keys)), mask


def _tile_of_outputs(sequence: Any, sizes: Sizes) -> tuple[Any, Array]:
    """Return the index and the mask of the outputs of a sequence."""
    mask = (_column(sizes.queries) < sizes.last) & (_row(sizes.width) < sizes.outputs)
    return (sequence, pallas.ds(0, sizes.queries), pallas.ds(0, sizes.width)), mask


def _zeros(*shapes: tuple[int, int]) -> Sums:
    return tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)


# The kernels. `most` is the number of sequences per program.


def _forward_kernel(
    context: Any,
    tokens: Any,
    scores_table: Any,
    values_table: Any,
    out: Any,
    attention: Any,
    *,
    sizes: Sizes,
    most: int,
) -> None:
    """Compute outputs, summed over heads, and the attention weights of every head."""
    # Padded queries repeat the last one, so that their softmax is finite.
    query = jnp.minimum(_column(sizes.queries), sizes.last - 1)
    key = _row(sizes.keys)
    behind = sizes.length - sizes.last + query - key
    seen = (behind >= 0) & (behind < context[0]) & (key < sizes.length)
    position_entry = sizes.vocabulary + jnp.minimum(key, sizes.length - 1)
    first, count = _share(sizes, most, pallas.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _key_tokens(tokens, sequence, sizes)
        query_token = jnp.minimum(_query_tokens(tokens, sequence, sizes), sizes.vocabulary - 1)
        row = query * sizes.vocabulary + query_token[:, None]
        token_entry = jnp.minimum(keys, sizes.vocabulary - 1)[None]

        def of_head(head: Any, total: Array) -> Array:
            start = (head * sizes.last * sizes.vocabulary + row) * sizes.size
            scores = scores_table[start + token_entry] + scores_table[start + position_entry]
            scores = jnp.where(seen, scores, -jnp.inf)
            weights = jnp.exp(scores - jnp.max(scores, 1, keepdims=True))
            weights = weights / jnp.sum(weights, 1, keepdims=True)
            index, mask = _tile_of_head(sequence, head, sizes)
            _store(attention, index, weights, mask)
            return total + _product(weights, _values(values_table, head, keys, sizes), (1, 0))

        (zeros,) = _zeros((sizes.queries, sizes.width))
        total = jax.lax.fori_loop(0, sizes.heads, of_head, zeros)
        index, mask = _tile_of_outputs(sequence, sizes)
        _store(out, index, total, mask)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _score_kernel(
    tokens: Any,
    values_table: Any,
    attention: Any,
    by_out: Any,
    by_last: Any,
    by_scores: Any,
    *,
    sizes: Sizes,
    most: int,
) -> None:
    """Compute the gradient of the scores; `by_last` is the gradient of the last query's weights."""
    is_last = _column(sizes.queries) == sizes.last - 1
    scale = 1 / math.sqrt(sizes.size)
    first, count = _share(sizes, most, pallas.program_id(0))

    def of_sequence(i: Any, _: None) -> None:
        sequence = first + i
        keys = _key_tokens(tokens, sequence, sizes)
        g = _load(by_out, *_tile_of_outputs(sequence, sizes))

        def of_head(head: Any, _: None) -> None:
            index, mask = _tile_of_head(sequence, head, sizes)
            weights = _load(attention, index, mask)
            by_weights = _product(g, _values(values_table, head, keys, sizes), (1, 1))
            by_weights = by_weights + jnp.where(is_last, by_last[sequence, head][None], 0.0)
            mean = jnp.sum(weights * by_weights, 1, keepdims=True)
            _store(by_scores, index, weights * (by_weights - mean) * scale, mask)

        jax.lax.fori_loop(0, sizes.heads, of_head, None)

    jax.lax.fori_loop(0, count, of_sequence, None)


def _value_kernel(
    tokens: Any, one_hot: Any, attention: Any, by_out: Any, sums: Any, *, sizes: Sizes, most: int
) -> None:
    """Sum the gradient of one head's values: (outputs, tokens) and (outputs, positions)."""
    program = pallas.program_id(0)
    head = program % sizes.heads
    first, count = _share(sizes, most, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        by_token, by_position = sums
        sequence = first + i
        keys = _one_hot(one_hot, _key_tokens(tokens, sequence, sizes), sizes)
        weights = _load(attention, *_tile_of_head(sequence, head, sizes))
        g = _load(by_out, *_tile_of_outputs(sequence, sizes))
        by_values = _product(g, weights, (0, 0))
        return by_token + _times_one_hot(by_values, keys), by_position + by_values

    zeros = _zeros((sizes.width, sizes.tokens), (sizes.width, sizes.keys))
    by_token, by_position = jax.lax.fori_loop(0, count, of_sequence, zeros)
    row = _column(sizes.width) * (sizes.tokens + sizes.keys)
    sums[row + _row(sizes.tokens)] = by_token
    sums[row + sizes.tokens + _row(sizes.keys)] = by_position


def _query_kernel(
    tokens: Any, one_hot: Any, by_scores: Any, sums: Any, *, sizes: Sizes, most: int
) -> None:
    """Sum the gradient of one head's queries.

    Rows are tokens, then positions, of queries; columns are tokens, then positions, of keys.
    """
    program = pallas.program_id(0)
    head = program % sizes.heads
    first, count = _share(sizes, most, program // sizes.heads)

    def of_sequence(i: Any, sums: Sums) -> Sums:
        token_token, token_position, position_token, position_position = sums
        sequence = first + i
        keys = _one_hot(one_hot, _key_tokens(tokens, sequence, sizes), sizes)
        queries = _one_hot(one_hot, _query_tokens(tokens, sequence, sizes), sizes)
        by_score = _load(by_scores, *_tile_of_head(sequence, head, sizes))
        by_query = _one_hot_times(queries, by_score, (0, 0))
        return (
            token_token + _times_one_hot(by_query, keys),
            token_position + by_query,
            position_token + _one_hot_times(keys, by_score, (0, 1)),  # transposed
            position_position + by_score,
        )

    zeros = _zeros(
        (sizes.tokens, sizes.tokens),
        (sizes.tokens, sizes.keys),
        (sizes.tokens, sizes.queries),
        (sizes.queries, sizes.keys),
    )
    done = jax.lax.fori_loop(0, count, of_sequence, zeros)
    columns = sizes.tokens + sizes.keys
    upper = _column(sizes.tokens) * columns
    lower = (sizes.tokens + _column(sizes.queries)) * columns
    left = _row(sizes.tokens)
    right = sizes.tokens + _row(sizes.keys)
    lower_left_transposed = (sizes.tokens + _row(sizes.queries)) * columns + _column(sizes.tokens)
    places = (upper + left, upper + right, lower_left_transposed, lower + right)
    for place, array in zip(places, done, strict=True):
        sums[place] = array


# Calls of the kernels, and the gradient.


def _call(
    kernel: Any,
    sizes: Sizes,
    most: int,
    programs: int,
    warps: int,
    stages: int,
    *shapes: tuple[int, ...],
) -> Any:
    """Return a kernel whose outputs have these shapes.

    Every program writes one row of an output with two axes. With two `stages`, loads of the next
    sequence overlap with the computation of the present one.
    """
    row = functools.partial(pallas.BlockSpec, index_map=lambda program: (program, 0))
    return pallas.pallas_call(
        functools.partial(kernel, sizes=sizes, most=most),
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=(programs,),
        out_specs=[
            row((None, shape[1])) if len(shape) == 2 else pallas.BlockSpec() for shape in shapes
        ],
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpreted(),
    )


def _sums(
    kernel: Any, sizes: Sizes, most: int, stages: int, rows: int, *args: Array
) -> Float[Array, "heads rows size"]:
    """Run a kernel whose programs have one head each; add their sums and remove the padding."""
    programs = -(-sizes.n // most) * sizes.heads
    columns = sizes.tokens + sizes.keys
    (sums,) = _call(kernel, sizes, most, programs, 4, stages, (programs, rows * columns))(*args)
    sums = jnp.sum(sums.reshape(-1, sizes.heads, rows, columns), 0)
    by_token = sums[..., : sizes.vocabulary]
    by_position = sums[..., sizes.tokens : sizes.tokens + sizes.length]
    return jnp.concatenate([by_token, by_position], -1)


def first_layer(
    context: int | Int[Array, ""] | None,
    layer: Layer,
    x: Int[Array, "n length"],
    last: int,
    tuning: Tuning = TUNING,
) -> LayerOutput:
    """Compute what `_minimal._first` computes, with the kernels.

    **Arguments:**

    - `context`: number of positions that a query sees; None: all before it.
    - `layer`: the maps of queries and values.
    - `x`: tokens.
    - `last`: number of positions, the last ones, that have a query.

    **Returns:** the output at these positions, and the attention of the very last one.
    """
    query, value = layer
    n, length = x.shape
    heads, size, outputs = value.shape
    sizes = Sizes.of(n, length, last, size, outputs, heads)
    seen = jnp.int32(length if context is None else context)
    return _first_layer(tuning, sizes, seen, x, query, value)


def _score_table(query: Float[Array, "heads size size"], sizes: Sizes) -> Float[Array, " entries"]:
    """Return, by head, position and token of the query, the part of its score that each token and
    each position of a key contributes."""
    by_query = jnp.swapaxes(query, 1, 2) * (1 / math.sqrt(sizes.size))
    by_position = by_query[:, sizes.size - sizes.last :, None]
    by_token = by_query[:, None, : sizes.vocabulary]
    return (by_position + by_token).reshape(-1)


def _value_table(
    value: Float[Array, "heads size outputs"], sizes: Sizes
) -> Float[Array, " entries"]:
    """Return the padded value by head, position and token."""
    both = value[:, sizes.vocabulary :, None] + value[:, None, : sizes.vocabulary]
    return jnp.pad(both, ((0, 0),) * 3 + ((0, sizes.width - sizes.outputs),)).reshape(-1)


def _forward(
    tuning: Tuning, sizes: Sizes, context: Array, tokens: Array, query: Array, value: Array
) -> tuple[LayerOutput, Any]:
    n, length, last = sizes[:3]
    spare = max(sizes.keys, length - last + sizes.queries) - length
    tokens = jnp.pad(tokens, ((0, 0), (0, spare)), constant_values=sizes.tokens)
    scores = _score_table(query, sizes)
    values = _value_table(value, sizes)
    shapes = ((n, last, sizes.outputs), (n, sizes.heads, last, sizes.keys))
    programs = -(-n // tuning.forward)
    call = _call(_forward_kernel, sizes, tuning.forward, programs, 4, 1, *shapes)
    out, weights = call(jnp.reshape(context, 1), tokens, scores, values)
    rows = jnp.moveaxis(weights[:, :, -1, :length], 1, 0)
    return (out, rows), (tokens, values, weights)


def _backward(
    tuning: Tuning, sizes: Sizes, saved: Any, g: LayerOutput
) -> tuple[None, None, Array, Array]:
    tokens, values, weights = saved
    by_out, by_rows = g
    n, length, last = sizes[:3]
    # The last row is zero. It belongs to the number that pads tokens.
    one_hot = jnp.eye(sizes.tokens + 1, sizes.tokens, dtype=jnp.bfloat16).reshape(-1)
    by_last = jnp.pad(jnp.moveaxis(by_rows, 0, 1), ((0, 0), (0, 0), (0, sizes.keys - length)))
    programs = -(-n // tuning.scores)
    call = _call(_score_kernel, sizes, tuning.scores, programs, 1, 1, weights.shape)
    (by_scores,) = call(tokens, values, weights, by_out, by_last)
    given = (tokens, one_hot, weights, by_out)
    by_value = _sums(_value_kernel, sizes, tuning.values, 1, sizes.width, *given)
    by_value = by_value[:, : sizes.outputs]
    rows = sizes.tokens + sizes.queries
    given = (tokens, one_hot, by_scores)
    by_query = _sums(_query_kernel, sizes, tuning.queries, 2, rows, *given)
    by_token = by_query[:, : sizes.vocabulary]
    no_query = jnp.zeros((sizes.heads, length - last, sizes.size), jnp.float32)
    by_position = by_query[:, sizes.tokens : sizes.tokens + last]
    by_query = jnp.concatenate([by_token, no_query, by_position], 1)
    return None, None, jnp.swapaxes(by_query, 1, 2), jnp.swapaxes(by_value, 1, 2)


_first_layer = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(0, 1))
_first_layer.defvjp(_forward, _backward)
