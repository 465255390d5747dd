"""The kernels of the first minimal layer, interpreted on a CPU, against plain JAX and float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import MinimalAttention, MinimalLayer
from emergo.models.fast import _chain_kernels as kernels
from emergo.models.fast import _minimal, find_path

from .bf16 import allow

pytest.importorskip("jax.experimental.pallas.triton")
# The numbers of sequences in the tests are mostly no multiples of these.
TUNING = kernels.Tuning(forward=2, scores=3, values=5, queries=4)


@functools.cache
def program(by_kernel: bool, heads: int, last: int) -> Any:
    """Return a function of stacked runs: outputs, last rows, gradients of queries and values."""

    def run(layer, weights, tokens, context):
        def total(layer):
            if by_kernel:
                both = kernels.first_layer(context, layer, tokens, last, TUNING)
            else:
                model = MinimalAttention(heads=heads, context=context)
                first = functools.partial(_minimal._first, model, x=tokens, last=last)
                both = _minimal._sum_heads(first, MinimalLayer(*layer))
            return sum(jnp.sum(a * b) for a, b in zip(both, weights, strict=True)), both

        gradient, both = jax.grad(total, has_aux=True)(layer)
        return (*both, *gradient)

    return jax.jit(jax.vmap(run))


class Case:
    """Two runs with different contexts, and random weights on their outputs."""

    def __init__(self, n=7, length=6, last=4, vocabulary=5, outputs=5, heads=2):
        rng = np.random.default_rng(0)
        size = vocabulary + length
        self.last = last
        self.heads = heads
        self.layer = [3 * rng.standard_normal((2, heads, size, c)) for c in (size, outputs)]
        self.tokens = rng.integers(vocabulary, size=(2, n, length)).astype(np.int32)
        shapes = ((2, n, last, outputs), (2, heads, n, length))
        self.weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.context = np.asarray([2, length], np.int32)

    def run(self, by_kernel: bool, dtype: Any = jnp.float32, scale: float = 1.0) -> list[Any]:
        layer = tuple(np.asarray(scale * array, np.float32) for array in self.layer)
        arrays = jax.tree.map(lambda array: jnp.asarray(array, dtype), (layer, self.weights))
        with jax.default_matmul_precision("highest"):
            found = program(by_kernel, self.heads, self.last)(*arrays, self.tokens, self.context)
        return [np.asarray(a) for a in found]


def error(found, exact):
    return np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"n": 9, "length": 19, "last": 17, "vocabulary": 21, "outputs": 18, "heads": 3},
        # fewer sequences than a program processes
        {"n": 1, "length": 9, "last": 5, "vocabulary": 7, "outputs": 7},
        # the largest supported sizes
        {"n": 2, "length": 32, "last": 1, "vocabulary": 64, "outputs": 64},
    ],
)
def test_the_kernels_are_as_exact_as_plain_jax(sizes):
    case = Case(**sizes)
    for scale in (1.0, 1e-9):
        with jax.enable_x64(True):
            exact = case.run(False, jnp.float64, scale)
        both = zip(case.run(True, scale=scale), case.run(False, scale=scale), strict=True)
        names = ("out", "rows", "query", "value")
        for name, (found, plain), right in zip(names, both, exact, strict=True):
            assert found.shape == right.shape, name
            assert error(found, right) < 2 * error(plain, right) + 1e-8, (name, scale)


def test_equal_heads_have_equal_gradients_bit_for_bit():
    case = Case(n=11, length=17, last=17, heads=3)
    case.layer = [np.repeat(array[:, :1], 3, 1) for array in case.layer]
    case.weights[1][:] = case.weights[1][:, :1]
    _, rows, *gradients = case.run(True)
    for array in (rows, *gradients):
        assert np.abs(array).max() > 0.1
        np.testing.assert_array_equal(array, np.repeat(array[:, :1], 3, 1))


def test_a_gpu_uses_the_kernels(monkeypatch):
    tokens = jnp.zeros((3, 6), jnp.int32)
    model = MinimalAttention(heads=2, layers=2, start="xavier")
    spec = Spec(6, 5, 5, answers=4)
    params = model.init(jax.random.key(0), spec)
    path = find_path(model, spec)
    assert path is not None
    calls = []
    kernel = kernels.first_layer

    def first_layer(context, layer, x, last):
        calls.append(last)
        return kernel(context, layer, x, last, TUNING)

    def forward(stack_size):
        run = jax.jit(lambda p: path.forward(model, p, tokens, Tap(spec), stack_size)[:2])
        return run(params)

    monkeypatch.setattr(kernels, "first_layer", first_layer)
    plain = forward(1)
    assert not calls  # the test runs without a GPU
    allow(monkeypatch, kernels)
    for one, two in zip(forward(1), plain, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    assert calls == [6]  # all positions, which the next layer reads
    forward(0)
    assert len(calls) == 1


def test_supported_layers(monkeypatch):
    allow(monkeypatch, kernels)

    def applies(length=6, vocabulary=5, outputs=5, dtype=jnp.float32):
        size = vocabulary + length
        layer = jnp.zeros((2, size, size), dtype), jnp.zeros((2, size, outputs), dtype)
        return kernels.applies(layer, jnp.zeros((3, length), jnp.int32))

    assert applies()
    assert applies(32, 64, 64)
    assert not applies(length=33)
    assert not applies(vocabulary=65)
    assert not applies(outputs=65)
    assert not applies(dtype=jnp.bfloat16)
