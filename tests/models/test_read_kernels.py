"""The kernels with which one query reads the stream, interpreted on the CPU, against the plain way and against 64 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emergo._contract import Spec, Tap
from emergo.models import Transformer, _mlp_kernel, _read_kernels

pytest.importorskip("jax.experimental.pallas.triton")
ROUNDING = 2.0**-8  # of bf16


def drawn(*shape, seed, scale=1.0, dtype: Any = jnp.bfloat16):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def distance(one, two):
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return np.linalg.norm(one - two) / np.linalg.norm(two)


def arguments(n, length, width, heads, columns, scale=0.5):
    probe = drawn(n, heads, width, seed=0, scale=scale)
    parts = tuple(drawn(n, length, width + more, seed=1 + i) for i, more in enumerate(columns))
    return probe, parts, drawn(n, heads, length, seed=8, dtype=jnp.float32), drawn(n, heads, width, seed=9)


def plainly(probe, parts, by_weights, by_taken):
    """Weights and what is taken, in 64 bits, and the gradients of scores and of the probe by automatic differentiation."""
    width, low = probe.shape[-1], parts[0].dtype
    x = jnp.sum(jnp.stack([part[..., :width].astype(jnp.float32) for part in parts]), 0).astype(low)
    with jax.enable_x64(True):
        x, probe, *g = (jnp.asarray(a, jnp.float64) for a in (x, probe, by_weights, by_taken))

        def take(scores):
            weights = jax.nn.softmax(scores)
            return weights, jnp.einsum("nht,ntw->nhw", weights, x)

        scores, back_to_probe = jax.vjp(lambda probe: jnp.einsum("nhw,ntw->nht", probe, x), probe)
        (weights, taken), back = jax.vjp(take, scores)
        (by_scores,) = back(tuple(g))
        return weights, taken, by_scores, *back_to_probe(by_scores)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 70), st.sampled_from([16, 32]), st.integers(1, 16), st.sampled_from([(0,), (16, 0), (0, 0)]))
@example(65, 32, 4, (0,))  # recall
@example(96, 32, 4, (16, 0))  # whole tiles; behind a column of ones
@example(1, 16, 1, (0,))
def test_kernels_have_weights_sums_and_gradients_of_64_bits(length, width, heads, columns):
    probe, parts, by_weights, by_taken = arguments(2, length, width, heads, columns)
    exact = plainly(probe, parts, by_weights, by_taken)
    weights, taken = jax.jit(_read_kernels.read)(probe, parts)
    by_scores, by_probe = jax.jit(_read_kernels.read_back)(weights, taken, by_weights, by_taken, parts)
    np.testing.assert_allclose(weights, exact[0], rtol=1e-4, atol=1e-6)  # exponentials of scores up to 30, in fp32
    assert distance(taken, exact[1]) < ROUNDING
    if length > 1:  # else the gradients are 0
        assert distance(by_scores, exact[2]) < ROUNDING
        assert distance(by_probe, exact[3]) < 2 * ROUNDING


def test_a_large_part_that_all_positions_share_costs_few_digits():
    """Then the gradient of scores is a small difference of large numbers: its sum over positions must stay near 0."""
    probe, (x,), by_weights, by_taken = arguments(4, 96, 32, 4, (0,), scale=0.1)
    parts = ((x.astype(jnp.float32) + 10 * drawn(4, 1, 32, seed=7, dtype=jnp.float32)).astype(jnp.bfloat16),)
    weights, taken = jax.jit(_read_kernels.read)(probe, parts)
    by_scores, by_probe = jax.jit(_read_kernels.read_back)(weights, taken, by_weights, by_taken, parts)
    exact = plainly(probe, parts, by_weights, by_taken)
    assert distance(by_scores, exact[2]) < 2 * ROUNDING
    assert distance(by_probe, exact[3]) < 5 * ROUNDING  # ten times as many digits cancel in its sums


def test_very_large_scores_are_weighed_as_by_a_softmax():
    probe, parts, by_weights, by_taken = arguments(2, 64, 16, 2, (0,), scale=1000.0)
    weights, taken = jax.jit(_read_kernels.read)(probe, parts)
    largest = np.asarray(plainly(probe, parts, by_weights, by_taken)[0]).argmax(-1)
    np.testing.assert_array_equal(np.asarray(weights).argmax(-1), largest)
    np.testing.assert_allclose(np.sum(weights, -1), 1, rtol=1e-4)
    assert np.isfinite(taken).all()


def test_runs_of_a_stack_are_each_their_own():
    one = arguments(2, 40, 16, 2, (16, 0))[:2]
    stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), one)
    for both, first in zip(jax.vmap(jax.jit(_read_kernels.read))(*stacked), _read_kernels.read(*one), strict=True):
        np.testing.assert_allclose(both[0], first, rtol=1e-6)
        assert distance(both[1], first) > 0.1


@pytest.mark.parametrize(("layers", "length"), [(2, 64), (3, 33)])  # through the MLP, whose kernel is for whole tiles; whole
def test_a_gpu_takes_the_kernels_where_they_apply(monkeypatch, layers, length):
    model, calls = Transformer(layers=layers, heads=2, width=16), []
    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model.init(jax.random.key(0), Spec(length, 5, 3)))
    inputs = drawn(2, length, 5, seed=0)

    def gradient(model=model, dtype: Any = jnp.bfloat16, fused=True):
        params, x = jax.tree.map(lambda a: a.astype(dtype), (low, inputs))
        loss = jax.jit(jax.grad(lambda p: jnp.sum(model.fast(p, x, Tap(fused=int(fused))).value.astype(jnp.float32) ** 2)))
        return jax.tree.leaves(loss(params))

    real = _read_kernels.read, _read_kernels.read_back
    monkeypatch.setattr(_read_kernels, "read", lambda *given: calls.append(len(given[-1])) or real[0](*given))
    monkeypatch.setattr(_read_kernels, "read_back", lambda *given: calls.append(len(given[-1])) or real[1](*given))
    plain = gradient()
    assert not calls  # there is no GPU here
    for module in (_read_kernels, _mlp_kernel):
        monkeypatch.setattr(module, "usable", lambda oldest, newest: True)
    kernel = gradient()
    assert calls == ([2, 2] if layers == 2 else [1, 1])  # the stream and what the MLP adds to it, or their sum
    exact = gradient(dtype=jnp.float32, fused=False)
    for other in ({"top_k": 3}, {"window": 9}, {"attention": "sigmoid"}):
        gradient(model.replace(**other))
    assert len(calls) == 2
    for one, two, right in zip(kernel, plain, exact, strict=True):
        if np.abs(right).max() > 1e-3:  # the gradients of keys' biases are 0
            assert distance(one, right) < 1.5 * distance(two, right) + ROUNDING  # some have three numbers


def test_they_are_for_powers_of_two_and_not_for_a_cpu():
    assert _read_kernels.fits(256, 4)
    assert _read_kernels.fits(16, 1)
    assert not any(_read_kernels.fits(*sizes) for sizes in [(8, 1), (192, 4), (512, 4), (256, 32)])
    assert not _read_kernels.applies(jnp.dtype(jnp.bfloat16), 256, 4)
