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
# No count of sequences below is a multiple of these.
TUNING = kernels.Tuning(forward_rows=2, score_rows=3, value_rows=5, query_rows=4, interpret=True)


class Case:
    """Two runs with a context of their own; the gradient is that of random sums of both outputs."""

    def __init__(self, n=7, length=6, last=4, vocabulary=5, outputs=5, heads=2, scale=1.0):
        rng, size = np.random.default_rng(0), vocabulary + length
        self.last, self.heads = last, heads
        query, value = (3 * rng.standard_normal((2, heads, size, last)) for last in (size, outputs))
        self.layer = [np.asarray(scale * array, np.float32) for array in (query, value)]
        self.tokens = rng.integers(vocabulary, size=(2, n, length)).astype(np.int32)
        shapes = (2, n, last, outputs), (2, heads, n, length)
        self.sums = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.context = np.asarray([2, length], np.int32)

    def of(self, tuning: kernels.Tuning | None, dtype: Any = jnp.float32) -> list[np.ndarray]:
        """Output, last rows and the gradients of queries and values; by the plain way without a tuning."""

        def run(layer, sums, tokens, context):
            def total(layer):
                if tuning is None:
                    model = dataclasses.replace(MinimalAttention(heads=self.heads), context=context)
                    both = _summed(functools.partial(model._first, x=tokens, last=self.last), MinimalLayer(*layer))
                else:
                    both = kernels.first_layer(tuning, self.last, context, tokens, *layer)
                return sum(jnp.sum(a * b) for a, b in zip(both, sums, strict=True)), both

            gradient, both = jax.grad(total, has_aux=True)(layer)
            return (*both, *gradient)

        arrays = jax.tree.map(lambda array: jnp.asarray(array, dtype), (self.layer, self.sums))
        with jax.default_matmul_precision("highest"):
            return [np.asarray(a) for a in jax.jit(jax.vmap(run))(*arrays, self.tokens, self.context)]


def error(found, exact):
    return np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))


@pytest.mark.parametrize("sizes", [{}, {"n": 9, "length": 19, "last": 17, "vocabulary": 21, "outputs": 18, "heads": 3}])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_the_kernels_are_as_exact_as_the_plain_way(sizes, scale):
    case = Case(**sizes, scale=scale)
    with jax.enable_x64(True):
        exact = case.of(None, jnp.float64)
    for name, found, plain, right in zip(("out", "rows", "query", "value"), case.of(TUNING), case.of(None), exact, strict=True):
        assert found.shape == right.shape, name
        assert error(found, right) < 2 * error(plain, right) + 1e-8, name


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
    params = model.init(jax.random.key(0), spec)
    plain = model.fast(params, tokens, Tap(spec, fused=True))  # there is no GPU here
    taken = []

    def first_layer(*args):
        taken.append(args[1])
        return real(*args)

    real = kernels.first_layer
    monkeypatch.setattr(kernels, "first_layer", first_layer)
    monkeypatch.setattr(kernels, "TUNING", TUNING)
    monkeypatch.setattr(kernels, "_capable", lambda: True)
    fused = model.fast(params, tokens, Tap(spec, fused=True))
    assert taken == [6]  # all positions: the next layer reads them
    for one, two in zip(fused[:2], plain[:2], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    model.fast(params, tokens, Tap(spec))
    assert len(taken) == 1
    wide = jnp.zeros((2, 65 + 6, 65 + 6))
    for query, outputs in ((wide, 5), (params[0].query.astype(jnp.bfloat16), 5), (params[0].query, 65)):
        assert not kernels.applies(query, jnp.zeros((2, query.shape[1], outputs)), tokens)
    assert not kernels.applies(jnp.zeros((2, 38, 38)), jnp.zeros((2, 38, 5)), jnp.zeros((3, 33), jnp.int32))
