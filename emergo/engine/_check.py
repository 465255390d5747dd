"""Checks before anything is compiled: every method is traced on shapes alone, and named where it does not fit."""

import difflib
import fnmatch
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from .._contract import Batch, Output, Spec, Tap
from .._errors import InputError, naming
from ..models import Model
from ._config import Config, Preparing, Probe, Run, Varying
from ._program import (
    Program,
    Slot,
    arithmetic,
    as_arrays,
    asks_gradients,
    evaluate,
    forward,
    half_gradients,
    in_program,
    largest_sizes,
    start,
    user_key,
)
from ._schedules import at_start, schedules_in

_checked: set[Hashable] = set()


def check_group(runs: Sequence[Run], platform: str) -> None:
    """Checks runs that can share a program: the first with a threshold, and the first without one."""
    for config in {run.config.threshold is None: run.config for run in reversed(runs)}.values():
        check_config(config, platform)


def check_config(config: Config, platform: str | None = None) -> None:
    """Raises an `InputError` for a config that cannot be trained on this platform, or anywhere; what was checked once is not
    again."""
    if config.precision == "tf32" and platform == "cpu":
        raise InputError("tf32 products need a GPU; on a CPU choose precision fp32")
    key = (jax.tree.structure(config.varying), Program.of(config), config.threshold is None)
    if key in _checked:
        return
    with arithmetic(config.precision):
        varying = jax.eval_shape(lambda: in_program(config, largest_sizes([config])))
        for schedule in schedules_in(varying):
            name = type(schedule).__name__
            state = _shapes(f"{name}.start", lambda s: s.start(), schedule)
            value = _shapes(f"{name}.value", lambda s, state: s.value(jnp.int32(0), state), schedule, state)
            _need(value.shape == (), f"{name}.value", "return one number", value)
        _check_taps(config, _check_task_and_model(config, varying))
        _check_measurements(config)
    _checked.add(key)


def _shapes(where: str, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """What a function returns for arguments of these shapes, with shapes for arrays and numbers."""

    def with_arrays(*arguments: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, function(*arguments))

    with naming(where):
        shapes = eqx.filter_eval_shape(with_arrays, *arguments)
    arrays = [leaf for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "dtype")]
    if any(jnp.issubdtype(array.dtype, jax.dtypes.extended) for array in arrays):
        raise InputError(f"{where} must return arrays of numbers, not random keys; jax.random.key_data makes numbers of a key")
    return shapes


def _need(fits: bool, where: str, wanted: str, got: object) -> None:
    if not fits:
        shape, dtype = getattr(got, "shape", None), getattr(got, "dtype", None)
        shown = got if isinstance(got, str) else f"a {type(got).__name__}"
        raise InputError(f"{where} must {wanted}, got {shown if dtype is None else f'{dtype.name}{list(shape or ())}'}")


def _is_real(leaf: object) -> bool:
    """Whether this is an array of fractions, which a gradient needs."""
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating)


