"""One training step, and the program that takes many steps of many runs.

Read this file from top to bottom to follow a run through training:

1. `start` draws the initial state of a run, a `Slot`.
2. `step` draws a batch, computes the loss and its gradient, and updates the parameters.
3. `evaluate` measures a run on its test set.
4. `chunk` takes several steps of a stack of runs, then evaluates all of them. This is the function
   that is compiled (`_cost.py`), and that the scheduler calls (`_scheduler.py`).

The first three are written for one run; `chunk` applies `vmap` to them.

**Random numbers.** All keys of a run derive from its seed. `fold_in(key, 0)` draws the truth,
`fold_in(key, 1)` the parameters, `fold_in(key, 2)` is the data key and `fold_in(key, 3)` the test
key. What a step draws depends only on the data key and the number of the step. So the numbers of a
run depend neither on interruptions nor on the runs in the other slots.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

from ..core.contract import Batch, Output, Tap
from ..core.errors import InputError, naming
from ..core.identity import canonical
from ..core.json import digest
from ..core.pytree import fields
from ..core.random import Key, fold_in, permuted, raw, uniform
from ..models import Model
from ..models.fast import FastPath, find_path, paths_are_on
from ..tasks import Task
from ._config import Config, Precision, Probe, Run, Varying
from ._optimizer import varying_options
from ._schedules import (
    Tree,
    at_start,
    resolve,
    schedules_by_name,
    start_states,
    updated_states,
)

TAPPED = 64
"""Test sequences that probes of taps see: attention patterns take length² numbers per head."""
# Numbers that are folded into the data key.
_DATASET = 0
_SHUFFLE = 2
_DROPOUT = 3
_SPLIT = 4
PROBED = 2**31 - 1  # batches for gradient probes; larger than the number of any step


@dataclasses.dataclass(frozen=True)
class Program:
    """The static settings of a compiled program, shared by all runs of a stack."""

    batch: int
    n_test: int
    n_train: int | None
    precision: Precision
    probes: tuple[Probe, ...] = ()
    variants: tuple[str, ...] = ()  # names of further test distributions, of any run
    injected: tuple[str, ...] = ()  # options of the optimizer that are numbers of a run
    rows: int = 0  # sequences in the data that runs share; 0 without such data
    stack_size: int = 0  # runs that a GPU trains together, including idle slots; 0 on a CPU
    fast: bool = True  # False if optimised paths are switched off

    @classmethod
    def of(cls, *configs: Config) -> "Program":
        """Return the program of configs that can share one."""
        first = configs[0]
        names = dict.fromkeys(name for config in configs for name in config.task.variants())
        injected = varying_options([config.optimizer for config in configs])
        rows = 0
        n_train = first.n_train
        if first.task.finite:
            rows = count_rows(first)
            n_train = n_train or rows - first.n_test
        settings = (first.batch, first.n_test, n_train, first.precision, first.probes)
        return cls(*settings, tuple(names), injected, rows, fast=paths_are_on())


class Slot(NamedTuple):
    """The state of one run. In a stack, every array has a leading axis of runs."""

    params: PyTree
    opt_state: PyTree
    truth: PyTree
    varying: Varying  # task, model, optimizer, ... with the run's numbers
    schedule_states: tuple[PyTree, ...]
    data_key: Key
    test_key: Key
    step: Int[Array, ""]
    failed: Int[Array, ""]  # first step whose training loss was not finite, or -1
    dataset: Batch | None  # all training sequences, if the run has a finite data set
    prepared: tuple[Mapping[str, Array], ...]  # arrays from the `prepare` methods of probes
    # Data that all runs of a program share. None in stacks: a step receives it separately.
    shared: PyTree = None

    def now(self) -> Varying:
        """Return the varying parts with the values that schedules have at this step."""
        return resolve(self.varying, self.step, self.schedule_states)


# Sharing of programs. Runs of one program may differ in their per-run numbers, which are arrays of
# the slot, and in sizes of the task that can be padded. Everything else must be equal.


def as_arrays(tree: Tree) -> Tree:
    """Replace Python numbers by arrays: int32 for integers, float32 for floats."""
    return jax.tree.map(
        lambda x: np.int32(x) if isinstance(x, int) and not isinstance(x, bool) else np.float32(x),
        tree,
    )


def in_program(config: Config, sizes: Mapping[str, int], injected: Sequence[str] = ()) -> Varying:
    """Return the varying parts of a config, padded to these sizes of the task.

    Fields that only `truth` or `init` reads are reset to their defaults, so that runs that differ
    in them share a program.

    **Arguments:**

    - `injected`: options of the optimizer that become numbers of the run.
    """
    task = config.task.padded(sizes)
    model = config.model.padded({})
    for part in (task, model):
        for field in fields(part):
            if field.metadata.get("at_start"):
                object.__setattr__(part, field.name, field.default)
    optimizer = config.optimizer.injecting(injected) if injected else config.optimizer
    return as_arrays(config.varying._replace(task=task, model=model, optimizer=optimizer))


def largest_sizes(configs: Sequence[Config]) -> dict[str, int]:
    """Return the sizes to which a program pads; empty if the model cannot be padded."""
    task = configs[0].task
    if not configs[0].model.pads or task.finite or task.has_corpus:
        return {}
    names = [field.name for field in fields(task) if field.metadata.get("padded")]
    return {name: max(getattr(config.task, name) for config in configs) for name in names}


def program_name(config: Config) -> str:
    """Return a digest that is equal for configs that can share a program, in every process."""
    no_sizes = dict.fromkeys(largest_sizes([config]), 0)
    varying = in_program(config, no_sizes)
    fixed = config.optimizer.fixed()
    # Numeric options are compared when the runs of a program are known (`Program.injected`).
    same = {name: value for name, value in fixed.items() if value != "number"}
    if config.optimizer.options:
        varying = varying._replace(optimizer=config.optimizer.replace(options=same))
    varying = jax.tree.map(lambda _: 0.0, varying)
    probes = [_probe_name(probe) for probe in config.probes]
    numbers = [config.batch, config.n_test, config.n_train, config.precision, probes]
    stop = [] if varying.stop is None else [varying.stop]
    options = [] if same == fixed else [sorted(fixed.keys() - same)]
    return digest(canonical([*varying[:4], *numbers, *stop, *options]))


def _probe_name(probe: Any) -> Any:
    """Return the location of a probe's definition, and its options if they are plain data."""
    try:
        return canonical(probe)
    except InputError:
        named = probe if hasattr(probe, "__qualname__") else type(probe)
        return f"{named.__module__}.{named.__qualname__}"


