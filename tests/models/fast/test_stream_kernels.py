"""The kernels around the first attention, interpreted on a CPU, against plain JAX and float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models import Transformer
from emergo.models._layers import Linear
from emergo.models.fast import _mlp_kernel, _stream_kernels
from emergo.models.fast._stream import Embedded
from emergo.models.fast._stream_kernels import (
    SMALL_MAPS,
    AfterAttention,
    Together,
    fits,
    formed,
    summed,
    summed_back,
    through,
)

from .bf16 import ROUNDING, allow, distance, drawn, transformer_gradient

pytest.importorskip("jax.experimental.pallas.triton")


def wide(tree):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


@pytest.mark.parametrize("runs", [1, 1000])
@pytest.mark.parametrize(
    ("n", "length", "width", "columns"), [(33, 48, 64, 16), (4, 64, 128, 80), (2, 256, 256, 144)]
)
def test_sums_of_products_and_a_table(n, length, width, columns, runs):
    tokens = drawn(n, length, columns, seed=0)
    mixed = drawn(n, length, width, seed=1)
    maps = drawn(columns, width, seed=2)
    out = drawn(width, width, seed=3)
    table = drawn(length, width, seed=4).astype(jnp.float32)
    x, m, e, o, c = wide((tokens, mixed, maps, out, table))
    assert distance(summed(SMALL_MAPS, runs, (tokens,), (maps,), table), x @ e + c) < ROUNDING
    both = summed(SMALL_MAPS, runs, (mixed, tokens), (out, maps), table, ones=True)
    assert distance(both[..., :width], m @ o + x @ e + c) < ROUNDING
    np.testing.assert_array_equal(both[..., width], 1)
    np.testing.assert_array_equal(both[..., width + 1 :], 0)


@pytest.mark.parametrize("runs", [1, 1000])
@pytest.mark.parametrize(("n", "length", "width", "columns"), [(33, 48, 64, 16), (4, 256, 128, 80)])
def test_gradients_of_a_map_and_a_table(n, length, width, columns, runs):
    tokens = drawn(n, length, columns, seed=0)
    g = drawn(n, length, width, seed=1)
    by_maps, by_table = summed_back(runs, tokens, g)
    exact = wide((tokens, g))
    assert distance(by_maps, np.einsum("ntc,ntw->cw", *exact)) < ROUNDING
    assert distance(by_table, exact[1].sum(0)) < ROUNDING


def parts(dtype, features=21, width=32, length=64, n=2):
    embed = Linear(drawn(features, width, seed=0, scale=0.2), drawn(width, seed=1))
    maps = [
        Linear(drawn(width, width, seed=i, scale=0.1), drawn(width, seed=i + 1))
        for i in range(2, 10, 2)
    ]
    tokens = drawn(n, length, features, seed=10)
    positions = drawn(length, width, seed=11)
    every = (embed, tokens, positions, tuple(maps[:3]), maps[3], drawn(n, length, width, seed=12))
    return jax.tree.map(lambda a: a.astype(dtype), every)


def loss(by_kernel, embed, tokens, positions, maps, out, mixed):
    embedded = Embedded.of(embed, tokens, positions, multiple=16)
    if by_kernel:
        mapped = through(1, embedded, maps)
        x = formed(AfterAttention(Together(1), embedded, out, mixed))
    else:
        stream = embedded.stream()
        mapped = tuple(map(stream) for map in maps)
        x = stream + out(mixed)
    return sum(jnp.sum(jnp.sin(a.astype(jnp.float32))) for a in (*mapped, 2 * x))


def test_gradients_are_as_exact_as_plain_jax():
    def gradients(by_kernel, dtype):
        return jax.tree.leaves(jax.jit(jax.grad(lambda p: loss(by_kernel, *p)))(parts(dtype)))

    kernel = gradients(True, jnp.bfloat16)
    plain = gradients(False, jnp.bfloat16)
    exact = gradients(False, jnp.float32)
    assert len(kernel) == 13
    for ours, other, reference in zip(kernel, plain, exact, strict=True):
        assert distance(ours, reference) < 1.5 * distance(other, reference) + ROUNDING


def test_stacked_runs_are_independent():
    given = parts(jnp.bfloat16)
    run: Any = jax.jit(jax.grad(lambda p: loss(True, *p)))
    both = jax.vmap(run)(jax.tree.map(lambda a: jnp.stack([a, 2 * a]), given))
    for first, two in zip(*map(jax.tree.leaves, (run(given), both)), strict=True):
        assert distance(two[0], first) < ROUNDING  # XLA batches the operations between kernels
        assert distance(two[1], first) > 0.1


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"attention": "sigmoid"},
    {"positions": "learned"},
    {"positions": "rope"},
    {"layers": 3},
    {"mlp": False},
]


@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: "-".join(map(str, options.values())) or "plain"
)
def test_a_gpu_uses_the_kernels(options, monkeypatch):
    model = Transformer(**({"layers": 2, "heads": 2, "width": 16} | options))
    calls = []

    def counted(*args, **more):
        calls.append(args[0])
        return summed(*args, **more)

    monkeypatch.setattr(_stream_kernels, "summed", counted)
    plain = transformer_gradient(model)
    exact = transformer_gradient(model, jnp.float32, stack_size=0)
    assert not calls  # the test runs without a GPU
    allow(monkeypatch, _stream_kernels, _mlp_kernel)
    kernel = transformer_gradient(model)
    assert len(calls) == 4  # queries, keys and values, and the stream after the attention
    transformer_gradient(model, stack_size=9)
    assert len(calls) == 4  # the kernels are slower for few runs
    norms = [np.linalg.norm(np.asarray(a, np.float64)) for a in exact]
    pairs = zip(kernel, plain, exact, norms, strict=True)
    errors = [(distance(a, e), distance(b, e)) for a, b, e, norm in pairs if norm > 1e-3]
    ours, others = np.array(errors).T
    # For single arrays, either error may be the smaller one by chance.
    assert np.mean(ours) < 1.5 * np.mean(others) + ROUNDING
    assert max(ours) < 2 * max(others) + ROUNDING


def test_supported_sizes():
    assert fits(256, 256, 65)
    assert fits(512, 256, 129)
    assert fits(32, 64, 5)
    unsupported = [(129, 256, 65), (256, 192, 65), (256, 256, 240), (256, 512, 65)]
    assert not any(fits(*sizes) for sizes in unsupported)
    assert not _stream_kernels.applies(jnp.dtype(jnp.bfloat16), 256, 256, 65, runs=64)  # on a CPU
