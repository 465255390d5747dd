"""Checks of what a run is made of before anything is compiled: every method is traced on shapes alone.

Each message is one line that names the class and the method, and says what would be right.
"""

import contextlib
import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._contract import Batch, Output, Spec, Tap
from .._errors import InputError
from ._config import Config, Run
from ._optimizer import apply_updates
from ._program import Program, Slot, arithmetic, as_arrays, evaluate, forward, in_program, largest_sizes, start, user_key
from ._schedules import resolve, schedules_in, start_states

_checked: set[Any] = set()


def check_config(config: Config, platform: str) -> None:
    """Raises an `InputError` for a config that cannot be trained on this platform; what was checked once is not again."""
    if config.precision == "tf32" and platform == "cpu":
        raise InputError("tf32 products need a GPU; on a CPU choose precision fp32")
    key = (jax.tree.structure(config.varying), Program.of(config), config.threshold is None)
    if key in _checked:
        return
    with arithmetic(config.precision):
        varying = jax.eval_shape(lambda: in_program(config, largest_sizes([config])))
        _check_schedules(varying)
        names = _check_task_and_model(config, varying)
        _check_taps(config, names)
        _check_measurements(config)
    _checked.add(key)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """An error inside the block becomes one line that names the class and the method."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, NotImplementedError) and not lines:
            raise InputError(f"{where} is missing: a subclass must define it") from None
        raise InputError(f"{where} failed: {type(error).__name__}: {lines[0] if lines else 'no message'}") from error


def _shapes(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a function returns for arguments of these shapes."""
    with _naming(where):
        shapes = jax.eval_shape(function, *arguments)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(shapes)):
        raise InputError(f"{where} must return arrays of numbers, not random keys; jax.random.key_data makes numbers of a key")
    return shapes


def _need(fits: bool, where: str, wanted: str, got: Any) -> None:
    if not fits:
        raise InputError(f"{where} must {wanted}, got {_shown(got)}")


def _shown(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype.name}{list(value.shape)}"
    return value if isinstance(value, str) else f"a {type(value).__name__}"


def _is_same(one: Any, two: Any) -> bool:
    """Whether two trees have the same structure, shapes and types of numbers."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=False)
    same = all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    return same and jax.tree.structure(one) == jax.tree.structure(two)


def _check_schedules(varying: Any) -> None:
    for schedule in schedules_in(varying):
        name = type(schedule).__name__
        state = _shapes(f"{name}.start", lambda s: s.start(), schedule)
        value = _shapes(f"{name}.value", lambda s, state: jnp.asarray(s.value(jnp.int32(0), state)), schedule, state)
        _need(value.shape == (), f"{name}.value", "return one number", value)


def _check_task_and_model(config: Config, varying: Any) -> list[str]:
    """Every method of the task and of the model, and the optimizer; returns the names of the model's taps."""
    n, task, model = config.batch, type(config.task).__name__, type(config.model).__name__
    with _naming(f"{task}.spec"):
        spec = config.task.spec
    _need(isinstance(spec, Spec), f"{task}.spec", "be an em.Spec(length=…, inputs=…, outputs=…)", spec)
    key = jax.eval_shape(lambda: user_key(jnp.zeros(2, jnp.uint32)))

    def now(varying: Any) -> Any:
        return resolve(varying, jnp.int32(0), start_states(varying))

    truth = _shapes(f"{task}.truth", lambda v, key: now(v)[0].truth(key), varying, key)
    data = _shapes(f"{task}.batch", lambda v, key, truth: now(v)[0].batch(key, n, truth), varying, key, truth)
    _check_batch(f"{task}.batch", data, n, spec)

    def init(model: Any, varying: Any, key: Array) -> Any:
        return resolve(model, jnp.int32(0), start_states(model)).init(key, now(varying)[0].spec)

    params = _shapes(f"{model}.init", init, as_arrays(config.model), varying, key)
    names: list[str] = []

    def apply(varying: Any, params: Any, inputs: Array, key: Array) -> Output:
        task, model, _, interventions = now(varying)
        output = model.apply(params, inputs, _Recorder(names, task.spec, key, jnp.int32(0), changes=interventions))
        _need(isinstance(output, Output), f"{type(model).__name__}.apply", "return an em.Output(value, …)", output)
        return output

    output = _shapes(f"{model}.apply", apply, varying, params, data.inputs, key)
    wanted = (n, spec.outputs) if spec.answers is None else (n, spec.answers, spec.outputs)
    fits = getattr(output.value, "shape", None) == wanted
    _need(fits, f"{model}.apply", f"return a value of shape {list(wanted)}", output.value)
    loss = _shapes(f"{task}.loss", lambda v, output, data: now(v)[0].loss(output, data), varying, output, data)
    _need(getattr(loss, "shape", None) == (n,), f"{task}.loss", f"return one number per sequence, shape [{n}]", loss)
    _check_metrics(f"{task}.metrics", lambda v, *rest: now(v)[0].metrics(*rest), n, varying, output, data, truth)

    def update(varying: Any, params: Any) -> Any:
        transform = now(varying)[2].build()
        state = transform.init(params)
        updates, after = transform.update(params, state, params)
        return (params, state), (apply_updates(params, updates), after)

    where = f"Optimizer {config.optimizer.label}"
    before, after = _shapes(where, update, varying, params)
    _need(_is_same(before, after), where, "keep the shapes and types of parameters and of its state", "others")
    return names


