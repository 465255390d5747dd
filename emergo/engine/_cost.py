"""What a step must cost: operations, bytes, and how many runs fit into a device at once."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..models import Transformer
from ..tasks import MarkovChain, Recall
from ._chain import chain_bytes, chain_operations, chain_parameters
from ._config import Run
from ._program import chunk
from ._shape import Device, Shape, blank, products

# What to expect of a device, for plans: operations a second, seconds to draw a normal number, to update a parameter and to
# compile a program.
_RATE = {"cpu": 1e11, "gpu": 2e14}
_DRAW_SECONDS = {"cpu": 4.2e-9, "gpu": 0.0}
_UPDATE_SECONDS = {"cpu": 5e-9, "gpu": 2e-11}
_COMPILE_SECONDS = {"cpu": 8.0, "gpu": 10.0}


def next_evaluation(step: int, cadence: int = 25) -> int:
    """The step of a run's next evaluation: `cadence` later, or 2% later in whole multiples of it where that is more.

    It depends on the run's own step alone, so that a run is evaluated at the same steps alone and among others.
    """
    return step + max(cadence, step // 50 // cadence * cadence)


def step_operations(shape: Shape) -> float:
    """Floating-point operations of one training step of one run after folding: three times those of the forward.

    Matrix products alone: two operations a multiply and add. The backward pass of a product is two products of its size.
    """
    model, task = shape.model, shape.hull
    if isinstance(task, MarkovChain):
        assert not isinstance(model, Transformer)
        return chain_operations(task, model, shape.supply.width)
    assert isinstance(model, Transformer)
    tokens, width = shape.batch * task.length, model.width
    features = 0 if isinstance(task, Recall) else task.inputs + task.marked  # one-hot tokens are looked up
    hidden = 2 * width * model.mlp_factor * model.mlp  # up and down
    composes = model.norm != "pre" and features < width
    total = 0.0
    for layer in range(model.layers - 1):
        inputs = features if layer == 0 and composes else width
        total += 2 * tokens * (3 * inputs * width + 2 * task.length * width + width * width + hidden * width)
        if layer == 0:
            total += 2 * tokens * features * width  # the stream of the skip connection
    # The last layer: one query, and every token against one vector a head, twice.
    read = features if model.layers == 1 and model.norm != "pre" else width
    total += 2 * tokens * 2 * read * model.heads
    total += 2 * shape.batch * (4 * width * width + hidden * width + (features + task.outputs) * width)
    return 3 * total


def _parameters(shape: Shape) -> float:
    """How many there are, but for biases."""
    model, task = shape.model, shape.hull
    if isinstance(task, MarkovChain):
        assert not isinstance(model, Transformer)
        return chain_parameters(model)
    assert isinstance(model, Transformer)
    per_layer = model.width**2 * (4 + 2 * model.mlp_factor * model.mlp)
    parameters = model.layers * per_layer + (task.inputs + task.outputs) * model.width
    if model.attention in ("biased", "positional"):
        parameters += model.layers * model.heads * task.length**2
    return parameters


def run_bytes(shape: Shape) -> float:
    """A guess of the memory of one run: parameters and what the backward pass keeps. The compiler's own count decides."""
    model, task = shape.model, shape.hull
    if isinstance(task, MarkovChain):
        assert not isinstance(model, Transformer)
        return chain_bytes(task, model, max(shape.supply.width, shape.tests // 2), shape.samples)
    assert isinstance(model, Transformer)
    size = 2 if shape.precision == "bf16" else 4
    tokens = max(shape.batch, shape.tests / 2) * task.length
    kept = tokens * (2 * task.inputs * 4 + 2 * model.width * size)
    maps = model.heads * task.length * (2 * 4 + size)
    kept += (model.layers - 1) * tokens * (8 * model.width * size + 3 * model.mlp_factor * model.width * size + maps)
    return 4 * (6 * _parameters(shape)) + 1.2 * kept


def memory_of(device: Device) -> float:
    """Bytes that a group of runs may take on a device: most of what JAX has there, or half of the computer's free memory."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return 0.9 * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        return 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4e9


def step_seconds(shape: Shape, platform: str) -> float:
    """About how long a step of one run takes among others, on a device as the table above has it.

    Within a factor of two of what was timed on two CPU cores for widths of 32 to 256, and on an H200 at width 256; about half
    of that of minimal attentions of width 25 to 75 on a CPU. Products of narrow models are slow: the rate is that of width 256,
    and falls with the width below that.
    """
    kind = platform if platform in _RATE else "gpu"
    draws = shape.batch * shape.hull.draws
    rate = _RATE[kind] * min(1.0, shape.model.width / 256)
    return step_operations(shape) / rate + draws * _DRAW_SECONDS[kind] + _parameters(shape) * _UPDATE_SECONDS[kind]


def compile_seconds(platform: str) -> float:
    """About how long a program takes to compile."""
    return _COMPILE_SECONDS.get(platform, _COMPILE_SECONDS["gpu"])


def planned_width(shape: Shape, platform: str, budget: float) -> int:
    """How many runs to train at once: what fits and fills a GPU; on a CPU, what keeps a chunk under a few seconds."""
    fits = int(budget / run_bytes(shape))
    if platform != "cpu":
        return max(1, min(fits, 128))
    return max(1, min(fits, 32, int(5 * _RATE["cpu"] / (shape.hull.cadence * step_operations(shape)))))


def worth_narrowing(shape: Shape, device: Device, width: int, steps: int) -> bool:
    """Whether half the time that `width` runs took for `steps` steps exceeds what compiling a narrower program takes.

    A run that has lasted this long may well last as long again. A count of operations and not the clock decides, so that the
    same runs are always grouped the same way.
    """
    kind = device.platform if device.platform in _RATE else "gpu"
    return width * steps * step_operations(shape) / _RATE[kind] / 2 > _COMPILE_SECONDS[kind]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled chunk for stacks of one width."""

    run: Any
    width: int
    bytes: int
    """What the compiler needs for it: arguments, results and temporary buffers."""


def worth_tuning(shape: Shape, device: Device, runs: Sequence[Run]) -> bool:
    """Whether these runs may take so long that a GPU's compiler should search for the best kernels.

    That takes three times as long and saves a tenth of the time; runs took about a third of the steps that they may.
    """
    most = sum(run.config.steps for run in runs) * step_operations(shape) / _RATE.get(device.platform, _RATE["gpu"])
    return device.platform != "cpu" and most > 60 * _COMPILE_SECONDS["gpu"]


def compile_chunk(shape: Shape, width: int, device: Device, budget: float, tuned: bool = False) -> Program:
    """Compiles for `width` runs, or for half as many as often as it takes to stay within `budget` bytes; once in a process."""
    while True:
        program = _compile(shape, width, device, tuned)
        if program.bytes <= budget or width == 1:
            return program
        width = width // 2


@functools.lru_cache(maxsize=64)
def _compile(shape: Shape, width: int, device: Device, tuned: bool) -> Program:
    place = jax.sharding.SingleDeviceSharding(device)
    slot = jax.eval_shape(lambda: blank(shape))
    stack = jax.tree.map(lambda x: jax.ShapeDtypeStruct((width, *x.shape), x.dtype, sharding=place), slot)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=place)
    with products(shape.precision):
        lowered = jax.jit(chunk, static_argnums=(0, 1), donate_argnums=2).lower(shape, device.platform == "gpu", stack, count)
    # The search among generated kernels is most of a GPU's compilation; without it the vendor's are used, about a tenth slower.
    compiled = lowered.compile({} if tuned or device.platform == "cpu" else {"xla_gpu_enable_triton_gemm": False})
    used, total = compiled.memory_analysis(), 0
    if used is not None:
        total = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
    return Program(compiled, width, total)
