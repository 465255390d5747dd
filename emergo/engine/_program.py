"""The compiled part: the state of a run, one step, and a chunk of steps with an evaluation, of many runs at once."""

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

from .._contract import Batch, Output, Tap
from .._errors import InputError
from .._identity import canonical
from .._json import digest
from .._pytree import fields
from .._random import Key, fold_in, raw, uniform
from ..models import Model
from ..tasks import Task
from ._config import Config, Precision, Probe, Run, Varying
from ._schedules import Tree, at_start, resolve, start_states, updated_states

TAPPED = 64  # test sequences that probes of taps see: whole attention patterns take length² numbers a head
# Streams of a run's key of data; those of steps and epochs are folded in once more.
_DATASET, _SHUFFLE, _DROPOUT = 0, 2, 3
PROBED = 2**31 - 1  # of the batches whose gradients probes see; no step has this number


@dataclasses.dataclass(frozen=True)
class Program:
    """What is compiled, but for the structure of the slots: settings that all runs of a stack share."""

    batch: int
    n_test: int
    n_train: int | None
    precision: Precision
    probes: tuple[Probe, ...] = ()
    variants: tuple[str, ...] = ()  # names of the further test distributions that some run has
    fused: int = 0  # how many runs one GPU trains together, idle slots included; its kernels may be used. Else 0

    @classmethod
    def of(cls, *configs: Config) -> "Program":
        """The program of configs that can share one."""
        first, names = configs[0], dict.fromkeys(name for config in configs for name in config.task.variants())
        return cls(first.batch, first.n_test, first.n_train, first.precision, first.probes, tuple(names))


class Slot(NamedTuple):
    """The state of one run; with a leading axis, of many."""

    params: PyTree
    opt_state: PyTree
    truth: PyTree
    varying: Varying  # with the run's own numbers and schedules
    schedule_states: tuple[PyTree, ...]
    data_key: Key
    test_key: Key
    step: Int[Array, ""]
    failed: Int[Array, ""]  # the step whose training loss was not finite, or -1
    dataset: Batch | None  # all training sequences, where they are finite
    prepared: tuple[Mapping[str, Array], ...]  # what probes that have `prepare` are given

    def now(self) -> Varying:
        """Task, model, optimizer and interventions as they are in this step."""
        return resolve(self.varying, self.step, self.schedule_states)


def as_arrays(tree: Tree) -> Tree:
    """The tree with numbers as arrays have them: whole ones in 32 bits, others in fp32."""
    return jax.tree.map(lambda x: np.int32(x) if isinstance(x, int) and not isinstance(x, bool) else np.float32(x), tree)


def in_program(config: Config, sizes: Mapping[str, int]) -> Varying:
    """The varying parts of a config in a program made for these sizes of the task, with arrays for numbers."""
    task, model = config.task.padded(sizes), config.model.padded({})
    for part in (task, model):
        for field in fields(part):
            if field.metadata.get("at_start"):  # only `truth` or `init` reads it
                object.__setattr__(part, field.name, field.default)
    return as_arrays((task, model, config.optimizer, config.interventions))


def largest_sizes(configs: Sequence[Config]) -> dict[str, int]:
    """The sizes of a program that holds all these configs: of the task's fields that may be padded, where the model can pad."""
    task, pads = configs[0].task, configs[0].model.pads
    names = [field.name for field in fields(task) if pads and field.metadata.get("padded")]
    return {name: max(getattr(config.task, name) for config in configs) for name in names}


def program_key(config: Config) -> Hashable:
    """Equal for configs that can share a program."""
    varying = in_program(config, dict.fromkeys(largest_sizes([config]), 0))
    return jax.tree.structure(varying), dataclasses.replace(Program.of(config), variants=())


def program_name(config: Config) -> str:
    """A digest that is equal for configs that can share a program, in every process."""
    varying = jax.tree.map(lambda _: 0.0, in_program(config, dict.fromkeys(largest_sizes([config]), 0)))
    probes = [_probe_name(probe) for probe in config.probes]
    return digest(canonical([*varying, config.batch, config.n_test, config.n_train, config.precision, probes]))


