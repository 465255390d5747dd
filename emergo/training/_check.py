"""Check configs before anything is compiled.

Every method of the task, model, optimizer, schedules, interventions and probes is traced on shapes
alone, which takes milliseconds. Whatever does not fit raises an `InputError` of one line that names
the class and the method.
"""

import difflib
import fnmatch
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from ..core.contract import Batch, Output, Spec, Tap
from ..core.errors import InputError, naming
from ..models import Model
from ._config import Config, Preparing, Run, Varying
from ._program import (
    Program,
    Slot,
    arithmetic,
    as_arrays,
    evaluate,
    forward,
    in_program,
    largest_sizes,
    probe_label,
    run_probes,
    start,
    user_key,
)
from ._schedules import at_start, schedules_in

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
    key = (jax.tree.structure(config.varying), Program.of(config), config.threshold is None)
    if key in _checked:
        return
    with arithmetic(config.precision):
        varying = jax.eval_shape(lambda: in_program(config, largest_sizes([config])))
        for schedule in schedules_in(varying):
            name = type(schedule).__name__
            state = _shapes(f"{name}.start", lambda s: s.start(), schedule)
            value = _shapes(
                f"{name}.value", lambda s, state: s.value(jnp.int32(0), state), schedule, state
            )
            _need(value.shape == (), f"{name}.value", "return one number", value)
        _check_taps(config, _check_parts(config, varying))
        _check_measurements(config)
    _checked.add(key)