# Precision.


def arithmetic(precision: Precision) -> contextlib.AbstractContextManager[None]:
    """Return a context that sets whether arrays have 64 bits. All work on a run happens in it."""
    return jax.enable_x64(precision == "fp64")


def products(precision: Precision) -> contextlib.AbstractContextManager[None]:
    """Return a context that sets the precision of products of fp32 arrays."""
    return jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "highest")


def lower(precision: Precision, tree: Tree) -> Tree:
    """Cast the operands of matrix products to bf16 in precision bf16."""
    return _cast(tree, jnp.bfloat16) if precision == "bf16" else tree


def widen(precision: Precision, tree: Tree) -> Tree:
    """Cast fp32 arrays to fp64 in precision fp64."""
    return _cast(tree, np.float64) if precision == "fp64" else tree


def _cast(tree: Tree, dtype: Any) -> Tree:
    return jax.tree.map(lambda x: x.astype(dtype) if x.dtype == np.float32 else x, tree)


def user_key(words: Key) -> Array:
    """Return the typed key that tasks and models receive; its generator commutes with `vmap`."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")


# Data that runs share.


class _PerRunNumber:
    """Takes the place of numbers of a run where `Task.data` must not depend on them."""

    def __repr__(self) -> str:
        return "a number that differs between runs"


@functools.lru_cache(maxsize=4)
def _shared_data(structure: Any) -> PyTree:
    task: Task = jax.tree.unflatten(structure, [_PerRunNumber()] * structure.num_leaves)
    where = f"{type(task).__name__}.data"
    with naming(where):
        data = jax.tree.map(np.asarray, task.data())
        rows = 2 if task.has_corpus else task.rows(data)
    if not isinstance(rows, int) or rows < 2:
        raise InputError(f"{where} must hold at least 2 sequences, got {rows!r}")
    return data


def shared_data(task: Task) -> PyTree:
    """Return the data that all runs with the static fields of a task share; None without data."""
    has_data = task.finite or task.has_corpus
    return _shared_data(jax.tree.structure(task)) if has_data else None


def count_rows(config: Config) -> int:
    """Return the number of sequences of a finite task; check that they suffice."""
    rows = config.task.rows(shared_data(config.task))
    if (config.n_train or 1) + config.n_test > rows:
        raise InputError(
            f"{type(config.task).__name__} has {rows} sequences, too few for n_train "
            f"{config.n_train or 1} and n_test {config.n_test}"
        )
    return rows


def abstract_slot(program: Program, run: Run) -> Slot:
    """Return the shapes of a run before its first step, with the data that runs share."""
    slot = jax.eval_shape(lambda: start(program, run))
    return slot._replace(shared=shapes_of(shared_data(run.config.task)))


def shapes_of(tree: PyTree) -> PyTree:
    """Return the shapes that arrays of NumPy have on a device."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), tree
    )


