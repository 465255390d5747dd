"""What kernels of our own for GPUs share. They are written in Pallas, for its Triton backend.

Each replaces some operations of a model where it is faster. These operations are what it is tested against, and are used
wherever it does not apply.
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
except ImportError:  # a JAX without this backend: no kernel is usable
    _triton = None

triton: Any = _triton
# JAX 0.11 says so whenever it compiles a kernel. Users can do nothing about it, and a JAX without the backend needs nothing.
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def usable(oldest: float, newest: float = math.inf) -> bool:
    """Whether kernels can be compiled here, for NVIDIA GPUs whose compute capability is between these two.

    They were measured on an H200 (capability 9.0) with JAX 0.11.2. Elsewhere the compiler may refuse what does not fit, which
    would end a training: so a kernel names only the GPUs that have what it needs.
    """
    return triton is not None and all(oldest <= _capability(device) <= newest for device in jax.devices())


def _capability(device: Any) -> float:
    try:
        return float(getattr(device, "compute_capability", 0))
    except ValueError:  # another maker's GPU, which has a name there
        return 0


def interpreted() -> bool:
    """Whether a kernel is to be interpreted: on a CPU, where only tests call one."""
    return jax.default_backend() == "cpu"


def dot(a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
    """The product of two matrices of 16 bits over these axes, in fp32. Its terms are exact, whatever precision is in force."""
    axes = ((over[:1], over[1:]), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