def _shapes(where: str, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Trace a function of the user, and return the shapes of its results."""

    def with_arrays(*arguments: PyTree) -> PyTree:
        return jax.tree.map(
            lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, function(*arguments)
        )

    with naming(where):
        shapes = eqx.filter_eval_shape(with_arrays, *arguments)
    arrays = [leaf for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "dtype")]
    if any(jnp.issubdtype(array.dtype, jax.dtypes.extended) for array in arrays):
        raise InputError(
            f"{where} must return arrays of numbers, not random keys; jax.random.key_data converts "
            f"a key to numbers"
        )
    return shapes


def _need(fits: bool, where: str, wanted: str, got: object) -> None:
    if fits:
        return
    shown = got if isinstance(got, str) else f"a {type(got).__name__}"
    dtype = getattr(got, "dtype", None)
    if dtype is not None:
        shown = f"{dtype.name}{list(getattr(got, 'shape', ()))}"
    raise InputError(f"{where} must {wanted}, got {shown}")


def _has_shape(array: object, *shape: int) -> bool:
    return getattr(array, "shape", None) == shape


def _is_real(leaf: object) -> bool:
    """Return True for an array of floating-point numbers, which a gradient needs."""
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating)


def _signature(tree: PyTree) -> tuple[Hashable, ...]:
    """Return the structure, shapes and dtypes of a pytree."""
    return jax.tree.structure(tree), *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def _check_parts(config: Config, varying: Varying) -> list[str]:
    """Check the task, the model and the optimizer; return the names of the model's taps."""
    n = config.batch
    task = type(config.task).__name__
    spec = config.task.spec
    key = jax.eval_shape(lambda: user_key(jnp.zeros(2, jnp.uint32)))

    def of_task(method: str, *arguments: PyTree) -> PyTree:
        def call(varying: Varying, *rest: PyTree) -> PyTree:
            return getattr(at_start(varying)[0], method)(*rest)

        return _shapes(f"{task}.{method}", call, varying, *arguments)

    truth = of_task("truth", key)
    data = of_task("batch", key, n, truth)
    _check_batch(f"{task}.batch", data, n, spec)
    params, output, taps = _check_model(config, varying, data, key)
    loss = of_task("loss", output, data)
    wanted = f"return one real number per sequence, shape [{n}]"
    _need(_has_shape(loss, n) and _is_real(loss), f"{task}.loss", wanted, loss)
    metrics = of_task("metrics", output, data, truth)
    where = f"{task}.metrics"
    _need(isinstance(metrics, Mapping), where, "return a dictionary of named arrays", metrics)
    for name, values in metrics.items():
        wanted = f"return one number per sequence for {name}, shape [{n}]"
        _need(_has_shape(values, n), where, wanted, values)

    def update(varying: Varying, params: PyTree) -> PyTree:
        transform = at_start(varying)[2].build()
        state = transform.init(params)
        updates, after = transform.update(params, state, params)
        return (params, state), (optax.apply_updates(params, updates), after)

    where = f"Optimizer {config.optimizer.label}"
    before, after = map(_signature, _shapes(where, update, varying, params))
    wanted = "keep the shapes and types of parameters and of its state"
    _need(before == after, where, wanted, "others")
    return taps


def _check_batch(where: str, data: Batch, n: int, spec: Spec) -> None:
    _need(isinstance(data, Batch), where, "return an em.Batch(inputs, target, relevant)", data)
    inputs = data.inputs
    _need(hasattr(inputs, "dtype"), where, "return inputs that are one array", inputs)
    shape = [n, spec.length]
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
        shape.append(spec.inputs)
    wanted = f"return inputs of shape {shape} as its spec says"
    _need(_has_shape(inputs, *shape), where, wanted, inputs)
    for part in jax.tree.leaves(data.target):
        wanted = f"return a target with one entry per sequence, shape [{n}, …]"
        _need(part.shape[:1] == (n,), where, wanted, part)
    if data.relevant is not None:
        wanted = f"return `relevant` of shape {[n, spec.length]}, or None"
        _need(_has_shape(data.relevant, n, spec.length), where, wanted, data.relevant)


def _check_model(
    config: Config, varying: Varying, data: Batch, key: PyTree
) -> tuple[PyTree, Output, list[str]]:
    """Check the model; return its parameters, its output on a batch, and the names of its taps."""
    n = config.batch
    spec = config.task.spec
    model = type(config.model).__name__
    if config.model.only_tokens and data.inputs.ndim != 2:
        raise InputError(
            f"{model} reads integer tokens, but {type(config.task).__name__}.batch returns "
            f"features; choose another model or task"
        )

    def init(model: Model, varying: Varying, key: Array) -> PyTree:
        return at_start(model).init(key, at_start(varying)[0].spec)

    def apply(
        varying: Varying, params: PyTree, data: Batch, key: Array
    ) -> tuple[Output, dict[str, Array]]:
        task, model, _, interventions = at_start(varying)
        tap = Tap(task.spec, key, jnp.int32(0), changes=interventions, reads=["*"], batch=data)
        return model.apply(params, data.inputs, tap), tap.taken

    whole = jax.eval_shape(lambda: as_arrays(config.model))
    params = _shapes(f"{model}.init", init, whole, varying, key)
    for leaf in jax.tree.leaves(params):
        wanted = "return arrays of real numbers, which have a gradient"
        _need(_is_real(leaf), f"{model}.init", wanted, leaf)
    where = f"{model}.apply"
    output, taps = _shapes(where, apply, varying, params, data, key)
    _need(isinstance(output, Output), where, "return an em.Output(value, …)", output)
    shape = [n, spec.outputs] if spec.answers is None else [n, spec.answers, spec.outputs]
    fits = _has_shape(output.value, *shape)
    _need(fits, where, f"return a value of shape {shape}", output.value)
    if output.attention is not None:
        shape = getattr(output.attention, "shape", ())
        fits = len(shape) == 4 and (shape[0], shape[3]) == (n, spec.length)
        wanted = f"return attention of shape [{n}, layers, heads, {spec.length}]"
        _need(fits, where, wanted, output.attention)
    return params, output, list(taps)


def _check_taps(config: Config, names: list[str]) -> None:
    """Check that the model has all taps that interventions and probes name."""
    wanted = []
    for intervention in config.interventions:
        kind = type(intervention).__name__
        wanted.append((f"{kind}.tap", str(intervention.tap)))
        wanted += [(f"{kind}.reads", name) for name in intervention.reads]
    for probe in config.all_probes:
        wanted += [(probe_label(probe), name) for name in getattr(probe, "reads", ())]
    for where, pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3) or names or ["none"]
            raise InputError(
                f"{where}: {type(config.model).__name__} has no tap {pattern!r}; it has "
                f"{', '.join(near)}"
            )