def _signature(tree: PyTree) -> tuple[Hashable, ...]:
    """Structure, shapes and types of numbers."""
    return jax.tree.structure(tree), *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def _check_task_and_model(config: Config, varying: Varying) -> list[str]:
    """Every method of the task and of the model, and the optimizer; returns the names of the model's taps."""
    n, task, model = config.batch, type(config.task).__name__, type(config.model).__name__
    spec, key = config.task.spec, jax.eval_shape(lambda: user_key(jnp.zeros(2, jnp.uint32)))

    def of_task(method: str, *arguments: PyTree) -> PyTree:
        return _shapes(f"{task}.{method}", lambda v, *rest: getattr(at_start(v)[0], method)(*rest), varying, *arguments)

    truth = of_task("truth", key)
    data = of_task("batch", key, n, truth)
    _check_batch(f"{task}.batch", data, n, spec)
    if config.model.only_tokens and data.inputs.ndim != 2:
        raise InputError(f"{model} reads whole-number tokens, but {task}.batch returns features; choose another model or task")

    def init(model: Model, varying: Varying, key: Array) -> PyTree:
        return at_start(model).init(key, at_start(varying)[0].spec)

    def apply(varying: Varying, params: PyTree, data: Batch, key: Array) -> tuple[Output, dict[str, Array]]:
        task, model, _, interventions = at_start(varying)
        tap = Tap(task.spec, key, jnp.int32(0), changes=interventions, reads=["*"], batch=data)
        return model.apply(params, data.inputs, tap), tap.taken

    params = _shapes(f"{model}.init", init, jax.eval_shape(lambda: as_arrays(config.model)), varying, key)
    for leaf in jax.tree.leaves(params):
        _need(_is_real(leaf), f"{model}.init", "return arrays of real numbers, which have a gradient", leaf)
    output, taps = _shapes(f"{model}.apply", apply, varying, params, data, key)
    _need(isinstance(output, Output), f"{model}.apply", "return an em.Output(value, …)", output)
    wanted = (n, spec.outputs) if spec.answers is None else (n, spec.answers, spec.outputs)
    fits = getattr(output.value, "shape", None) == wanted
    _need(fits, f"{model}.apply", f"return a value of shape {list(wanted)}", output.value)
    if output.attention is not None:
        shape = getattr(output.attention, "shape", ())
        fits = len(shape) == 4 and (shape[0], shape[3]) == (n, spec.length)
        _need(fits, f"{model}.apply", f"return attention of shape [{n}, layers, heads, {spec.length}]", output.attention)
    loss = of_task("loss", output, data)
    fits = getattr(loss, "shape", None) == (n,)
    _need(fits and _is_real(loss), f"{task}.loss", f"return one real number per sequence, shape [{n}]", loss)
    metrics, where = of_task("metrics", output, data, truth), f"{task}.metrics"
    _need(isinstance(metrics, Mapping), where, "return a dictionary of named arrays", metrics)
    for name, values in metrics.items():
        fits = getattr(values, "shape", None) == (n,)
        _need(fits, where, f"return one number per sequence for {name}, shape [{n}]", values)

    def update(varying: Varying, params: PyTree) -> PyTree:
        transform = at_start(varying)[2].build()
        state = transform.init(params)
        updates, after = transform.update(params, state, params)
        return (params, state), (optax.apply_updates(params, updates), after)

    where = f"Optimizer {config.optimizer.label}"
    before, after = map(_signature, _shapes(where, update, varying, params))
    _need(before == after, where, "keep the shapes and types of parameters and of its state", "others")
    return list(taps)


def _check_batch(where: str, data: Batch, n: int, spec: Spec) -> None:
    _need(isinstance(data, Batch), where, "return an em.Batch(inputs, target, relevant)", data)
    inputs = data.inputs
    _need(hasattr(inputs, "dtype"), where, "return inputs that are one array", inputs)
    wanted = (n, spec.length) if jnp.issubdtype(inputs.dtype, jnp.integer) else (n, spec.length, spec.inputs)
    _need(inputs.shape == wanted, where, f"return inputs of shape {list(wanted)} as its spec says", inputs)
    for part in jax.tree.leaves(data.target):
        _need(part.shape[:1] == (n,), where, f"return a target with one entry per sequence, shape [{n}, …]", part)
    if data.relevant is not None:
        fits = getattr(data.relevant, "shape", None) == (n, spec.length)
        _need(fits, where, f"return `relevant` of shape {[n, spec.length]}, or None", data.relevant)


def _check_taps(config: Config, names: list[str]) -> None:
    wanted = [(f"{type(i).__name__}.tap", str(i.tap)) for i in config.interventions]
    wanted += [(f"{type(i).__name__}.reads", name) for i in config.interventions for name in i.reads]
    wanted += [(_probe_name(probe), name) for probe in config.all_probes for name in getattr(probe, "reads", ())]
    for where, pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3) or names
            hint = f"it has {', '.join(near)}" if near else "it has none"
            raise InputError(f"{where}: {type(config.model).__name__} has no tap {pattern!r}; {hint}")


