"""The compiled part: one step, and a chunk of steps with an evaluation, of many runs of one shape."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._probes import evaluate
from ._shape import Shape, Slot, draw, lower, training_loss, transform


def step(shape: Shape, fused: bool, slot: Slot, lowered: Any = None) -> tuple[Slot, Float[Array, ""]]:
    """One step of one run. `lowered`: its parameters as `lower` casts them, where they are at hand."""
    data = draw(shape, slot)
    at = slot.parameters if lowered is None else lowered
    loss, gradient = jax.value_and_grad(lambda p: training_loss(shape, fused, p, data, slot))(at)
    gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, slot.parameters)
    updates, memory = transform(shape.optimizer).update(gradient, slot.memory, slot.parameters)
    parameters = jax.tree.map(lambda p, u: p - slot.rate * u, slot.parameters, updates)
    failed = jnp.where((slot.failed < 0) & ~jnp.isfinite(loss), slot.step, slot.failed)
    return slot._replace(parameters=parameters, memory=memory, step=slot.step + 1, failed=failed), loss


def chunk(shape: Shape, fused: bool, slots: Slot, count: Int[Array, ""]) -> tuple[Slot, dict[str, Array]]:
    """`count` steps of all runs, then an evaluation. The sum of the training losses is among what is seen."""

    def copy(slots: Slot) -> Any:
        """Parameters cast: from one step to the next, since the optimizer's pass over them can write them so at once."""
        return lower(shape, slots.parameters) if shape.precision == "bf16" else None

    def body(_: Any, carry: tuple[Slot, Any, Array]) -> tuple[Slot, Any, Array]:
        slots, lowered, total = carry
        slots, loss = jax.vmap(functools.partial(step, shape, fused))(slots, lowered)
        return slots, copy(slots), total + loss

    slots, _, total = jax.lax.fori_loop(0, count, body, (slots, copy(slots), jnp.zeros_like(slots.rate)))
    return slots, jax.vmap(functools.partial(evaluate, shape, fused))(slots) | {"train_loss": total}


@functools.partial(jax.jit, donate_argnums=0)
def insert(slots: Slot, index: Int[Array, ""], slot: Slot) -> Slot:
    """Puts a run into a place of the stack."""
    return jax.tree.map(lambda all, one: all.at[index].set(one), slots, slot)


@jax.jit
def gather(slots: Slot, indices: Int[Array, " places"]) -> Slot:
    """The runs at these places."""
    return jax.tree.map(lambda all: all[indices], slots)
