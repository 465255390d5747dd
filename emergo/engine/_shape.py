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
from ..models import MinimalAttention, Model, Parameters, Transformer, Watched
from ..tasks import ChainTraits, ChainTruth, MarkovChain, RecallTraits, RecallTruth, Supply, Task, Traits, Truth
from ._chain import Restricted, dropout_key, predictions
from ._config import Config, Optimizer, Precision, Run

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a program is compiled for. Runs of one shape differ in seed, learning rate, the start of their parameters and the
    traits of their task alone, and runs on a Markov chain in its importance."""

    hull: Task
    """A task that stands for those of all runs."""
    model: Model
    optimizer: Optimizer
    """With a learning rate of 1: each run scales its own updates."""
    batch: int
    tests: int
    precision: Precision
    samples: int | None = None
    windows: tuple[int, ...] | None = None

    @classmethod
    def of(cls, configs: Sequence[Config]) -> "Shape":
        """The shape that holds all these configs, which agree in all else."""
        first = configs[0]
        hull = first.task.hull([c.task for c in configs[1:]])  # pyright: ignore[reportArgumentType]
        optimizer = dataclasses.replace(first.optimizer, learning_rate=1.0)
        sizes = (first.batch, first.tests, first.precision, first.samples, first.windows)
        return cls(hull, _unstarted(first.model), optimizer, *sizes)

    @property
    def supply(self) -> Supply:
        """Where the batches of a Markov chain come from."""
        return Supply(self.samples, self.batch)


def _unstarted(model: Model) -> Model:
    """The model without what is of meaning at the start only."""
    if isinstance(model, MinimalAttention):
        return dataclasses.replace(model, start="small", scale=0.0)
    return dataclasses.replace(model, **({"initial": "pytorch"} if isinstance(model, Transformer) else {"start": None}))


def family(config: Config) -> Any:
    """Configs of one family can share a program."""
    return Shape.of([dataclasses.replace(config, task=config.task.family())])


class Slot(NamedTuple):
    """The state of one run, or with a leading axis of many."""

    parameters: Any
    """The model's."""
    memory: Any
    """The optimizer's."""
    truth: Truth | RecallTruth | ChainTruth
    traits: Traits | RecallTraits | ChainTraits
    rate: Float[Array, ""]
    stream: Key
    """Of the training data."""
    test: Key
    step: Int[Array, ""]
    failed: Int[Array, ""]
    """The step whose loss was not finite, or -1."""
    dataset: Int[Array, "samples length"] | None = None
    """All training data, where that is finite."""
    restricted: Restricted | None = None
    """Of a Markov chain, what it is compared with."""
    window: Int[Array, ""] | None = None
    """Of a predictor that sees a part of the context, how many tokens."""


def transform(optimizer: Optimizer) -> Any:
    """The optimizer without its learning rate."""
    if optimizer.clip is not None:
        rest = dataclasses.replace(optimizer, clip=None)
        return optax.chain(optax.clip_by_global_norm(optimizer.clip), transform(rest))
    if optimizer.method == "sgd":
        return optax.trace(optimizer.momentum) if optimizer.momentum else optax.identity()
    adam = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps)
    return adam if optimizer.method == "adam" else optax.chain(adam, optax.add_decayed_weights(optimizer.weight_decay))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(shape: Shape, model: Model, seed: Array, traits: Any, rate: Array) -> Slot:
    hull = shape.hull
    assert isinstance(model, Transformer)
    assert not isinstance(hull, MarkovChain)
    key = raw(jax.random.key(seed))
    truth = hull.truth(fold_in(key, 0), traits)
    used = (traits[0], traits[0])  # features and outputs: the dim, or the vocabulary
    parameters = model.init(fold_in(key, 1), hull.length, hull.inputs, hull.outputs, hull.marked, used)
    memory = transform(shape.optimizer).init(parameters)
    return Slot(parameters, memory, truth, traits, rate, fold_in(key, 2), fold_in(key, 3), jnp.int32(0), jnp.int32(-1))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start_chain(shape: Shape, model: Model, seed: Array, strengths: Array, scale: Array, rate: Array) -> Slot:
    hull = shape.hull
    assert isinstance(hull, MarkovChain)
    assert not isinstance(model, Transformer)
    key = raw(jax.random.key(seed))
    truth = ChainTruth(strengths[:, None, None] * hull.truth(fold_in(key, 0)).maps)
    at = fold_in(key, 1)
    parameters = model.init(at, scale) if isinstance(model, MinimalAttention) else model.init(at)
    if shape.precision == "fp64":  # the numbers of an fp32 run, as a start for 64 bits
        truth, parameters, rate = jax.tree.map(lambda x: x.astype(jnp.float64), (truth, parameters, rate))
    memory, stream = transform(shape.optimizer).init(parameters), fold_in(key, 2)
    slot = Slot(parameters, memory, truth, hull.traits, rate, stream, fold_in(key, 3), jnp.int32(0), jnp.int32(-1))
    return slot._replace(dataset=shape.supply.dataset(hull, stream, truth))


