"""float64 for the theory, whatever the caller's process is set to."""

from contextlib import AbstractContextManager

import jax


def float64() -> AbstractContextManager[None]:
    """A context in which JAX computes in 64 bits. It is local to the thread and leaves the caller's setting alone."""
    return jax.enable_x64(True)
