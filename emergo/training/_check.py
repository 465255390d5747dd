"""Check configs before anything is compiled.

Every method of the task, model, optimizer, schedules, interventions and probes is traced on shapes
alone, which takes milliseconds. Whatever does not fit raises an `InputError` of one line that names
the class and the method.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from ..core.contract import Batch, Output, Readout, Tap
from ..core.curves import find_curve
from ..core.errors import InputError, naming, unknown
from ..core.pytree import Schedule, leaf_fields
from ..tasks import Task
from ._config import Config, Run, Varying
from ._optimizer import Optimizer
from ._parameters import check_start
from ._program import (
    Program,
    abstract_slot,
    arithmetic,
    as_arrays,
    evaluate,
    in_program,
    largest_sizes,
    probe_label,
    shapes_of,
    shared_data,
    user_key,
)
from ._schedules import at_start, metrics_of, schedules_in
from ._start import arrays_of, named_leaves

_checked: set[Hashable] = set()


def check_group(runs: Sequence[Run], platform: str) -> None:
    """Check runs that can share a program: one with a threshold and one without, if both exist."""
    for config in {run.config.threshold is None: run.config for run in reversed(runs)}.values():
        check_config(config, platform)


def check_config(config: Config, platform: str | None = None) -> None:
    """Raise an `InputError` if a config cannot be trained. Equal structures are checked once.

    **Arguments:**

    - `platform`: `"cpu"` or `"gpu"`; None skips checks of the platform.
    """
    if config.precision == "tf32" and platform == "cpu":
        raise InputError("tf32 products need a GPU; on a CPU choose precision fp32")
    shapes = jax.tree.structure(config.varying)
    key = (shapes, Program.of(config), config.threshold is None, config.start)
    if key in _checked:
        return
    with arithmetic(config.precision):
        _check_parts(config)
        _check_measurements(config)
    _checked.add(key)


def _shapes(where: str, function: Callable[..., PyTree], *arguments: PyTree) -> Any:
    """Trace a function of the user, and return the shapes of its results."""
    with naming(where):
        return jax.eval_shape(function, *arguments)


def _need(fits: bool, where: str, wanted: str, got: Any) -> None:
    if not fits:
        is_array = hasattr(got, "dtype")
        shown = f"{got.dtype.name}{list(got.shape)}" if is_array else f"a {type(got).__name__}"
        raise InputError(f"{where} must {wanted}, got {shown}")


def _need_shape(where: str, what: str, got: Any, *sizes: int | str) -> None:
    """Require an array of a shape; a name among the sizes stands for any size."""
    shape = getattr(got, "shape", (None,))
    fits = len(shape) == len(sizes) and all(
        isinstance(b, str) or a == b for a, b in zip(shape, sizes, strict=True)
    )
    _need(fits, where, f"return {what}, shape [{', '.join(map(str, sizes))}]", got)


def _need_real(where: str, what: str, tree: PyTree) -> None:
    """Require floating-point numbers, which a gradient needs."""
    for leaf in jax.tree.leaves(tree):
        real = jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating)
        _need(real, where, f"return {what}", leaf)


def _need_equal(where: str, what: str, before: PyTree, after: PyTree) -> None:
    """Require equal structures, shapes and dtypes of two pytrees."""
    one, two = (
        (jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)])
        for tree in (before, after)
    )
    _need(one == two, where, f"keep the shapes and types of {what}", after)


def _check_parts(config: Config) -> None:
    """Check the task, the model, the optimizer, and the names of taps."""
    n = config.batch
    spec = config.task.spec
    _check_test_set(config.task)
    varying = jax.eval_shape(lambda: in_program(config, largest_sizes([config])))
    for schedule in schedules_in(varying):
        kind = type(schedule)
        state = _shapes(f"{kind.__name__}.start", kind.start, schedule)
        value = _shapes(f"{kind.__name__}.value", kind.value, schedule, jnp.int32(0), state)
        _need_shape(f"{kind.__name__}.value", "one number", value)
    parts = jax.eval_shape(at_start, varying)
    task, _, optimizer, *_ = parts
    key = jax.eval_shape(lambda: user_key(jnp.zeros(2, jnp.uint32)))

    def call(part: PyTree, method: str, *arguments: PyTree) -> Any:
        kind = type(part)
        return _shapes(f"{kind.__name__}.{method}", getattr(kind, method), part, *arguments)

    truth = call(task, "truth", key)
    where, data = _drawn(config, task, key, truth)
    _need(isinstance(data, Batch), where, "return an em.Batch(inputs, target, relevant)", data)
    tokens = jnp.issubdtype(getattr(data.inputs, "dtype", float), jnp.integer)
    _need_shape(where, "inputs", data.inputs, n, spec.length, *([] if tokens else [spec.inputs]))
    if data.relevant is not None:
        _need_shape(where, "`relevant`", data.relevant, n, spec.length)
    if config.model.only_tokens and not tokens:
        raise InputError(
            f"{type(config.model).__name__} reads integer tokens, but {where} returns features"
        )
    if config.model.only_features and tokens:
        raise InputError(
            f"{type(config.model).__name__} reads features, but {where} returns integer tokens"
        )
    model = jax.eval_shape(lambda: at_start(as_arrays(config.model)))
    where = f"{type(model).__name__}.init"
    params = _shapes(where, lambda m, task, key: m.init(key, task.spec), model, task, key)
    _need_real(where, "arrays of real numbers, which have a gradient", params)
    if config.start is not None:
        for digest in config.start.digests:
            arrays = arrays_of(config.start.replace(digest=digest, by_seed=()))
            check_start(arrays, named_leaves(params), f"start of {type(model).__name__}")
    output, taps = _shapes(f"{type(model).__name__}.apply", _apply, parts, params, data, key)
    _check_output(config, output)
    loss = call(task, "loss", output, data)
    where = f"{type(task).__name__}.loss"
    _need_shape(where, "one real number per sequence", loss, n)
    _need_real(where, "one real number per sequence", loss)
    where = f"{type(task).__name__}.metrics"
    metrics = _shapes(where, lambda t, *rest: dict(t.metrics(*rest)), task, output, data, truth)
    for name, values in metrics.items():
        _need_shape(where, f"one {name} per sequence", values, n)
    where = f"Optimizer {config.optimizer.label}"
    _need_equal(where, "parameters and of its state", *_shapes(where, _update, optimizer, params))
    _check_taps(config, list(taps))


def _drawn(config: Config, task: Task, key: PyTree, truth: PyTree) -> tuple[str, Any]:
    """Trace the method that draws a training batch; return its name and the shapes of a batch."""
    n = config.batch
    name = type(task).__name__
    shared = shapes_of(shared_data(config.task))
    if task.finite:
        where = f"{name}.pick"
        rows = jax.ShapeDtypeStruct((n,), jnp.int32)
        return where, _shapes(where, lambda t, *rest: t.pick(*rest), task, shared, rows)
    if task.has_corpus:
        where = f"{name}.from_corpus"
        step = jax.ShapeDtypeStruct((), jnp.int32)

        def draw(task: Task, data: PyTree, key: Array, step: Array, truth: PyTree) -> Batch:
            return task.from_corpus(data, key, step, n, truth)

        return where, _shapes(where, draw, task, shared, key, step, truth)
    where = f"{name}.batch"
    return where, _shapes(where, lambda t, key, truth: t.batch(key, n, truth), task, key, truth)


def _apply(
    parts: Varying, params: PyTree, data: Batch, key: Array
) -> tuple[Output, dict[str, Array]]:
    """Apply the model; return its output and the values at all taps."""
    task, model, _, interventions, _ = parts
    tap = Tap(task.spec, key, jnp.int32(0), changes=interventions, reads=["*"], batch=data)
    return model.apply(params, data.inputs, tap), tap.taken


def _update(optimizer: Optimizer, params: PyTree) -> tuple[PyTree, PyTree]:
    """Return the parameters and the state of the optimizer, before and after an update."""
    transform = optimizer.build()
    state = transform.init(params)
    updates, after = transform.update(params, state, params)
    return (params, state), (optax.apply_updates(params, updates), after)


def _check_test_set(task: Task) -> None:
    """Refuse a schedule that would change the test set during training."""
    kind = type(task).__name__
    moving = {name for name, value in leaf_fields(task.at_test()) if isinstance(value, Schedule)}
    for name, value in leaf_fields(task):
        if isinstance(value, Schedule) and name in moving:
            field = name.rpartition(".")[2]
            raise InputError(
                f"{kind}.{name} is a schedule, {value!r}, and would change the test set during "
                f"training; {kind}.at_test must set it: return self.replace({field}=…)"
            )


def _check_output(config: Config, output: Output) -> None:
    n = config.batch
    spec = config.task.spec
    where = f"{type(config.model).__name__}.apply"
    _need(isinstance(output, Output), where, "return an em.Output(value, …)", output)
    answers = [] if spec.answers is None else [spec.answers]
    if output.value is not None or not spec.deferred:
        _need_shape(where, "a value", output.value, n, *answers, spec.outputs)
    else:
        features: Any = output.features
        _need_shape(where, "features or a value", features, n, *answers, "width")
        readout: Any = output.readout
        _need(isinstance(readout, Readout), where, "return an em.Readout", readout)
        sizes = (features.shape[-1], spec.outputs)
        _need_shape(where, "a readout with a weight", readout.weight, *sizes)
    if output.attention is not None:
        sizes = (n, "layers", "heads", spec.length)
        _need_shape(where, "attention", output.attention, *sizes)


def _check_taps(config: Config, names: list[str]) -> None:
    """Check that the model has all taps that interventions and probes name."""
    wanted = [(f"{type(one).__name__}.tap", str(one.tap)) for one in config.interventions]
    for part in (*config.interventions, *config.all_probes):
        where = probe_label(part) if callable(part) else f"{type(part).__name__}.reads"
        wanted += [(where, name) for name in getattr(part, "reads", ())]
    for where, pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise unknown(f"tap of {type(config.model).__name__} in {where}", pattern, names)


def _check_measurements(config: Config) -> None:
    """Check probes, the metric of the threshold, and the metrics that schedules read."""
    program = Program.of(config)
    with naming("the start of a run"):
        slot = abstract_slot(program, Run(config, 0))
    if any(hasattr(probe, "prepare") for probe in config.all_probes):
        return  # the arrays that these probes prepare are unknown until the run starts
    curves = _shapes("an evaluation", lambda slot: evaluate(program, slot), slot)
    learned = None if config.threshold is None else config.task.learned
    if learned is not None:
        where = f"{type(config.task).__name__}.learned"
        metric = _shapes(
            where,
            lambda every: find_curve(every, learned.metric, f"metric of {where}", leading=0),
            curves,
        )
        _need_shape(where, "one number", metric)
    for schedule, state in zip(schedules_in(slot.varying), slot.schedule_states, strict=True):
        kind = type(schedule)
        own = _shapes(f"{kind.__name__}.metrics", lambda s, m: metrics_of(s, m), schedule, curves)
        where = f"{kind.__name__}.update"
        after = _shapes(where, kind.update, schedule, state, own)
        _need_equal(where, "its state", state, after)


def probe_curves(config: Config) -> tuple[str, ...]:
    """Return the names of the curves that the probes of a config measure.

    A probe that prepares arrays names its curves in its attribute `curves`.
    """
    if not config.probes:
        return ()
    program = Program.of(config)
    probes = tuple(probe for probe in config.probes if not hasattr(probe, "prepare"))
    with arithmetic(config.precision):
        slot = abstract_slot(program, Run(config, 0))
        every, without = (
            jax.eval_shape(
                lambda slot, p=p: evaluate(dataclasses.replace(program, probes=p), slot), slot
            )
            for p in (probes, ())
        )
    prepared = (name for probe in config.probes for name in getattr(probe, "curves", ()))
    return (*prepared, *(name for name in every if name not in without))