def start(shape: Shape, run: Run) -> Slot:
    """A run before its first step."""
    rate = jnp.float32(run.config.optimizer.learning_rate)
    task, model = run.config.task, run.config.model
    if isinstance(task, MarkovChain):
        scale = jnp.float32(getattr(model, "scale", 0.0))
        unscaled = dataclasses.replace(model, scale=0.0) if isinstance(model, MinimalAttention) else model
        strengths = jnp.asarray(task.groups.strengths, jnp.float32)
        return _start_chain(shape, unscaled, jnp.uint32(run.seed), strengths, scale, rate)
    return _start(shape, model, jnp.uint32(run.seed), _traced(run.config.task), rate)


def blank(shape: Shape) -> Slot:
    """Some run of this shape, for its structure."""
    if isinstance(shape.hull, MarkovChain):
        strengths, one = jnp.ones(shape.hull.groups.count, jnp.float32), jnp.float32(1)
        slot = _start_chain(shape, shape.model, jnp.uint32(0), strengths, one, one)
        return slot if shape.windows is None else slot._replace(restricted=stacked(slot, shape.windows))
    return _start(shape, shape.model, jnp.uint32(0), _traced(shape.hull), jnp.float32(1))


def stacked(slot: Slot, windows: Sequence[int]) -> Restricted:
    """The parameters of a run, once for each window."""
    many = jax.tree.map(lambda p: jnp.repeat(p[None], len(windows), 0), slot.parameters)
    return Restricted(many, jnp.asarray(windows, jnp.int32))


def _traced(task: Task) -> Any:
    """The traits of a task as arrays."""
    return type(task.traits)(*(jnp.int32(t) if isinstance(t, int) else jnp.float32(t) for t in task.traits))


def arithmetic(precision: Precision) -> contextlib.AbstractContextManager[None]:
    """A context in which arrays have the bits that a precision asks for; everything of a run happens in it."""
    return jax.enable_x64(True) if precision == "fp64" else contextlib.nullcontext()


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


def draw(shape: Shape, slot: Slot) -> Any:
    """The data of a step."""
    if isinstance(shape.hull, MarkovChain):
        assert isinstance(slot.truth, ChainTruth)
        return shape.supply.at(shape.hull, slot.stream, slot.step, slot.truth, slot.dataset)
    return shape.hull.sample(fold_in(slot.stream, slot.step), shape.batch, slot.truth, slot.traits)  # pyright: ignore[reportArgumentType]


def training_loss(shape: Shape, fused: bool, parameters: Any, data: Any, slot: Slot) -> Float[Array, ""]:
    """What a step lowers: a mean over its data."""
    if isinstance(shape.hull, MarkovChain):
        assert not isinstance(shape.model, Transformer)
        key = dropout_key(slot.stream, slot.step)
        return shape.hull.cross_entropy(
            data, predictions(shape.hull, shape.model, parameters, data, key, slot.window, slot.step)
        )
    return mean_loss(shape, fused, parameters, data, slot.traits)


def answers(shape: Shape, fused: bool, parameters: Parameters, data: Any) -> Watched:
    """What a model puts out at the last position, and where it looks."""
    assert isinstance(shape.model, Transformer)
    assert not isinstance(shape.hull, MarkovChain)
    tokens, marks = lower(shape, shape.hull.encode(data))
    return shape.model.watch(lower(shape, parameters), tokens, marks, fused)


def mean_loss(shape: Shape, fused: bool, parameters: Parameters, data: Any, traits: Any) -> Float[Array, ""]:
    assert not isinstance(shape.hull, MarkovChain)
    return jnp.mean(shape.hull.losses(answers(shape, fused, parameters, data).output, data, traits))
