"""Compare an optimised forward pass with `apply` before it trains a program.

`apply` defines a model, and an optimised path (`models/fast`) must compute the same. Tests cannot
cover every combination of sizes, precisions and devices, so the comparison runs on the program that
is about to be trained: two of its runs are stacked and padded as in the program, with its batch,
its precision and its dropout keys. Parameters are perturbed, because many start at zero and would
hide wrong terms. We compare the output value (or the features and the readout), the attention, the
value path and the gradient of the training loss.

How close is close enough? Both computations round, so neither equals the exact result. We compute
`apply` once more in a higher precision as a reference. The error of the optimised path may be at
most three times the error of `apply` in the program's own precision.

The verdict is stored next to the compiled programs, so a later process does not repeat the work.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .. import core, models
from ..core.cache import kept_files
from ..core.contract import Batch, Output
from ..core.errors import FastPathError
from ..core.json import digest
from ..models.fast import VARIABLE, FastPath, find_path
from ._config import Precision, Run
from ._cost import ON_CPU, UNTUNED, Device, compile_with
from ._program import (
    Program,
    Slot,
    arithmetic,
    draw,
    forward,
    in_program,
    lower,
    products,
    program_name,
    shared_data,
    start,
    user_key,
    widen,
)

TOLERANCE = 3.0
"""Largest accepted error, in units of the error of `apply` in the same precision."""
_ATTEMPTS = 3  # draws of parameters over which errors are summed before a path is rejected
_MOST_PAIRS = 2**23  # pairs of positions in the batch that is compared, per run
_REFERENCE: Mapping[Precision, Precision] = {
    "bf16": "fp32",
    "tf32": "fp32",
    "fp32": "fp64",
    "fp64": "fp64",
}
_ROUNDOFF = {"bf16": 2.0**-8, "tf32": 2.0**-11, "fp32": 2.0**-24, "fp64": 2.0**-53}
_verified: set[str] = set()


def verify_path(
    program: Program,
    runs: Sequence[Run],
    sizes: Mapping[str, int],
    stack_size: int,
    device: Device,
) -> None:
    """Raise a `FastPathError` if the optimised path of a program differs from `apply`.

    Returns at once if the program runs `apply`, or if the verdict is known.

    **Arguments:**

    - `program`: the settings that all runs share.
    - `runs`: all runs of the program. The smallest and the largest are compared.
    - `sizes`: sizes of the task to which the program pads.
    - `stack_size`: number of runs trained together on a GPU; 0 on a CPU.
    - `device`: the device that will train the program.
    """
    config = runs[0].config
    # `in_program` resets some fields, so look up the model that the program contains.
    task, model, *_ = in_program(config, sizes)
    path = find_path(model, task.spec)
    if path is None or config.interventions:
        return

    def own_sizes(run: Run) -> list[int]:
        return [getattr(run.config.task, name) for name in sizes]

    ordered = sorted(runs, key=own_sizes)
    functions = [f"{f.__module__}.{f.__qualname__}" for f in (path.forward, type(model).apply)]
    known_by = {
        "functions": functions,
        "program": program_name(config),
        "sizes": sorted(sizes.items()),
        "padded": own_sizes(ordered[0]) != list(sizes.values()),
        "stack": stack_size,
        "device": [device.device_kind, jax.__version__],
        "source": _source_digest(),
    }
    key = f"verdict-{digest(known_by, 32)}"
    files = kept_files("verdicts")
    if key not in _verified and (files is None or files.get(key) != b"agrees"):
        smallest_and_largest = [ordered[0], *ordered[1:][-1:]]
        compare_path(path, program, smallest_and_largest, sizes, stack_size, device)
        if files is not None:
            files.put(key, b"agrees")
    _verified.add(key)


@functools.cache
def _source_digest() -> str:
    """Return a hash of the source of the models and of the modules that they use."""
    total = hashlib.sha256()
    for package in (models, core):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()


class _Outcome(NamedTuple):
    """The arrays that are compared, with a leading axis of runs."""

    value: PyTree
    attention: PyTree
    value_path: PyTree
    features: PyTree
    readout: PyTree
    gradient: PyTree
    evaluation: PyTree  # the output without dropout, if the path has dropout


def compare_path(
    path: FastPath,
    program: Program,
    runs: Sequence[Run],
    sizes: Mapping[str, int],
    stack_size: int,
    device: Device,
) -> None:
    """Compare a path with `apply` on a stack of these runs; raise a `FastPathError` on a mismatch.

    See [`verify_path`][] for the other arguments.
    """
    length = in_program(runs[0].config, sizes)[0].spec.length
    few = min(program.batch, max(2, _MOST_PAIRS // length**2))
    # Draw fresh data even if the program has a finite data set, which may be large.
    n_train = program.n_train if program.rows else None
    program = dataclasses.replace(program, batch=few, n_train=n_train, stack_size=stack_size)
    shared = shared_data(runs[0].config.task)

    def drawn(slot: Slot, shared: PyTree) -> Batch:
        return draw(program, slot._replace(shared=shared))

    with arithmetic(program.precision), jax.default_device(device):
        slots = [jax.device_get(start(program, run, sizes)) for run in runs]
        stack: Slot = jax.tree.map(lambda *rows: np.stack(rows), *slots)
        data = jax.device_get(
            _compile_quickly(drawn, device, stack, shared, mapped=1)(stack, shared)
        )
    precise = dataclasses.replace(program, precision=_REFERENCE[program.precision])
    compiled = functools.partial(_compile, path.dropout, stack, data, device)
    fast = compiled(path, program)
    plain = compiled(None, program)
    exact = plain if precise == program else compiled(None, precise)
    errors: dict[str, np.ndarray] = {}
    ratios: dict[str, float] = {}
    # A tiny error of `apply` may be luck. Before we reject a path, we sum over further draws.
    for attempt in range(_ATTEMPTS):
        arguments = (stack, _perturbed(stack.params, attempt), data)
        for name, squares in _squared_errors(*(run(*arguments) for run in (fast, plain, exact))):
            errors[name] = errors.get(name, 0) + squares
        ratios = _ratios(errors, _ROUNDOFF[program.precision], program.batch)
        if max(ratios.values()) <= TOLERANCE:
            return
    model = type(runs[0].config.model).__name__
    wrong = [name for name, ratio in ratios.items() if ratio > TOLERANCE]
    raise FastPathError(
        f"the optimised path {path.name} differs from {model}.apply in {', '.join(wrong[:3])}: "
        f"its error is up to {max(ratios.values()):.3g} times that of apply in "
        f"{program.precision}, at most {TOLERANCE:g} are accepted; this is a bug of emergo; "
        f"{VARIABLE}=off trains with apply"
    )


def _perturbed(params: PyTree, seed: int) -> PyTree:
    """Add noise to parameters: 0.3 times their own spread, or the spread of a fresh map."""
    generator = np.random.default_rng(seed)

    def noisy(leaf: np.ndarray) -> np.ndarray:
        of_map = 1 / math.sqrt(max(leaf.shape[1:], default=1))
        spread = max(float(np.sqrt(np.mean(leaf**2))), of_map)
        return (leaf + 0.3 * spread * generator.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(noisy, params)


def _compile_quickly(
    of_run: Callable[..., PyTree], device: Device, *arguments: PyTree, mapped: int | None = None
) -> jax.stages.Compiled:
    """Compile a function for a stack of runs, without optimisation, because it runs only once.

    **Arguments:**

    - `mapped`: how many of the first arguments have an axis of runs; by default all.
    """
    quick = ON_CPU | {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
    axes = tuple(0 if mapped is None or i < mapped else None for i in range(len(arguments)))
    lowered = jax.jit(jax.vmap(of_run, axes)).lower(*arguments)
    return compile_with(lowered, quick if device.platform == "cpu" else UNTUNED)


def _compile(
    dropout: bool,
    slots: Slot,
    data: Batch,
    device: Device,
    path: FastPath | None,
    program: Program,
) -> Callable[..., dict[str, np.ndarray]]:
    """Compile a path, or `apply` if it is None, with its gradient.

    **Returns:** a function of (slots, parameters, data) that returns float64 arrays by name.
    """
    precision = program.precision

    def of_run(slot: Slot, params: PyTree, data: Batch) -> _Outcome:
        def loss(params: PyTree) -> tuple[Array, Output]:
            key = user_key(slot.data_key)
            output = forward(program, slot, params, data, key=key, path=path)
            return jnp.mean(slot.now()[0].loss(output, data)), output

        lowered = lower(precision, params)
        (_, output), gradient = jax.value_and_grad(loss, has_aux=True)(lowered)
        evaluation = None
        if dropout:
            evaluation = forward(program, slot, lowered, data, path=path)._replace(taps=None)
        return _Outcome(
            output.value,
            output.attention,
            output.value_path,
            output.features,
            output.readout,
            gradient,
            evaluation,
        )

    with arithmetic(precision), products(precision), jax.default_device(device):
        arguments = widen(precision, (slots.params, data))
        compiled = _compile_quickly(of_run, device, slots, *arguments)

    def run(slots: Slot, params: PyTree, data: Batch) -> dict[str, np.ndarray]:
        with arithmetic(precision), jax.default_device(device):
            outcome = jax.device_get(compiled(slots, *widen(precision, (params, data))))
        leaves = jax.tree_util.tree_leaves_with_path(outcome)
        named = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}
        return {name: np.asarray(leaf, np.float64) for name, leaf in named.items()}

    return run


def _squared_errors(*outcomes: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Compare the outcomes of the path, of `apply` and of the reference.

    **Returns:** the name of every array, its squared norm and both squared errors. Only numbers
    that are finite in the reference count. The error of an array that is missing is infinite.
    """
    fast, plain, exact = outcomes
    for name in exact | fast:
        if name not in exact or name not in fast or fast[name].shape != exact[name].shape:
            yield name, np.array([1.0, np.inf, 0.0])
            continue
        finite = np.isfinite(exact[name])
        differences = (exact[name], fast[name] - exact[name], plain[name] - exact[name])
        yield name, np.array([np.sum(x[finite] ** 2) for x in differences])


def _ratios(errors: Mapping[str, np.ndarray], roundoff: float, batch: int) -> dict[str, float]:
    """Return the error of the path in every array, in units of the error of `apply`.

    Three floors exclude chance. An error of one unit of roundoff is always accepted. A gradient is
    a sum over the batch in at least fp32, whose error depends on the order of the terms: it grows
    like the root of their number in one chain of additions, and less in several shorter ones. Some
    gradients are exactly zero, such as the gradient of the keys' bias under softmax. Both
    computations return noise there, so we accept a small share of the roundoff of the whole
    gradient.
    """
    of_sum = min(roundoff, _ROUNDOFF["fp32"]) * math.sqrt(batch)
    whole = math.sqrt(sum(v[0] for name, v in errors.items() if name.startswith("gradient")))
    ratios = {}
    for name, (size, of_path, of_apply) in errors.items():
        floor = roundoff * math.sqrt(size)
        if name.startswith("gradient"):
            floor = max(floor, of_sum * math.sqrt(size), 0.05 * roundoff * whole)
        ratio = math.sqrt(of_path) / max(math.sqrt(of_apply), floor, 1e-300)
        ratios[name] = ratio if math.isfinite(ratio) else math.inf
    return ratios