def _check_measurements(config: Config) -> None:
    """Probes, the metric that tells that a run has learned, and those that schedules react to."""
    program = Program.of(config)
    with naming("the start of a run"):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
    owners: dict[str, str] = {"loss": "the task", "train_loss": "the engine", "step": "the engine"}
    for index, probe in enumerate(config.all_probes):
        where = _probe_name(probe)
        for name in () if isinstance(probe, Preparing) else _probed(program, slot, index, where):
            if owners.setdefault(name, where) != where:
                raise InputError(f"{where} returns {name!r}, which is measured already; choose another name")
    if any(isinstance(probe, Preparing) for probe in config.all_probes):  # what it returns is known once it has prepared
        return
    curves = _shapes("an evaluation", lambda slot: evaluate(program, slot), slot)
    learned = None if config.threshold is None else config.task.learned
    if learned is not None:
        where = f"{type(config.task).__name__}.learned"
        _check_measured(where, [learned.metric], curves)
        _need(curves[learned.metric].shape == (), where, "name a metric that is one number", curves[learned.metric])
    for schedule, state in zip(schedules_in(slot.varying), slot.schedule_states, strict=True):
        where = type(schedule).__name__
        _check_measured(where, schedule.metrics(), curves)
        own = {metric: curves[metric] for metric in schedule.metrics()}
        after = _shapes(f"{where}.update", lambda s, *rest: s.update(*rest), schedule, state, own)
        fits = _signature(state) == _signature(after)
        _need(fits, f"{where}.update", "keep the shapes and types of its state", after)


def _check_measured(where: str, metrics: Iterable[str], curves: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    for metric in metrics:
        if metric not in curves:
            near = difflib.get_close_matches(metric, list(curves), n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"measured are {', '.join(curves)}"
            raise InputError(f"{where} names the metric {metric!r}, which nothing measures; {hint}")


def _probe_name(probe: Probe) -> str:
    return f"probe {getattr(probe, '__name__', type(probe).__name__)}"


def _probed(program: Program, slot: Slot, index: int, where: str) -> Mapping[str, jax.ShapeDtypeStruct]:
    """What a probe returns, on a run of these shapes."""

    def probe_of(slot: Slot) -> Probe:
        return (*slot.now()[0].probes(), *program.probes)[index]

    def given(slot: Slot) -> tuple[PyTree, ...]:
        probe, batch = probe_of(slot), slot.now()[0].at_test().batch(user_key(slot.test_key), program.n_test, slot.truth)
        output = forward(program, slot, slot.params, batch, reads=getattr(probe, "reads", ()))
        return output, batch, *((half_gradients(program, slot),) if asks_gradients(probe) else ())

    def measured(slot: Slot, output: Output, batch: Batch, *further: PyTree) -> Mapping[str, Array]:
        return probe_of(slot)(slot.params, output, batch, slot.truth, slot.step, *further)

    arguments = _shapes(where, given, slot)
    first, second = (_shapes(where, measured, slot, *arguments) for _ in range(2))
    _need(isinstance(first, Mapping), where, "return a dictionary of named arrays", first)
    for name, value in first.items():
        _need(hasattr(value, "shape"), where, f"return an array for {name}", value)
    _need(_signature(first) == _signature(second), where, "return the same names and shapes each time", "others")
    return first


def probe_curves(config: Config) -> tuple[str, ...]:
    """The names of the curves that the probes of a config measure; one that prepares may name its own in `curves`."""
    program = Program.of(config)
    names: dict[str, None] = {}
    with arithmetic(config.precision):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
        for index, probe in enumerate(config.all_probes):
            if isinstance(probe, Preparing):
                names |= dict.fromkeys(getattr(probe, "curves", ()))
            elif probe in config.probes:
                names |= dict.fromkeys(_probed(program, slot, index, _probe_name(probe)))
    return tuple(names)
