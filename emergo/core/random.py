"""Random numbers as a function of a key and a position.

A run draws the same numbers alone, in a batch, in a padded program, and after an interruption.

The generator is threefry-2x32 with 20 rounds (Salmon et al. 2011), which `jax.random` uses too; the
two share `fold_in`. It is written out here for two reasons. First, every number belongs to an
explicit position, (row, column), so that a wide array starts with the numbers of a narrow one.
Second, plain operations fuse: on a CPU they compile in a tenth of the time of JAX's own lowering,
and run several times as fast. Normals come in pairs from one hash (Box and Muller 1958).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

Key = UInt32[Array, "2"]
_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))


def raw(key: Array) -> Key:
    """Return the two words of a key made by `jax.random.key`; words pass unchanged."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


def threefry(
    key: Key, high: UInt32[Array, "..."], low: UInt32[Array, "..."]
) -> tuple[Array, Array]:
    """Hash each pair of counters into two random words.

    Each round adds, rotates and mixes the two words (an ARX cipher). After every four rounds, the
    words of the key are added again, so that the hash cannot be inverted without the key.
    """
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    a = high + words[0]
    b = low + words[1]
    for block in range(5):
        for turn in _TURNS[block % 2]:
            a = a + b
            b = ((b << turn) | (b >> (32 - turn))) ^ a
        a = a + words[(block + 1) % 3]
        b = b + words[(block + 2) % 3] + jnp.uint32(block + 1)
    return a, b


@jax.jit
def fold_in(key: Key, number: int | Array) -> Key:
    """Derive a key from a key and a number; same words as `jax.random.fold_in`."""
    return jnp.stack(threefry(key, jnp.uint32(0), jnp.asarray(number).astype(jnp.uint32)))


def _unit(word: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Map words to the midpoints of 2^23 intervals of (0, 1); in fp32 none rounds to 0 or 1."""
    return (word >> 9).astype(jnp.float32) * 2.0**-23 + 2.0**-24


@functools.partial(jax.jit, static_argnames=("rows", "columns"))
def uniform(
    key: Key, rows: int, columns: int, first_column: int | Array = 0
) -> Float[Array, "rows columns"]:
    """Draw uniform numbers on (0, 1), one per position, starting at column `first_column`."""
    high = jax.lax.broadcasted_iota(jnp.uint32, (rows, columns), 0)
    low = jax.lax.broadcasted_iota(jnp.uint32, (rows, columns), 1)
    low = low + jnp.asarray(first_column).astype(jnp.uint32)
    return _unit(threefry(key, high, low)[0])


@functools.partial(jax.jit, static_argnames=("blocks", "rows", "columns"))
def normals(key: Key, blocks: int, rows: int, columns: int) -> Float[Array, "blocks rows columns"]:
    """Draw standard normal numbers.

    The number at a position depends on `blocks` and `rows`, but not on `columns`. One hash gives
    two words, which become a radius and an angle. Its cosine and sine give a pair of independent
    normals, for block i and block i + blocks/2.
    """
    half = -(-blocks // 2)
    shape = (half, rows, columns)
    place = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(3)]
    a, b = threefry(key, place[0] * jnp.uint32(rows) + place[1], place[2])
    radius = jnp.sqrt(-2 * jnp.log(_unit(a)))
    cosine, sine = _turn(b)
    # The barrier prevents fusion with the consumers: a GPU would compute the pair for each of them.
    return jnp.concatenate(jax.lax.optimization_barrier([radius * cosine, radius * sine]))[:blocks]


@functools.partial(jax.jit, static_argnames=("count",))
def permuted(key: Key, count: int, index: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return the images of some indices under a random permutation of `range(count)`.

    A Feistel network permutes the numbers of 2k bits: each round adds a hash of one half to the
    other. The smallest such range that contains `count` is less than four times as large, and
    images outside of `range(count)` are mapped on until they are inside (cycle walking). So an
    epoch over any data set costs no more than its batches, and nothing of its size is stored.
    """
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    mask = jnp.uint32(2**half - 1)

    def mix(number: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
        left = number >> half
        right = number & mask
        for turn in range(6):
            hashed = threefry(key, jnp.full_like(right, turn), right)[0]
            left, right = right, left ^ (hashed & mask)
        return left << half | right

    first = mix(index.astype(jnp.uint32))
    inside = jax.lax.while_loop(
        lambda numbers: jnp.any(numbers >= count),
        lambda numbers: jnp.where(numbers < count, numbers, mix(numbers)),
        first,
    )
    return inside.astype(jnp.int32)


def _turn(word: UInt32[Array, "..."]) -> tuple[Array, Array]:
    """Compute cosine and sine of a uniform angle.

    The top two bits select the quadrant, the other bits the angle within it, from -45 to 45
    degrees. There, Taylor series up to order 9 are accurate to 4e-9. The general range reduction of
    `jnp.cos` would cost more than everything else together.
    """
    angle = ((word << 2) >> 9).astype(jnp.float32) * (math.pi / 2 * 2.0**-23) + (
        math.pi / 2 * 2.0**-24 - math.pi / 4
    )
    square = angle * angle
    sine = angle * (
        1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square / 362880)))
    )
    cosine = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square / 40320)))
    odd = (word >> 30) & 1 == 1
    negative = word >> 31 == 1
    first = jnp.where(odd, sine, cosine)
    second = jnp.where(odd, cosine, sine)
    sign = jnp.where(negative, -1.0, 1.0).astype(jnp.float32)
    return sign * first, sign * second
