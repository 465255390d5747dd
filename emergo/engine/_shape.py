"""What a program is compiled for, and the state of a run in it."""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._random import Key, fold_in, raw
from ..models import Parameters, Transformer, Watched
from ..tasks import RecallTraits, RecallTruth, Task, Traits, Truth
from ._config import Config, Optimizer, Precision, Run

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a program is compiled for. Runs of one shape differ in seed, learning rate and the traits of their task alone."""

    hull: Task
    """A task that stands for those of all runs."""
    model: Transformer
    optimizer: Optimizer
    """With a learning rate of 1: each run scales its own updates."""
    batch: int
    tests: int
    precision: Precision

    @classmethod
    def of(cls, configs: Sequence[Config]) -> "Shape":
        """The shape that holds all these configs, which agree in all else."""
        first = configs[0]
        hull = first.task.hull([c.task for c in configs[1:]])  # pyright: ignore[reportArgumentType]
        optimizer = dataclasses.replace(first.optimizer, learning_rate=1.0)
        return cls(hull, first.model, optimizer, first.batch, first.tests, first.precision)


def family(config: Config) -> Any:
    """Configs of one family can share a program."""
    return Shape.of([dataclasses.replace(config, task=config.task.family())])


class Slot(NamedTuple):
    """The state of one run, or with a leading axis of many."""

    parameters: Parameters
    memory: Any
    """The optimizer's."""
    truth: Truth | RecallTruth
    traits: Traits | RecallTraits
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
def _start(shape: Shape, seed: Array, traits: Any, rate: Array) -> Slot:
    hull = shape.hull
    key = raw(jax.random.key(seed))
    truth = hull.truth(fold_in(key, 0), traits)
    used = (traits[0], traits[0])  # features and outputs: the dim, or the vocabulary
    parameters = shape.model.init(fold_in(key, 1), hull.length, hull.inputs, hull.outputs, hull.marked, used)
    memory = transform(shape.optimizer).init(parameters)
    return Slot(parameters, memory, truth, traits, rate, fold_in(key, 2), fold_in(key, 3), jnp.int32(0), jnp.int32(-1))


def start(shape: Shape, run: Run) -> Slot:
    """A run before its first step."""
    rate = jnp.float32(run.config.optimizer.learning_rate)
    return _start(shape, jnp.uint32(run.seed), _traced(run.config.task), rate)


def blank(shape: Shape) -> Slot:
    """Some run of this shape, for its structure."""
    return _start(shape, jnp.uint32(0), _traced(shape.hull), jnp.float32(1))


def _traced(task: Task) -> Any:
    """The traits of a task as arrays."""
    return type(task.traits)(*(jnp.int32(t) if isinstance(t, int) else jnp.float32(t) for t in task.traits))


@contextlib.contextmanager
def products(precision: Precision):
    """The precision of products of fp32 arrays inside the block."""
    with jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "highest"):
        yield


def lower(shape: Shape, tree: Any) -> Any:
    """Casts what enters matrix products."""
    if shape.precision != "bf16":
        return tree
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, tree)


def answers(shape: Shape, fused: bool, parameters: Parameters, data: Any) -> Watched:
    """What a model puts out at the last position, and where it looks."""
    tokens, marks = lower(shape, shape.hull.encode(data))
    return shape.model.watch(lower(shape, parameters), tokens, marks, fused)


def mean_loss(shape: Shape, fused: bool, parameters: Parameters, data: Any, traits: Any) -> Float[Array, ""]:
    return jnp.mean(shape.hull.losses(answers(shape, fused, parameters, data).output, data, traits))
