"""Chunks of rows, for arrays that are too large to exist as a whole."""

import math

import jax.numpy as jnp
from jaxtyping import Array

_NUMBERS = 2**24
"""Largest size of an array of one chunk: 64 MB in fp32."""


def in_chunks(arrays: tuple[Array, ...], columns: int, at_least: int = 1) -> tuple[Array, ...]:
    """Split the first axis of arrays into equal chunks, with zeros at the end of the last one.

    **Arguments:**

    - `columns`: how many numbers will be computed per row; a chunk gets at most 2^24 of them.
    - `at_least`: the smallest number of chunks.
    """
    rows = len(arrays[0])
    chunks = min(rows, max(at_least, math.ceil(rows * columns / _NUMBERS)))
    size = math.ceil(rows / chunks)
    if missing := chunks * size - rows:
        arrays = tuple(jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in arrays)
    return tuple(x.reshape(chunks, size, *x.shape[1:]) for x in arrays)
