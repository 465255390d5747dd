"""What several tasks do with the output of a model."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._contract import Batch, Output


def widened(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The same numbers in at least 32 bits."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def half_squared_error(output: Output, batch: Batch) -> Float[Array, " n"]:
    """Half the squared distance of each answer from its target."""
    return 0.5 * jnp.sum((widened(output.value) - batch.target) ** 2, -1)


def stacked_patterns(output: Output) -> Float[Array, "n layers heads length length"] | None:
    """The attention from every position to every other, from the taps `layers.*.pattern`; None where there are none."""
    taps, patterns = output.taps or {}, []
    while (name := f"layers.{len(patterns)}.pattern") in taps:
        patterns.append(widened(taps[name]))
    return jnp.stack(patterns, 1) if patterns else None
