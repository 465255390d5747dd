"""The kernel for the gradient of an MLP, interpreted on the CPU, against the plain way and against 64 bits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo.models import Transformer, _last_query, _mlp_kernel
from emergo.models._products import Linear

pytest.importorskip("jax.experimental.pallas.triton")
interpreted = _mlp_kernel.mlp_back
ROUNDING = 2.0**-8  # of bf16


def drawn(*shape, seed, scale=1.0):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def arguments(n, length, width, hidden, vectors=16):
    features = jnp.maximum(drawn(n, length, hidden, seed=2), 0)
    maps = drawn(width, hidden, seed=3, scale=0.1), drawn(hidden, width, seed=4, scale=0.1)
    return drawn(n, vectors, length, seed=0), drawn(n, vectors, width, seed=1), features, *maps


def distance(one, two):
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return np.linalg.norm(one - two) / np.linalg.norm(two)


@pytest.mark.parametrize(("length", "width", "hidden", "vectors"), [(64, 16, 64, 16), (256, 32, 128, 32)])
def test_the_kernel_is_as_close_to_64_bits_as_the_plain_way(length, width, hidden, vectors):
    given = arguments(2, length, width, hidden, vectors)
    with jax.enable_x64(True):
        over, of, features, up, down = (jnp.asarray(a, jnp.float64) for a in given)
        exact = _last_query.mlp_back(over, of, features, up, down)
    plain = jax.jit(_last_query.mlp_back)(*given)
    for kernel, other, reference in zip(jax.jit(interpreted)(*given), plain, exact, strict=True):
        assert reference is not None
        assert kernel.shape == reference.shape
        assert distance(kernel, reference) < min(ROUNDING, 1.5 * distance(other, reference) + 1e-3)


def test_runs_of_a_stack_are_each_their_own():
    one = arguments(2, 64, 16, 64)
    stacked = [jnp.stack([a, 2 * a]) for a in one]
    run: Any = jax.jit(interpreted)
    for both, first in zip(jax.vmap(run)(*stacked), run(*one), strict=True):
        np.testing.assert_array_equal(both[0], first)
        assert distance(both[1], first) > 0.5


def test_the_last_query_has_the_gradient_of_fp32_with_the_kernel():
    heads, width, hidden, length, n = 4, 32, 64, 64, 2
    layer = drawn(heads, width, width, seed=0, scale=0.03)
    up = Linear(drawn(width, hidden, seed=1, scale=0.2), drawn(hidden, seed=2))
    down = Linear(drawn(hidden, width, seed=3, scale=0.2), drawn(width, seed=4))
    x = drawn(n, length, width, seed=5)

    def ask(layer, last):
        return jnp.einsum("hvw,nv->nhw", layer, last), jnp.zeros((len(last), heads, 1), jnp.float32)

    def loss(back, *args):
        kernels = _last_query.Kernels(back)
        last, taken, _ = _last_query.last_query(ask, lambda _, scores: jax.nn.softmax(scores), kernels, *args)
        return jnp.sum(jnp.sin(taken.astype(jnp.float32))) + jnp.sum(last.astype(jnp.float32) ** 2)

    def gradient(back, dtype):
        given = jax.tree.map(lambda a: a.astype(dtype), (layer, (up, down), x))
        return jax.tree.leaves(jax.jit(jax.grad(functools.partial(loss, back), (0, 1, 2)))(*given))

    arrays = gradient(interpreted, jnp.bfloat16), gradient(None, jnp.bfloat16), gradient(None, jnp.float32)
    for kernel, other, exact in zip(*arrays, strict=True):
        assert distance(kernel, exact) < 2 * distance(other, exact) < 6 * ROUNDING


def test_a_gpu_takes_the_kernel_where_it_applies(monkeypatch):
    model, taken = Transformer(layers=2, heads=2, width=16), []
    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model.init(jax.random.key(0), Spec(64, 5, 3)))
    inputs = drawn(2, 64, 5, seed=0)

    def gradient(dtype=jnp.bfloat16, fused=True):
        params, x = jax.tree.map(lambda a: a.astype(dtype), (low, inputs))
        loss = jax.jit(jax.grad(lambda p: jnp.sum(model.fast(p, x, Tap(fused=int(fused))).value.astype(jnp.float32) ** 2)))
        return jax.tree.leaves(loss(params))

    def mlp_back(*args):
        taken.append(args[0].shape)
        return interpreted(*args)

    monkeypatch.setattr(_mlp_kernel, "mlp_back", mlp_back)
    plain = gradient()
    assert not taken  # there is no GPU here
    monkeypatch.setattr(_mlp_kernel, "usable", lambda oldest, newest: True)
    kernel = gradient()
    assert taken == [(2, 16, 64)]  # 2 heads have 5 vectors, filled up to 16
    exact = gradient(jnp.float32, fused=False)
    assert len(taken) == 1
    for one, two, right in zip(kernel, plain, exact, strict=True):
        if np.abs(right).max() > 1e-3:  # the gradients of keys' biases are 0
            assert distance(one, right) < 1.5 * distance(two, right) + 1e-3


def test_it_is_for_powers_of_two_and_whole_tiles_and_not_for_a_cpu():
    assert _mlp_kernel.fits(256, 256, 1024, 4)
    assert _mlp_kernel.fits(64, 64, 256, 1)
    odd = [(32, 256, 1024, 4), (129, 256, 1024, 4), (256, 192, 1024, 4), (256, 512, 2048, 4), (256, 256, 1024, 16)]
    assert not any(_mlp_kernel.fits(*sizes) for sizes in odd)
    assert not _mlp_kernel.applies(jnp.dtype(jnp.bfloat16), 256, 256, 1024, 4)