def _probe_name(probe: Any) -> Any:
    """Where a probe is defined and, where they are plain data, its options."""
    try:
        return canonical(probe)
    except InputError:  # it cannot be found again by its name, or has options that are no plain data
        named = probe if hasattr(probe, "__qualname__") else type(probe)
        return f"{named.__module__}.{named.__qualname__}"


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(precision: Precision, n_train: int | None, whole: tuple[Task, Model], varying: Varying, seed: Array) -> Slot:
    """`whole`: task and model with the fields that are read only here."""
    key = raw(jax.random.key(seed))
    states = start_states(varying)
    task, _, optimizer, _ = resolve(varying, jnp.int32(0), states)
    teacher, model = at_start(whole)
    truth = teacher.truth(user_key(fold_in(key, 0)))
    params = model.init(user_key(fold_in(key, 1)), task.spec)
    if precision == "fp64":  # the numbers of an fp32 run, as a start for 64 bits
        truth, params = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, (truth, params))
    data_key = fold_in(key, 2)
    dataset = None if n_train is None else task.batch(user_key(fold_in(data_key, _DATASET)), n_train, truth)
    opt_state = optimizer.build().init(params)
    return Slot(params, opt_state, truth, varying, states, data_key, fold_in(key, 3), jnp.int32(0), jnp.int32(-1), dataset, ())


def start(program: Program, run: Run, sizes: Mapping[str, int] | None = None) -> Slot:
    """A run before its first step, in a program made for these sizes; None: its own."""
    sizes, config = largest_sizes([run.config]) if sizes is None else sizes, run.config
    whole, varying = as_arrays((config.task.padded(sizes), config.model)), in_program(config, sizes)
    return _start(program.precision, program.n_train, whole, varying, np.uint32(run.seed))


def user_key(words: Key) -> Array:
    """A key as tasks and models get it: typed, of the generator that commutes with `vmap`."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def arithmetic(precision: Precision) -> contextlib.AbstractContextManager[None]:
    """A context in which arrays have the bits that a precision asks for; everything of a run happens in it."""
    return jax.enable_x64(precision == "fp64")


def products(precision: Precision) -> contextlib.AbstractContextManager[None]:
    """A context that sets the precision of products of fp32 arrays."""
    return jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "highest")


def lower(precision: Precision, tree: Tree) -> Tree:
    """Casts what enters matrix products."""
    if precision != "bf16":
        return tree
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, tree)


def forward(
    program: Program, slot: Slot, params: PyTree, batch: Batch, reads: Sequence[str] = (), key: Array | None = None
) -> Output:
    """The output of a run's model, by the fast way where nothing reads or writes at taps; `value` is at least fp32."""
    task, model, _, interventions = slot.now()
    tap = Tap(task.spec, key, slot.step, fused=program.fused, changes=interventions, reads=reads, batch=batch)
    way = model.apply if interventions or reads else model.fast
    output = way(lower(program.precision, params), lower(program.precision, batch.inputs), tap)
    value = output.value.astype(jnp.promote_types(output.value.dtype, jnp.float32))
    return output._replace(value=value, taps=tap.taken)