# The start of a run.


def start(program: Program, run: Run, sizes: Mapping[str, int] | None = None) -> Slot:
    """Draw the state of a run before its first step.

    **Arguments:**

    - `sizes`: sizes of the task to which the program pads; None: the run's own.
    """
    config = run.config
    sizes = largest_sizes([config]) if sizes is None else sizes
    # `truth` and `init` read fields that the program does not contain (see `in_program`).
    whole = as_arrays((config.task.padded(sizes), config.model))
    varying = in_program(config, sizes, program.injected)
    n_train = None if program.rows else program.n_train
    return _start(program.precision, n_train, whole, varying, np.uint32(run.seed))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(
    precision: Precision,
    n_train: int | None,
    whole: tuple[Task, Model],
    varying: Varying,
    seed: Array,
) -> Slot:
    key = raw(jax.random.key(seed))
    states = start_states(varying)
    task, _, optimizer, *_ = resolve(varying, jnp.int32(0), states)
    teacher, model = at_start(whole)
    truth = teacher.truth(user_key(fold_in(key, 0)))
    params = model.init(user_key(fold_in(key, 1)), task.spec)
    truth, params = widen(precision, (truth, params))
    data_key = fold_in(key, 2)
    dataset = None
    if n_train is not None:
        dataset = task.batch(user_key(fold_in(data_key, _DATASET)), n_train, truth)
    return Slot(
        params=params,
        opt_state=optimizer.build().init(params),
        truth=truth,
        varying=varying,
        schedule_states=states,
        data_key=data_key,
        test_key=fold_in(key, 3),
        step=jnp.int32(0),
        failed=jnp.int32(-1),
        dataset=dataset,
        prepared=(),
    )


# One step of one run.