def _check_measurements(config: Config) -> None:
    """Check probes, the metric of the threshold, and the metrics that schedules read."""
    program = Program.of(config)
    with naming("the start of a run"):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
    owners = {"loss": "the task", "train_loss": "training", "step": "training"}
    for index, probe in enumerate(config.all_probes):
        where = probe_label(probe)
        # The curves of a probe that prepares arrays are unknown until the run starts.
        known = () if isinstance(probe, Preparing) else _probed(program, slot, index, where)
        for name in known:
            if owners.setdefault(name, where) != where:
                raise InputError(
                    f"{where} returns {name!r}, which is measured already; choose another name"
                )
    if any(isinstance(probe, Preparing) for probe in config.all_probes):
        return
    curves = _shapes("an evaluation", lambda slot: evaluate(program, slot), slot)
    learned = None if config.threshold is None else config.task.learned
    if learned is not None:
        where = f"{type(config.task).__name__}.learned"
        _check_measured(where, [learned.metric], curves)
        metric = curves[learned.metric]
        _need(_has_shape(metric), where, "name a metric that is one number", metric)
    for schedule, state in zip(schedules_in(slot.varying), slot.schedule_states, strict=True):
        where = type(schedule).__name__
        _check_measured(where, schedule.metrics(), curves)
        own = {metric: curves[metric] for metric in schedule.metrics()}
        after = _shapes(f"{where}.update", lambda s, *rest: s.update(*rest), schedule, state, own)
        fits = _signature(state) == _signature(after)
        _need(fits, f"{where}.update", "keep the shapes and types of its state", after)


def _check_measured(where: str, metrics: Iterable[str], curves: Iterable[str]) -> None:
    for metric in metrics:
        if metric not in curves:
            near = difflib.get_close_matches(metric, list(curves), n=2)
            hint = f"known metrics: {', '.join(curves)}"
            if near:
                hint = f"did you mean {' or '.join(near)}?"
            raise InputError(f"{where} names the metric {metric!r}, which nothing measures; {hint}")


def _probed(
    program: Program, slot: Slot, index: int, where: str
) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a probe's curves, on a run of these shapes."""

    def measured(slot: Slot) -> dict[str, Array]:
        task = slot.now()[0]
        probe = (*task.probes(), *program.probes)[index]
        test = task.at_test().batch(user_key(slot.test_key), program.n_test, slot.truth)
        output = forward(program, slot, slot.params, test)
        return run_probes(program, slot, [probe], output, test)

    first, second = (_shapes(where, measured, slot) for _ in range(2))
    for name, value in first.items():
        _need(hasattr(value, "shape"), where, f"return an array for {name}", value)
    fits = _signature(first) == _signature(second)
    _need(fits, where, "return the same names and shapes each time", "others")
    return first


def probe_curves(config: Config) -> tuple[str, ...]:
    """Return the names of the curves that the probes of a config measure.

    A probe that prepares arrays may name its curves in its attribute `curves`.
    """
    program = Program.of(config)
    names: dict[str, None] = {}
    with arithmetic(config.precision):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
        for index, probe in enumerate(config.all_probes):
            if isinstance(probe, Preparing):
                names |= dict.fromkeys(getattr(probe, "curves", ()))
            elif probe in config.probes:
                names |= dict.fromkeys(_probed(program, slot, index, probe_label(probe)))
    return tuple(names)
