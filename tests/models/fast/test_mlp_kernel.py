"""The kernel for the gradient of an MLP, interpreted on a CPU, against plain JAX and float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models import Transformer
from emergo.models._layers import Linear
from emergo.models.fast import _last_query, _mlp_kernel

from .bf16 import ROUNDING, allow, distance, drawn, transformer_gradient

pytest.importorskip("jax.experimental.pallas.triton")


def arguments(n, length, width, hidden, vectors=16):
    features = jnp.maximum(drawn(n, length, hidden, seed=2), 0)
    maps = drawn(width, hidden, seed=3, scale=0.1), drawn(hidden, width, seed=4, scale=0.1)
    return drawn(n, vectors, length, seed=0), drawn(n, vectors, width, seed=1), features, *maps


@pytest.mark.parametrize(
    ("length", "width", "hidden", "vectors"), [(64, 16, 64, 16), (256, 32, 128, 32)]
)
def test_the_kernel_is_as_exact_as_plain_jax(length, width, hidden, vectors):
    given = arguments(2, length, width, hidden, vectors)
    with jax.enable_x64(True):
        wide: Any = [jnp.asarray(a, jnp.float64) for a in given]
        exact = _last_query.mlp_back(*wide)
    kernel = jax.jit(_mlp_kernel.mlp_back)(*given)
    plain = jax.jit(_last_query.mlp_back)(*given)
    for ours, other, reference in zip(kernel, plain, exact, strict=True):
        assert reference is not None
        assert ours.shape == reference.shape
        assert distance(ours, reference) < min(ROUNDING, 1.5 * distance(other, reference) + 1e-3)


def test_stacked_runs_are_independent():
    one = arguments(2, 64, 16, 64)
    stacked = [jnp.stack([a, 2 * a]) for a in one]
    run: Any = jax.jit(_mlp_kernel.mlp_back)
    for both, first in zip(jax.vmap(run)(*stacked), run(*one), strict=True):
        np.testing.assert_array_equal(both[0], first)
        assert distance(both[1], first) > 0.5


def test_last_query_with_the_kernel_has_the_gradient_of_fp32():
    heads = 4
    width = 32
    hidden = 64
    layer = drawn(heads, width, width, seed=0, scale=0.03)
    up = Linear(drawn(width, hidden, seed=1, scale=0.2), drawn(hidden, seed=2))
    down = Linear(drawn(hidden, width, seed=3, scale=0.2), drawn(width, seed=4))
    x = drawn(2, 64, width, seed=5)

    def query_vector(layer, last):
        constant = jnp.zeros((len(last), heads, 1), jnp.float32)
        return jnp.einsum("hvw,nv->nhw", layer, last), constant

    def weights_of(_, scores):
        return jax.nn.softmax(scores)

    def loss(kernel, *args):
        last, taken, _ = _last_query.last_query(query_vector, weights_of, kernel, *args)
        return jnp.sum(jnp.sin(taken.astype(jnp.float32))) + jnp.sum(last.astype(jnp.float32) ** 2)

    def gradient(kernel, dtype):
        given = jax.tree.map(lambda a: a.astype(dtype), (layer, (up, down), x))
        graded = jax.grad(functools.partial(loss, kernel), (0, 1, 2))
        return jax.tree.leaves(jax.jit(graded)(*given))

    with_kernel = gradient(_mlp_kernel.mlp_back, jnp.bfloat16)
    plain = gradient(None, jnp.bfloat16)
    exact = gradient(None, jnp.float32)
    for ours, other, reference in zip(with_kernel, plain, exact, strict=True):
        assert distance(ours, reference) < 2 * distance(other, reference) < 6 * ROUNDING


def test_a_gpu_uses_the_kernel(monkeypatch):
    model = Transformer(layers=2, heads=2, width=16)
    calls = []
    kernel = _mlp_kernel.mlp_back

    def mlp_back(*args):
        calls.append(args[0].shape)
        return kernel(*args)

    monkeypatch.setattr(_mlp_kernel, "mlp_back", mlp_back)
    plain = transformer_gradient(model, stack_size=1)
    assert not calls  # the test runs without a GPU
    allow(monkeypatch, _mlp_kernel)
    ours = transformer_gradient(model, stack_size=1)
    assert calls == [(2, 16, 64)]  # 2 heads have 5 vectors, padded to 16
    exact = transformer_gradient(model, jnp.float32, stack_size=0)
    assert len(calls) == 1
    for one, two, reference in zip(ours, plain, exact, strict=True):
        if np.abs(reference).max() > 1e-3:  # the gradients of keys' biases are 0
            assert distance(one, reference) < 1.5 * distance(two, reference) + 1e-3


def test_supported_sizes():
    assert _mlp_kernel.fits(256, 256, 1024, 4)
    assert _mlp_kernel.fits(64, 64, 256, 1)
    unsupported = [
        (32, 256, 1024, 4),
        (129, 256, 1024, 4),
        (256, 192, 1024, 4),
        (256, 512, 2048, 4),
        (256, 256, 1024, 16),
    ]
    assert not any(_mlp_kernel.fits(*sizes) for sizes in unsupported)
    assert not _mlp_kernel.applies(jnp.dtype(jnp.bfloat16), 256, 256, 1024, 4)  # on a CPU