def _check_batch(where: str, data: Any, n: int, spec: Spec) -> None:
    _need(isinstance(data, Batch), where, "return an em.Batch(inputs, target, relevant)", data)
    inputs = data.inputs
    _need(hasattr(inputs, "dtype"), where, "return inputs that are one array", inputs)
    wanted = (n, spec.length) if jnp.issubdtype(inputs.dtype, jnp.integer) else (n, spec.length, spec.inputs)
    _need(inputs.shape == wanted, where, f"return inputs of shape {list(wanted)} as its spec says", inputs)
    for part in jax.tree.leaves(data.target):
        _need(part.shape[:1] == (n,), where, f"return a target with one entry per sequence, shape [{n}, …]", part)
    if data.relevant is not None:
        fits = data.relevant.shape == (n, spec.length)
        _need(fits, where, f"return `relevant` of shape {[n, spec.length]}, or None", data.relevant)


def _check_metrics(where: str, metrics: Callable[..., Any], n: int, *arguments: Any) -> None:
    def named(*arguments: Any) -> dict[str, Any]:
        values = metrics(*arguments)
        _need(isinstance(values, Mapping), where, "return a dictionary of named arrays", values)
        return dict(values)

    for name, values in _shapes(where, named, *arguments).items():
        fits = getattr(values, "shape", None) == (n,)
        _need(fits, where, f"return one number per sequence for {name}, shape [{n}]", values)


class _Recorder(Tap):
    """Notes the names of all taps."""

    def __init__(self, names: list[str], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names = names

    def __call__(self, name: str, value: Array) -> Array:
        self._names.append(name)
        return super().__call__(name, value)


def _check_taps(config: Config, names: list[str]) -> None:
    wanted = [(f"{type(i).__name__}.tap", str(i.tap)) for i in config.interventions]
    wanted += [(_probe_name(probe), name) for probe in config.all_probes for name in getattr(probe, "reads", ())]
    for where, pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3) or names
            hint = f"it has {', '.join(near)}" if near else "it has none"
            raise InputError(f"{where}: {type(config.model).__name__} has no tap {pattern!r}; {hint}")


def _probe_name(probe: Any) -> str:
    return f"probe {getattr(probe, '__name__', type(probe).__name__)}"


def _check_measurements(config: Config) -> None:
    """Probes, the metric that tells that a run has learned, and those that schedules react to."""
    program = Program.of(config)
    with _naming("the start of a run"):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
    owners: dict[str, str] = {}
    for index, probe in enumerate(config.all_probes):
        if not hasattr(probe, "prepare"):  # what it returns is known only once it has prepared
            for name in _probed(program, slot, index, _probe_name(probe)):
                if owners.setdefault(name, _probe_name(probe)) != _probe_name(probe) or name in ("loss", "train_loss", "step"):
                    raise InputError(f"{_probe_name(probe)} returns {name!r}, which is measured already; choose another name")
    if any(hasattr(probe, "prepare") for probe in config.all_probes):
        return
    curves = _shapes("an evaluation", lambda slot: evaluate(program, slot), slot)
    learned = None if config.threshold is None else config.task.learned
    if learned is not None:
        where = f"{type(config.task).__name__}.learned"
        _check_measured(where, learned.metric, curves)
        _need(curves[learned.metric].shape == (), where, "name a metric that is one number", curves[learned.metric])
    for schedule, state in zip(schedules_in(slot.varying), slot.schedule_states, strict=True):
        where = type(schedule).__name__
        for metric in schedule.metrics():
            _check_measured(where, metric, curves)
        own = {metric: curves[metric] for metric in schedule.metrics()}
        after = _shapes(f"{where}.update", lambda s, *rest: s.update(*rest), schedule, state, own)
        _need(_is_same(state, after), f"{where}.update", "keep the shapes and types of its state", after)


def _probed(program: Program, slot: Slot, index: int, where: str) -> dict[str, Any]:
    """What a probe returns, on a run of these shapes."""

    def measured(slot: Slot) -> dict[str, Any]:
        task = slot.now()[0]
        probe = (*task.probes(), *program.probes)[index]
        batch = task.at_test().batch(user_key(slot.test_key), program.n_test, slot.truth)
        output = forward(program, slot, slot.params, batch.inputs, reads=getattr(probe, "reads", ()))
        curves = probe(slot.params, output, batch, slot.truth, slot.step)
        _need(isinstance(curves, Mapping), where, "return a dictionary of named arrays", curves)
        for name, value in curves.items():
            _need(hasattr(value, "shape"), where, f"return an array for {name}", value)
        return dict(curves)

    first, second = (_shapes(where, lambda slot: measured(slot), slot) for _ in range(2))
    _need(_is_same(first, second), where, "return the same names and shapes each time", "others")
    return first


def probe_curves(config: Config) -> tuple[str, ...]:
    """The names of the curves that the probes of a config measure; one that prepares may name its own in `curves`."""
    program = Program.of(config)
    names: dict[str, None] = {}
    with arithmetic(config.precision):
        slot = jax.eval_shape(lambda: start(program, Run(config, 0)))
        for index, probe in enumerate(config.all_probes):
            if hasattr(probe, "prepare"):
                names |= dict.fromkeys(getattr(probe, "curves", ()))
            elif probe in config.probes:
                names |= dict.fromkeys(_probed(program, slot, index, _probe_name(probe)))
    return tuple(names)


def _check_measured(where: str, metric: str, curves: Mapping[str, Any]) -> None:
    if metric not in curves:
        near = difflib.get_close_matches(metric, list(curves), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"measured are {', '.join(curves)}"
        raise InputError(f"{where} names the metric {metric!r}, which nothing measures; {hint}")
