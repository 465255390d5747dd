"""What is watched of a run, on its fixed test set."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._random import fold_in
from ..models import Transformer
from ..tasks import ChainTruth, MarkovChain, Recall, RecallBatch, SingleLocation, Task, Traits, Truth
from ._chain import probe
from ._shape import Shape, Slot, answers, lower, mean_loss

MAPS = 64
"""Test sequences whose attention maps are looked at whole, where a probe needs that: they take length² numbers a head."""


def evaluate(shape: Shape, fused: bool, slot: Slot) -> dict[str, Array]:
    """By name: numbers, and one a layer and head."""
    hull = shape.hull
    if isinstance(hull, MarkovChain):
        return _chain(shape, hull, slot)
    return _recall(shape, fused, slot) if isinstance(hull, Recall) else _single_location(shape, hull, fused, slot)


def kept(task: Task, name: str) -> bool:
    """Whether a run of this task has that curve; a program may watch for its other runs what is of no meaning for this one."""
    if name == "loss_single":
        return isinstance(task, SingleLocation) and task.burst > 1
    return name != "accuracy_repeated" or (isinstance(task, Recall) and task.repeats)


def _chain(shape: Shape, hull: MarkovChain, slot: Slot) -> dict[str, Array]:
    assert isinstance(slot.truth, ChainTruth)
    assert not isinstance(shape.model, Transformer)
    tokens = hull.sample(slot.test, shape.tests, slot.truth)
    return probe(hull, shape.model, slot.parameters, tokens, slot.truth, slot.restricted)


def _single_location(shape: Shape, hull: SingleLocation, fused: bool, slot: Slot) -> dict[str, Array]:
    """No cross-sample repetition, the run's burst and, where that is not 1, a burst of 1."""
    assert isinstance(slot.traits, Traits)
    assert isinstance(slot.truth, Truth)
    plain = slot.traits._replace(repeat=jnp.float32(0))
    data = hull.sample(slot.test, shape.tests, slot.truth, plain)
    output, attention = answers(shape, fused, slot.parameters, data)
    on_relevant = jnp.sum(jnp.where(data.relevant[:, None, None], attention, 0), -1)
    assert isinstance(shape.model, Transformer)
    path = shape.model.value_path(slot.parameters)
    norms = jnp.linalg.norm(path) * jnp.linalg.norm(slot.truth.weights)
    seen = {
        "loss": jnp.mean(hull.losses(output, data, plain)),
        "attention": on_relevant.mean(0),
        "entropy": _entropy(attention).mean(0),
        "alignment": jnp.sum(path * slot.truth.weights.T) / norms,
    }
    if hull.burst > 1 and hull.position == "random":
        single = hull.sample(slot.test, shape.tests, slot.truth, plain._replace(burst=jnp.int32(1)))
        seen["loss_single"] = mean_loss(shape, fused, slot.parameters, single, plain)
    return seen


def _recall(shape: Shape, fused: bool, slot: Slot) -> dict[str, Array]:
    """No repetition, the first sequences with every attention map; and the accuracy on the training distribution."""
    hull, traits = shape.hull, slot.traits
    assert isinstance(hull, Recall)
    assert isinstance(shape.model, Transformer)
    plain = hull.without_repetition()
    at_test: Any = traits._replace(burst=jnp.float32(1), repeat=jnp.float32(0))
    data = plain.sample(slot.test, shape.tests, traits=at_test)
    output, attention = answers(shape, fused, slot.parameters, data)
    few = RecallBatch(*(part[:MAPS] for part in data))
    maps = shape.model.forward(lower(shape, slot.parameters), lower(shape, plain.encode(few)[0])).attention
    seen = {
        "loss": jnp.mean(plain.losses(output, data, at_test)),
        "accuracy": jnp.mean(plain.correct(output, data, at_test)),
        "entropy": _entropy(attention).mean(0),
    } | circuits(maps, few)
    if hull.repeats:
        repeated: Any = hull.sample(fold_in(slot.test, 1), shape.tests, traits=traits)  # pyright: ignore[reportArgumentType]
        right = hull.correct(answers(shape, fused, slot.parameters, repeated).output, repeated, traits)  # pyright: ignore[reportArgumentType]
        seen["accuracy_repeated"] = jnp.mean(right)
    return seen


def circuits(maps: Float[Array, "n layers heads length length"], data: RecallBatch) -> dict[str, Float[Array, "layers heads"]]:
    """The parts of an induction head, for sequences whose query stands in the context once (Fig. 17).

    - `copying`: attention from the relevant value to its key.
    - `selecting`: attention from the query to the relevant value.
    - `previous`: attention to the token before, mean over positions.
    - `induction`: attention to what followed earlier occurrences of a token, mean over the tokens that have occurred before.
    """
    value = 2 * jnp.argmax(data.relevant, 1) + 1
    rows = jnp.arange(len(value))
    earlier = jnp.tril(data.tokens[:, :, None] == data.tokens[:, None, :], -1)
    after = jnp.pad(earlier[:, :, :-1], ((0, 0), (0, 0), (1, 0)))
    again = jnp.any(earlier, -1)
    mass = jnp.einsum("nlhqk,nqk->nlhq", maps, after.astype(maps.dtype))
    return {
        "copying": maps[rows, :, :, value, value - 1].mean(0),
        "selecting": maps[rows, :, :, -1, value].mean(0),
        "previous": jnp.diagonal(maps, -1, 3, 4).mean((0, -1)),
        "induction": jnp.sum(mass, (0, 3)) / jnp.sum(again),
    }


def _entropy(weights: Float[Array, "*rows length"]) -> Float[Array, "*rows"]:
    shares = jnp.abs(weights) / jnp.sum(jnp.abs(weights), -1, keepdims=True)
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, 1e-30)), -1)