def draw(program: Program, slot: Slot) -> Batch:
    """Draw the batch of a step.

    The sequences are fresh, or drawn by the task from its corpus, or rows of the finite data set if
    the run has one, in a new order in every epoch; rows that do not fill a batch are left out of
    the epoch.
    """
    if slot.varying.task.has_corpus:
        task = slot.now().task
        key = user_key(slot.data_key)
        return task.from_corpus(slot.shared, key, slot.step, program.batch, slot.truth)
    if program.rows and program.n_train is not None:
        size = min(program.batch, program.n_train)
        steps = program.n_train // size
        epoch_key = fold_in(fold_in(slot.data_key, _SHUFFLE), slot.step // steps)
        place = (slot.step % steps) * size + jnp.arange(size)
        return pick(program, slot, slot.now().task, permuted(epoch_key, program.n_train, place))
    if slot.dataset is None or program.n_train is None:
        task = slot.now()[0]
        key = user_key(task.data_key(slot.data_key, slot.step))
        return task.batch(key, program.batch, slot.truth)
    size = min(program.batch, program.n_train)
    steps = program.n_train // size
    epoch_key = fold_in(fold_in(slot.data_key, _SHUFFLE), slot.step // steps)
    order = jnp.argsort(uniform(epoch_key, program.n_train, 1)[:, 0])
    rows = jnp.take(order, (slot.step % steps) * size + jnp.arange(size))
    return jax.tree.map(lambda part: part[rows], slot.dataset)


def pick(program: Program, slot: Slot, task: Task, place: Int[Array, " n"]) -> Batch:
    """Return sequences of the shared data by their place in a random order of the run's own.

    The first `n_train` places are the training set. The test set follows, so the two are disjoint.
    """
    rows = permuted(fold_in(slot.test_key, _SPLIT), program.rows, place)
    return task.pick(slot.shared, rows)


def held_out(program: Program, slot: Slot, task: Task, fold: int = 0) -> Batch:
    """Return the test set of a run; `task` defines its distribution."""
    if program.rows and program.n_train is not None:
        return pick(program, slot, task, program.n_train + jnp.arange(program.n_test))
    key = user_key(fold_in(slot.test_key, fold) if fold else slot.test_key)
    if task.has_corpus:
        return task.from_corpus(slot.shared, key, None, program.n_test, slot.truth)
    return task.batch(key, program.n_test, slot.truth)


def forward(
    program: Program,
    slot: Slot,
    params: PyTree,
    batch: Batch,
    reads: Sequence[str] = (),
    key: Array | None = None,
    path: FastPath | Literal["fastest"] | None = "fastest",
) -> Output:
    """Compute a run's model on a batch.

    `apply` defines the model. Its optimised path, if the table in `models/fast` has one, is used
    unless something reads or writes at taps. `_verify.py` compares the two before training.

    **Arguments:**

    - `params`: parameters, in any precision.
    - `reads`: names of taps whose values are returned in `taps`.
    - `key`: a random key for dropout; None in evaluations.
    - `path`: an entry of the table in `models/fast`, or None for `apply`.

    **Returns:** the output; `value`, if the model returns one, is at least fp32.
    """
    task, model, _, interventions, _ = slot.now()
    tap = Tap(task.spec, key, slot.step, changes=interventions, reads=reads, batch=batch)
    params = lower(program.precision, params)
    inputs = lower(program.precision, batch.inputs)
    if path == "fastest":
        path = None if interventions or reads else find_path(model, task.spec)
    if path is None:
        output = model.apply(params, inputs, tap)
    else:
        output = path.forward(model, params, inputs, tap, program.stack_size)
    value = output.value
    if value is not None:
        value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
    return output._replace(value=value, taps=tap.taken)


def gradient_of(
    program: Program, slot: Slot, task: Task, data: Batch, key: Array, lowered: PyTree = None
) -> tuple[Array, PyTree]:
    """Compute the mean loss on a batch, and its gradient.

    **Arguments:**

    - `task`: the task as it is in this step.
    - `lowered`: the parameters cast by `lower`, or None.
    """

    def mean_loss(params: PyTree) -> Array:
        return jnp.mean(task.loss(forward(program, slot, params, data, key=key), data))

    loss, gradient = jax.value_and_grad(mean_loss)(slot.params if lowered is None else lowered)
    return loss, jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, slot.params)


def step(program: Program, slot: Slot, lowered: PyTree = None) -> tuple[Slot, Array]:
    """Take one training step of one run.

    **Arguments:**

    - `lowered`: the parameters cast by `lower`, or None.

    **Returns:** the new state, and the training loss before the step.
    """
    data = draw(program, slot)
    task, _, optimizer, *_ = slot.now()
    key = user_key(fold_in(fold_in(slot.data_key, _DROPOUT), slot.step))
    loss, gradient = gradient_of(program, slot, task, data, key, lowered)
    # `build` is called inside the step, because the learning rate may be traced.
    updates, opt_state = optimizer.build().update(gradient, slot.opt_state, slot.params)
    params = optax.apply_updates(slot.params, updates)
    failed = jnp.where((slot.failed < 0) & ~jnp.isfinite(loss), slot.step, slot.failed)
    return slot._replace(
        params=params, opt_state=opt_state, step=slot.step + 1, failed=failed
    ), loss


# Evaluation of one run.


def half_gradients(program: Program, slot: Slot) -> tuple[PyTree, PyTree]:
    """Compute the gradients of the loss on two halves of a batch of training data.

    The batch has its own key, so that no run trains on it. Each half has its own dropout. If the
    number of sequences is odd, the last one is left out.
    """
    slot = slot._replace(data_key=fold_in(slot.data_key, PROBED))
    batch = draw(program, slot)
    task = slot.now()[0]
    half = len(batch.inputs) // 2
    if half == 0:
        raise InputError(
            "a gradient probe splits a batch in two: it needs batches of at least 2 sequences"
        )

    def of_half(index: int) -> PyTree:
        part = jax.tree.map(lambda values: values[index * half : (index + 1) * half], batch)
        key = fold_in(fold_in(fold_in(slot.data_key, _DROPOUT), slot.step), index)
        return gradient_of(program, slot, task, part, user_key(key))[1]

    return of_half(0), of_half(1)


def evaluate(program: Program, slot: Slot) -> dict[str, Array]:
    """Measure a run on its test set: the loss, metrics and probes, by name.

    The value of each schedule is a curve too: of `repeat`, for example, the curve `repeat_now`.
    """

    def means(task: Task, output: Output, batch: Batch) -> dict[str, Array]:
        every = {"loss": task.loss(output, batch)} | dict(task.metrics(output, batch, slot.truth))
        return {name: jnp.mean(values) for name, values in every.items()}

    task = slot.now()[0]
    at_test = task.at_test()
    test = held_out(program, slot, at_test)
    output = forward(program, slot, slot.params, test)
    curves = means(at_test, output, test)
    curves |= run_probes(program, slot, (*task.probes(), *program.probes), output, test)
    for name, variant in task.variants().items():
        if name in program.variants:
            other = held_out(program, slot, variant.task, variant.fold)
            measured = means(variant.task, forward(program, slot, slot.params, other), other)
            curves |= {f"{metric}_{name}": value for metric, value in measured.items()}
    for name, (schedule, state) in schedules_by_name(slot.varying, slot.schedule_states).items():
        if name != "stop":
            curves[f"{name}_now"] = jnp.asarray(schedule.value(slot.step, state), jnp.float32)
    return curves


def probe_label(probe: Probe) -> str:
    """Return the name of a probe for error messages."""
    return f"probe {getattr(probe, '__name__', type(probe).__name__)}"


def run_probes(
    program: Program, slot: Slot, probes: Sequence[Probe], output: Output, test: Batch
) -> dict[str, Array]:
    """Run probes on the test set. Probes of taps share a forward pass on fewer sequences."""
    reads = [name for probe in probes for name in getattr(probe, "reads", ())]
    tapped = (output, test)
    if reads:
        few = jax.tree.map(lambda part: part[:TAPPED], test)
        tapped = (forward(program, slot, slot.params, few, reads), few)
    gradients = None
    if any(getattr(probe, "gradients", False) for probe in probes):
        gradients = half_gradients(program, slot)
    prepared = iter(slot.prepared)
    curves: dict[str, Array] = {}
    for probe in probes:
        subject = tapped if getattr(probe, "reads", ()) else (output, test)
        further: list[Any] = [gradients] if getattr(probe, "gradients", False) else []
        if hasattr(probe, "prepare"):
            further.append(next(prepared))
        where = probe_label(probe)
        with naming(where):
            measured = dict(probe(slot.params, *subject, slot.truth, slot.step, *further))
        for name in {"loss", "train_loss", "step", "stop", *curves}.intersection(measured):
            raise InputError(f"{where} returns {name!r}, which is measured already")
        curves |= measured
    return curves


# The compiled program.


def chunk(
    program: Program,
    slots: Slot,
    count: Int[Array, ""],
    due: Int[Array, " slots"],
    shared: PyTree = None,
) -> tuple[Slot, dict[str, Array]]:
    """Take `count` steps of all runs of a stack, then evaluate all of them.

    Every run is evaluated, also if its own evaluation is not due yet; the host ignores those
    results. Schedules react only to evaluations at the step in `due`, so that a run does not depend
    on when its neighbours are evaluated.

    **Arguments:**

    - `shared`: the data that all runs share. It is not mapped, so one copy serves the stack.

    **Returns:** the new slots, and the curves of the evaluation. `train_loss` is the sum of the
    training losses of these steps. `stop` is True for runs that their rule `stop` ends.
    """

    # In bf16 the cast parameters travel from one step to the next. So XLA writes them in the same
    # pass over memory as the optimizer's update, instead of in a separate one.
    def cast(slots: Slot) -> PyTree:
        return _cast(slots.params, jnp.bfloat16) if program.precision == "bf16" else None

    def body(_: Array, carry: tuple[Slot, PyTree, Array]) -> tuple[Slot, PyTree, Array]:
        slots, lowered, total = carry
        slots, loss = jax.vmap(one_step)(slots, lowered)
        return slots, cast(slots), total + loss

    def one_step(slot: Slot, lowered: PyTree) -> tuple[Slot, Array]:
        slot, loss = step(program, slot._replace(shared=shared), lowered)
        return slot._replace(shared=None), loss

    def measured(slot: Slot) -> dict[str, Array]:
        return evaluate(program, slot._replace(shared=shared))

    dtype = jnp.float64 if program.precision == "fp64" else jnp.float32
    begin = (slots, cast(slots), jnp.zeros(slots.step.shape, dtype))
    slots, _, total = jax.lax.fori_loop(0, count, body, begin)
    metrics = jax.vmap(measured)(slots)
    if slots.schedule_states:
        states = jax.vmap(updated_states)(slots.varying, slots.schedule_states, metrics)
        is_due = slots.step == due

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(is_due.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        slots = slots._replace(schedule_states=jax.tree.map(chosen, states, slots.schedule_states))
    if slots.varying.stop is not None:
        metrics["stop"] = jax.vmap(lambda slot: slot.now().stop > 0)(slots)
    return slots, metrics | {"train_loss": total}


@functools.partial(jax.jit, donate_argnums=0)
def insert(slots: Slot, index: Int[Array, ""], slot: Slot) -> Slot:
    """Put a run into a slot of the stack."""
    return jax.tree.map(lambda all, one: all.at[index].set(one), slots, slot)
