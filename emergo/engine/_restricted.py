"""Predictors of restricted context, trained before the run that is compared with them (yuksel2026, Figs. 3 and 5)."""

import contextlib
import dataclasses
import functools
import signal
import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ._chain import Restricted
from ._config import Run
from ._program import step
from ._shape import Shape, Slot, products, start

_CHUNK = 50
"""Steps of one call: an interrupt is noticed between calls."""


def begin(shape: Shape, run: Run) -> Slot:
    """A run before its first step, with the predictors that it is compared with."""
    slot = start(shape, run)
    if shape.windows is None:
        return slot
    fresh = dataclasses.replace(run, config=dataclasses.replace(run.config, samples=None))
    return slot._replace(restricted=_trained(dataclasses.replace(shape, samples=None), fresh))


@functools.lru_cache(maxsize=16)
def _trained(shape: Shape, run: Run) -> Restricted:
    """Predictors of the run's windows after all its steps; runs that differ in their number of samples share them."""
    assert shape.windows is not None
    slot = start(shape, run)
    slots = jax.vmap(lambda window: slot._replace(window=window))(jnp.asarray(shape.windows, jnp.int32))
    with products(shape.precision), _interruptible():
        for done in range(0, run.config.steps, _CHUNK):
            slots = _advance(shape, slots, jnp.int32(min(_CHUNK, run.config.steps - done)))
            jax.block_until_ready(slots.step)
    assert slots.window is not None
    return Restricted(slots.parameters, slots.window)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside the block Ctrl-C ends the call at once, as there is nothing to keep yet; `train` waits for the end of a chunk."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _advance(shape: Shape, slots: Slot, count: Int[Array, ""]) -> Slot:
    fused = jax.default_backend() == "gpu"
    return jax.lax.fori_loop(0, count, lambda _, slots: jax.vmap(functools.partial(step, shape, fused))(slots)[0], slots)
