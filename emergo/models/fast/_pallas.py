"""Helpers of the GPU kernels, which are written in Pallas for its Triton backend.

Every kernel replaces part of an optimised forward pass where it is faster. The replaced JAX
operations remain: tests compare the kernel with them, and they run wherever the kernel does not.
On a CPU kernels run in Pallas's interpret mode, which only tests use.
"""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pallas
from jaxtyping import Array

try:
    from jax.experimental.pallas import triton as _triton
except ImportError:  # this JAX lacks the Triton backend: kernels are unusable
    _triton = None

triton: Any = _triton
# JAX 0.11 warns whenever it compiles a kernel. Users cannot act on the warning, and a JAX without
# the backend takes the branch above.
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def usable(oldest: float, newest: float = math.inf) -> bool:
    """Return True if every device is an NVIDIA GPU with a compute capability in this range.

    Kernels were measured on an H200 (capability 9.0) with JAX 0.11.2. On other GPUs a kernel may
    need more registers or shared memory than exist; compilation would then fail and end a training.
    So each kernel names the GPUs that it is known to fit.
    """
    if triton is None:
        return False
    return all(oldest <= _capability(device) <= newest for device in jax.devices())


def _capability(device: Any) -> float:
    try:
        return float(getattr(device, "compute_capability", 0))
    except ValueError:  # AMD GPUs report a name such as gfx942
        return 0


def interpreted() -> bool:
    """Return True on a CPU, where kernels run in interpret mode."""
    return jax.default_backend() == "cpu"


def dot(a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
    """Multiply two bf16 matrices on tensor cores, accumulating in fp32.

    `over` names the contracted axis of each. The precision is fixed here, so that
    `jax.default_matmul_precision` does not change a kernel.
    """
    axes = ((over[:1], over[1:]), ((), ()))
    return jax.lax.dot_general(
        a, b, axes, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32
    )