def draw(program: Program, slot: Slot) -> Batch:
    """The data of a step: fresh, or rows of the data set, in another order in every epoch; what fills no batch is left out."""
    if slot.dataset is None or program.n_train is None:
        task = slot.now()[0]
        return task.batch(user_key(task.data_key(slot.data_key, slot.step)), program.batch, slot.truth)
    size = min(program.batch, program.n_train)
    steps = program.n_train // size
    order = uniform(fold_in(fold_in(slot.data_key, _SHUFFLE), slot.step // steps), program.n_train, 1)[:, 0]
    rows = jnp.take(jnp.argsort(order), (slot.step % steps) * size + jnp.arange(size))
    return jax.tree.map(lambda part: part[rows], slot.dataset)


def gradient_of(
    program: Program, slot: Slot, task: Task, data: Batch, key: Array, lowered: PyTree = None
) -> tuple[Array, PyTree]:
    """The loss on a batch and its gradient. `task`: as it is in this step; `lowered`: the parameters as `lower` casts them,
    where they are at hand."""

    def mean_loss(params: PyTree) -> Array:
        return jnp.mean(task.loss(forward(program, slot, params, data, key=key), data))

    loss, gradient = jax.value_and_grad(mean_loss)(slot.params if lowered is None else lowered)
    return loss, jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, slot.params)


def half_gradients(program: Program, slot: Slot) -> tuple[PyTree, PyTree]:
    """Gradients of the loss on the two halves of a batch of training data that is drawn by a key of its own, each with its own
    dropout; of an odd number of sequences the last is left out."""
    slot = slot._replace(data_key=fold_in(slot.data_key, PROBED))
    batch, task = draw(program, slot), slot.now()[0]
    half = len(batch.inputs) // 2
    if half == 0:
        raise InputError("a probe of gradients halves a batch: it needs batches of at least 2 sequences, this run has 1")

    def of_half(index: int) -> PyTree:
        part = jax.tree.map(lambda values: values[index * half : (index + 1) * half], batch)
        key = fold_in(fold_in(fold_in(slot.data_key, _DROPOUT), slot.step), index)
        return gradient_of(program, slot, task, part, user_key(key))[1]

    return of_half(0), of_half(1)


def step(program: Program, slot: Slot, lowered: PyTree = None) -> tuple[Slot, Array]:
    """One step of one run, and its training loss. `lowered`: the parameters as `lower` casts them, where they are at hand."""
    data = draw(program, slot)
    task, _, optimizer, _ = slot.now()
    key = user_key(fold_in(fold_in(slot.data_key, _DROPOUT), slot.step))
    loss, gradient = gradient_of(program, slot, task, data, key, lowered)
    updates, opt_state = optimizer.build().update(gradient, slot.opt_state, slot.params)
    params = optax.apply_updates(slot.params, updates)
    failed = jnp.where((slot.failed < 0) & ~jnp.isfinite(loss), slot.step, slot.failed)
    return slot._replace(params=params, opt_state=opt_state, step=slot.step + 1, failed=failed), loss


def asks_gradients(probe: Probe) -> bool:
    return getattr(probe, "gradients", False)


def evaluate(program: Program, slot: Slot) -> dict[str, Array]:
    """What is measured of a run on its test set, by name."""

    def means(task: Task, output: Output, batch: Batch) -> dict[str, Array]:
        every = {"loss": task.loss(output, batch)} | dict(task.metrics(output, batch, slot.truth))
        return {name: jnp.mean(values) for name, values in every.items()}

    task = slot.now()[0]
    at_test = task.at_test()
    test = at_test.batch(user_key(slot.test_key), program.n_test, slot.truth)
    output = forward(program, slot, slot.params, test)
    curves = means(at_test, output, test)
    probes, prepared = (*task.probes(), *program.probes), iter(slot.prepared)
    reads = [name for probe in probes for name in getattr(probe, "reads", ())]
    few, tapped = test, output
    if reads:
        few = jax.tree.map(lambda part: part[:TAPPED], test)
        tapped = forward(program, slot, slot.params, few, reads=reads)
    gradients = (half_gradients(program, slot),) if any(asks_gradients(probe) for probe in probes) else ()
    for probe in probes:
        subject = (tapped, few) if getattr(probe, "reads", ()) else (output, test)
        further = gradients if asks_gradients(probe) else ()
        further += (next(prepared),) if hasattr(probe, "prepare") else ()
        curves |= probe(slot.params, *subject, slot.truth, slot.step, *further)
    for name, variant in task.variants().items():
        if name in program.variants:
            key = fold_in(slot.test_key, variant.fold) if variant.fold else slot.test_key
            other = variant.task.batch(user_key(key), program.n_test, slot.truth)
            measured = means(variant.task, forward(program, slot, slot.params, other), other)
            curves |= {f"{metric}_{name}": value for metric, value in measured.items()}
    return curves


def chunk(program: Program, slots: Slot, count: Int[Array, ""], due: Int[Array, " slots"]) -> tuple[Slot, dict[str, Array]]:
    """`count` steps of all runs, then an evaluation, with the sum of the training losses. Schedules react to it where a run is
    at the step that its own evaluation is due at."""

    def copy(slots: Slot) -> PyTree:  # from one step to the next: the optimizer's pass over parameters can write them cast
        return lower(program.precision, slots.params) if program.precision == "bf16" else None

    def body(_: Array, carry: tuple[Slot, PyTree, Array]) -> tuple[Slot, PyTree, Array]:
        slots, lowered, total = carry
        slots, loss = jax.vmap(functools.partial(step, program))(slots, lowered)
        return slots, copy(slots), total + loss

    dtype = jnp.float64 if program.precision == "fp64" else jnp.float32
    begin = (slots, copy(slots), jnp.zeros(slots.step.shape, dtype))
    slots, _, total = jax.lax.fori_loop(0, count, body, begin)
    metrics = jax.vmap(functools.partial(evaluate, program))(slots)
    if slots.schedule_states:
        states = jax.vmap(updated_states)(slots.varying, slots.schedule_states, metrics)
        is_due = slots.step == due

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(is_due.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        slots = slots._replace(schedule_states=jax.tree.map(chosen, states, slots.schedule_states))
    return slots, metrics | {"train_loss": total}


@functools.partial(jax.jit, donate_argnums=0)
def insert(slots: Slot, index: Int[Array, ""], slot: Slot) -> Slot:
    """Puts a run into a slot of the stack."""
    return jax.tree.map(lambda all, one: all.at[index].set(one), slots, slot)
