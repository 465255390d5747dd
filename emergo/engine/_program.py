"""The compiled part: one step, a chunk of steps and an evaluation, of many runs of one shape."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._random import Key, fold_in, raw
from ..models import Parameters, Transformer
from ..tasks import SingleLocation, Traits, Truth
from ._config import Config, Optimizer, Precision, Run

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a program is compiled for. Runs of one shape differ in seed, learning rate, dim, burst and repeat alone."""

    hull: SingleLocation
    """The task with the largest dim and burst."""
    model: Transformer
    optimizer: Optimizer
    """With a learning rate of 1: each run scales its own updates."""
    batch: int
    tests: int
    precision: Precision

    @classmethod
    def of(cls, configs: Iterable[Config]) -> "Shape":
        """The shape that holds all these configs, which agree in all else."""
        configs = list(configs)
        tasks = [c.task for c in configs]
        hull = dataclasses.replace(
            tasks[0],
            dim=max(t.dim for t in tasks),
            burst=max(t.burst for t in tasks),
            repeat=float(any(t.repeat for t in tasks)),
        )
        first = configs[0]
        optimizer = dataclasses.replace(first.optimizer, learning_rate=1.0)
        return cls(hull, first.model, optimizer, first.batch, first.tests, first.precision)


def family(config: Config) -> Any:
    """Configs of one family can share a program."""
    return Shape.of([dataclasses.replace(config, task=dataclasses.replace(config.task, dim=1, burst=1, repeat=0.0))])


class Slot(NamedTuple):
    """The state of one run, or with a leading axis of many."""

    parameters: Parameters
    memory: Any
    """The optimizer's."""
    truth: Truth
    traits: Traits
    rate: Float[Array, ""]
    stream: Key
    """Of the training data."""
    test: Key
    step: Int[Array, ""]
    failed: Int[Array, ""]
    """The step whose loss was not finite, or -1."""


def transform(optimizer: Optimizer) -> Any:
    """The optimizer without its learning rate."""
    if optimizer.method == "sgd":
        return optax.trace(optimizer.momentum) if optimizer.momentum else optax.identity()
    adam = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps)
    return adam if optimizer.method == "adam" else optax.chain(adam, optax.add_decayed_weights(optimizer.weight_decay))


@functools.partial(jax.jit, static_argnums=0)
def _start(shape: Shape, seed: Array, traits: Traits, rate: Array) -> Slot:
    hull = shape.hull
    key = raw(jax.random.key(seed))
    truth = hull.truth(fold_in(key, 0), traits)
    used = (traits.dim, traits.dim)
    parameters = shape.model.init(fold_in(key, 1), hull.length, hull.dim, hull.dim, hull.indicator, used)
    memory = transform(shape.optimizer).init(parameters)
    return Slot(parameters, memory, truth, traits, rate, fold_in(key, 2), fold_in(key, 3), jnp.int32(0), jnp.int32(-1))


def start(shape: Shape, run: Run) -> Slot:
    """A run before its first step."""
    task = run.config.task
    traits = Traits(jnp.int32(task.dim), jnp.int32(task.burst), jnp.float32(task.repeat))
    return _start(shape, jnp.uint32(run.seed), traits, jnp.float32(run.config.optimizer.learning_rate))


def blank(shape: Shape) -> Slot:
    """Some run of this shape, for its structure."""
    return _start(shape, jnp.uint32(0), Traits(jnp.int32(1), jnp.int32(1), jnp.float32(0)), jnp.float32(1))


@contextlib.contextmanager
def products(precision: Precision):
    """The precision of products of fp32 arrays inside the block."""
    with jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "highest"):
        yield


def _lower(shape: Shape, tree: Any) -> Any:
    """Casts what enters matrix products."""
    if shape.precision != "bf16":
        return tree
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, tree)


def _losses(shape: Shape, fused: bool, parameters: Parameters, data: Any) -> tuple[Float[Array, ""], Array]:
    """Half the mean squared error of a batch, and the attention of the last position."""
    tokens, marks = _lower(shape, (data.tokens, data.marks))
    low = _lower(shape, parameters)
    seen = shape.model.watch(low, tokens, marks, fused)
    error = seen.output.astype(jnp.float32) - data.target
    return 0.5 * jnp.mean(jnp.sum(error**2, -1)), seen.attention


def _step(shape: Shape, fused: bool, slot: Slot) -> tuple[Slot, Float[Array, ""]]:
    data = shape.hull.sample(fold_in(slot.stream, slot.step), shape.batch, slot.truth, slot.traits)
    (loss, _), gradient = jax.value_and_grad(lambda p: _losses(shape, fused, p, data), has_aux=True)(slot.parameters)
    updates, memory = transform(shape.optimizer).update(gradient, slot.memory, slot.parameters)
    parameters = jax.tree.map(lambda p, u: p - slot.rate * u, slot.parameters, updates)
    failed = jnp.where((slot.failed < 0) & ~jnp.isfinite(loss), slot.step, slot.failed)
    return slot._replace(parameters=parameters, memory=memory, step=slot.step + 1, failed=failed), loss


def _evaluate(shape: Shape, fused: bool, slot: Slot) -> dict[str, Array]:
    """What is watched, on the fixed test set: no cross-sample repetition, the run's burst (and, where that is not 1, one)."""
    plain = slot.traits._replace(repeat=jnp.float32(0))
    data = shape.hull.sample(slot.test, shape.tests, slot.truth, plain)
    loss, attention = _losses(shape, fused, slot.parameters, data)
    on_relevant = jnp.sum(jnp.where(data.relevant[:, None, None], attention, 0), -1)
    shares = jnp.abs(attention) / jnp.sum(jnp.abs(attention), -1, keepdims=True)
    entropy = -jnp.sum(shares * jnp.log(jnp.maximum(shares, 1e-30)), -1)
    path = shape.model.value_path(slot.parameters)
    norms = jnp.linalg.norm(path) * jnp.linalg.norm(slot.truth.weights)
    seen = {
        "loss": loss,
        "attention": on_relevant.mean(0),
        "entropy": entropy.mean(0),
        "alignment": jnp.sum(path * slot.truth.weights.T) / norms,
    }
    if shape.hull.burst > 1 and shape.hull.position == "random":
        single = shape.hull.sample(slot.test, shape.tests, slot.truth, plain._replace(burst=jnp.int32(1)))
        seen["loss_single"] = _losses(shape, fused, slot.parameters, single)[0]
    return seen


def chunk(shape: Shape, fused: bool, slots: Slot, count: Int[Array, ""]) -> tuple[Slot, dict[str, Array]]:
    """`count` steps of all runs, then an evaluation. The sum of the training losses is among what is seen."""

    def body(_: Any, carry: tuple[Slot, Array]) -> tuple[Slot, Array]:
        slots, total = carry
        slots, loss = jax.vmap(functools.partial(_step, shape, fused))(slots)
        return slots, total + loss

    slots, total = jax.lax.fori_loop(0, count, body, (slots, jnp.zeros_like(slots.rate)))
    return slots, jax.vmap(functools.partial(_evaluate, shape, fused))(slots) | {"train_loss": total}


@functools.partial(jax.jit, donate_argnums=0)
def insert(slots: Slot, index: Int[Array, ""], slot: Slot) -> Slot:
    """Puts a run into a place of the stack."""
    return jax.tree.map(lambda all, one: all.at[index].set(one), slots, slot)


@jax.jit
def gather(slots: Slot, indices: Int[Array, " places"]) -> Slot:
    """The runs at these places."""
    return jax.tree.map(lambda all: all[indices], slots)
