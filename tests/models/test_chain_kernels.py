"""The kernels of the first layer, interpreted on a CPU, against the plain way and 64 bits."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo.models import MinimalAttention, MinimalLayer
from emergo.models import _chain_kernels as kernels
from emergo.models._minimal import _summed

pytest.importorskip("jax.experimental.pallas.triton")
# Few counts of sequences below are multiples of these.
TUNING = kernels.Tuning(forward=2, scores=3, values=5, queries=4, interpret=True)


@functools.cache
def program(tuning: kernels.Tuning | None, heads: int, last: int) -> Any:
    """Output, last rows and the gradients of queries and values of many runs; by the plain way without a tuning."""

    def run(layer, sums, tokens, context):
        def total(layer):
            if tuning is None:
                model = dataclasses.replace(MinimalAttention(heads=heads), context=context)
                both = _summed(functools.partial(model._first, x=tokens, last=last), MinimalLayer(*layer))
            else:
                both = kernels.first_layer(context, layer, tokens, last, tuning)
            return sum(jnp.sum(a * b) for a, b in zip(both, sums, strict=True)), both

        gradient, both = jax.grad(total, has_aux=True)(layer)
        return (*both, *gradient)

    return jax.jit(jax.vmap(run))


class Case:
    """Two runs with a context of their own; the gradient is that of random sums of both outputs."""

    def __init__(self, n=7, length=6, last=4, vocabulary=5, outputs=5, heads=2):
        rng, size = np.random.default_rng(0), vocabulary + length
        self.last, self.heads = last, heads
        self.layer = [3 * rng.standard_normal((2, heads, size, columns)) for columns in (size, outputs)]
        self.tokens = rng.integers(vocabulary, size=(2, n, length)).astype(np.int32)
        shapes = (2, n, last, outputs), (2, heads, n, length)
        self.sums = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.context = np.asarray([2, length], np.int32)

    def of(self, tuning: kernels.Tuning | None, dtype: Any = jnp.float32, scale: float = 1.0) -> list[np.ndarray]:
        layer = tuple(np.asarray(scale * array, np.float32) for array in self.layer)
        arrays = jax.tree.map(lambda array: jnp.asarray(array, dtype), (layer, self.sums))
        with jax.default_matmul_precision("highest"):
            return [np.asarray(a) for a in program(tuning, self.heads, self.last)(*arrays, self.tokens, self.context)]


def error(found, exact):
    return np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"n": 9, "length": 19, "last": 17, "vocabulary": 21, "outputs": 18, "heads": 3},
        {"n": 1, "length": 9, "last": 5, "vocabulary": 7, "outputs": 7},  # fewer sequences than a program takes
        {"n": 2, "length": 32, "last": 1, "vocabulary": 64, "outputs": 64},  # the largest
    ],
)
def test_the_kernels_are_as_exact_as_the_plain_way(sizes):
    case = Case(**sizes)
    for scale in (1.0, 1e-9):
        with jax.enable_x64(True):
            exact = case.of(None, jnp.float64, scale)
        both = case.of(TUNING, scale=scale), case.of(None, scale=scale)
        for name, found, plain, right in zip(("out", "rows", "query", "value"), *both, exact, strict=True):
            assert found.shape == right.shape, name
            assert error(found, right) < 2 * error(plain, right) + 1e-8, (name, scale)


def test_equal_heads_have_equal_gradients_bit_for_bit():
    case = Case(n=11, length=17, last=17, heads=3)
    case.layer = [np.repeat(array[:, :1], 3, 1) for array in case.layer]
    case.sums[1][:] = case.sums[1][:, :1]
    _, rows, *gradients = case.of(TUNING)
    for array in (rows, *gradients):
        assert np.abs(array).max() > 0.1
        np.testing.assert_array_equal(array, np.repeat(array[:, :1], 3, 1))


def test_a_gpu_takes_the_kernels_where_they_apply(monkeypatch):
    tokens = jnp.zeros((3, 6), jnp.int32)
    model, spec = MinimalAttention(heads=2, layers=2, start="xavier"), Spec(6, 5, 5, answers=4)
    params, taken = model.init(jax.random.key(0), spec), []

    def first_layer(context, layer, x, last):
        taken.append(last)
        return real(context, layer, x, last, TUNING)

    def fast(fused):
        output = jax.jit(lambda params: model.fast(params, tokens, Tap(spec, fused=int(fused))))(params)
        assert output.attention is not None
        return output.value, output.attention

    real = kernels.first_layer
    monkeypatch.setattr(kernels, "first_layer", first_layer)
    plain = fast(True)
    assert not taken  # there is no GPU here
    monkeypatch.setattr(kernels, "usable", lambda oldest: True)
    fused = fast(True)
    assert taken == [6]  # all positions: the next layer reads them
    for one, two in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    fast(False)
    assert len(taken) == 1


def test_they_are_for_small_layers_in_fp32(monkeypatch):
    monkeypatch.setattr(kernels, "usable", lambda oldest: True)

    def applies(length=6, vocabulary=5, outputs=5, dtype=jnp.float32):
        size = vocabulary + length
        layer = jnp.zeros((2, size, size), dtype), jnp.zeros((2, size, outputs), dtype)
        return kernels.applies(layer, jnp.zeros((3, length), jnp.int32))

    assert applies()
    assert applies(32, 64, 64)
    assert not any([applies(length=33), applies(vocabulary=65), applies(outputs=65), applies(dtype=jnp.bfloat16)])
