"""Random bf16 arrays, and errors relative to exact results, for tests of kernels."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import Transformer
from emergo.models.fast import find_path

ROUNDING = 2.0**-8


def drawn(*shape: int, seed: int, scale: float = 1.0) -> jax.Array:
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def distance(one: Any, two: Any) -> float:
    """Return the norm of the difference, relative to the norm of the second array."""
    one = np.asarray(one, np.float64)
    two = np.asarray(two, np.float64)
    return float(np.linalg.norm(one - two) / np.linalg.norm(two))


def transformer_gradient(
    model: Transformer, dtype: Any = jnp.bfloat16, stack_size: int = 10
) -> list[jax.Array]:
    """Return the gradient of a loss of the optimised path, at length 64."""
    spec = Spec(64, 5, 3)
    path = find_path(model, spec)
    assert path is not None
    start = model.init(jax.random.key(0), spec)
    given = (start, drawn(2, 64, 5, seed=0))
    given = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(dtype), given)

    def loss(params, inputs):
        value = path.forward(model, params, inputs, Tap(spec), stack_size).value
        return jnp.sum(value.astype(jnp.float32) ** 2)

    return jax.tree.leaves(jax.jit(jax.grad(loss))(*given))


def allow(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let a CPU use the kernels of these modules, interpreted."""
    for module in modules:
        monkeypatch.setattr(module, "usable", lambda *capabilities: True)
