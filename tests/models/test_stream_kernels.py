"""The kernels of the stream below the first layer, interpreted on a CPU, against the plain way and 64 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo.models import Transformer, _mlp_kernel, _stream_kernels
from emergo.models._products import Linear
from emergo.models._stream import Embedded
from emergo.models._stream_kernels import (
    BACK,
    SMALL_MAPS,
    BehindAttention,
    Together,
    _pieces,
    fits,
    formed,
    summed,
    summed_back,
    through,
)

pytest.importorskip("jax.experimental.pallas.triton")
ROUNDING = 2.0**-8  # of bf16


def drawn(*shape, seed, scale=1.0):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def distance(one, two):
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return np.linalg.norm(one - two) / np.linalg.norm(two)


def wide(tree, dtype=np.float64):
    return jax.tree.map(lambda a: np.asarray(a, dtype), tree)


@pytest.mark.parametrize("runs", [1, 1000])
@pytest.mark.parametrize(("n", "length", "width", "columns"), [(33, 48, 64, 16), (4, 64, 128, 80), (2, 256, 256, 144)])
def test_sums_of_products_and_a_table(n, length, width, columns, runs):
    tokens, mixed = drawn(n, length, columns, seed=0), drawn(n, length, width, seed=1)
    maps, out = drawn(columns, width, seed=2), drawn(width, width, seed=3)
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
    tokens, g = drawn(n, length, columns, seed=0), drawn(n, length, width, seed=1)
    by_maps, by_table = summed_back(runs, tokens, g)
    exact = wide((tokens, g))
    assert distance(by_maps, np.einsum("ntc,ntw->cw", *exact)) < ROUNDING
    assert distance(by_table, exact[1].sum(0)) < ROUNDING


@pytest.mark.parametrize(
    ("n", "programs", "pieces"),
    [(32, 512, 1), (32, 40, 16), (32, 8, 32), (48, 1, 48), (3, 1, 3), (1, 1, 1), (512, 512, 16), (99, 512, 9), (37, 512, 37)],
)
def test_few_runs_have_more_programs(n, programs, pieces):
    assert _pieces(n, programs) == pieces


def parts(dtype, features=21, width=32, length=64, n=2):
    embed = Linear(drawn(features, width, seed=0, scale=0.2), drawn(width, seed=1))
    maps = [Linear(drawn(width, width, seed=i, scale=0.1), drawn(width, seed=i + 1)) for i in range(2, 10, 2)]
    tokens, positions = drawn(n, length, features, seed=10), drawn(length, width, seed=11)
    all_of_it = embed, tokens, positions, tuple(maps[:3]), maps[3], drawn(n, length, width, seed=12)
    return jax.tree.map(lambda a: a.astype(dtype), all_of_it)


def loss(by_kernel, embed, tokens, positions, maps, out, mixed):
    embedded = Embedded.of(embed, tokens, positions, multiple=16)
    if by_kernel:
        mapped, x = through(1, embedded, maps), formed(BehindAttention(Together(1), embedded, out, mixed))
    else:
        stream = embedded.stream()
        mapped, x = tuple(map(stream) for map in maps), stream + out(mixed)
    return sum(jnp.sum(jnp.sin(a.astype(jnp.float32))) for a in (*mapped, 2 * x))


def test_every_gradient_is_as_close_to_fp32_as_the_plain_way():
    def gradients(by_kernel, dtype):
        return jax.tree.leaves(jax.jit(jax.grad(lambda p: loss(by_kernel, *p)))(parts(dtype)))

    arrays = gradients(True, jnp.bfloat16), gradients(False, jnp.bfloat16), gradients(False, jnp.float32)
    assert len(arrays[0]) == 13
    for kernel, plain, exact in zip(*arrays, strict=True):
        assert distance(kernel, exact) < 1.5 * distance(plain, exact) + ROUNDING


def test_runs_of_a_stack_are_each_their_own():
    given = parts(jnp.bfloat16)
    run: Any = jax.jit(jax.grad(lambda p: loss(True, *p)))
    one, both = run(given), jax.vmap(run)(jax.tree.map(lambda a: jnp.stack([a, 2 * a]), given))
    for first, two in zip(jax.tree.leaves(one), jax.tree.leaves(both), strict=True):
        assert distance(two[0], first) < ROUNDING  # what XLA does in between is batched
        assert distance(two[1], first) > 0.1


VARIANTS = [
    {},
    {"norm": "post"},
    {"attention": "sigmoid"},
    {"positions": "learned"},
    {"positions": "rope"},
    {"layers": 3},
    {"mlp": False},
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(map(str, options.values())) or "plain")
def test_a_gpu_takes_the_kernels_in_every_transformer(options, monkeypatch):
    model = Transformer(**{"layers": 2, "heads": 2, "width": 16} | options)
    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model.init(jax.random.key(0), Spec(64, 5, 3)))
    inputs, used = drawn(2, 64, 5, seed=0), []

    def gradient(dtype=jnp.bfloat16, runs=10):
        params, x = jax.tree.map(lambda a: a.astype(dtype), (low, inputs))

        def value(p):
            return jnp.sum(model.fast(p, x, Tap(fused=runs)).value.astype(jnp.float32) ** 2)

        return jax.tree.leaves(jax.jit(jax.grad(value))(params))

    def noted(*args, **more):
        used.append(args[0])
        return summed(*args, **more)

    monkeypatch.setattr(_stream_kernels, "summed", noted)
    plain, exact = gradient(), gradient(jnp.float32, runs=0)
    assert not used  # there is no GPU here
    for module in (_stream_kernels, _mlp_kernel):
        monkeypatch.setattr(module, "usable", lambda oldest, newest: True)
    kernel = gradient()
    assert len(used) == 4  # queries, keys and values, and the stream behind the attention
    gradient(runs=9)
    assert len(used) == 4  # for few runs they do not pay
    norms = [np.linalg.norm(np.asarray(a, np.float64)) for a in exact]
    off = [[distance(a, e) for a, e, norm in zip(some, exact, norms, strict=True) if norm > 1e-3] for some in (kernel, plain)]
    # Single arrays differ by chance in which of the two is nearer.
    assert np.mean(off[0]) < 1.5 * np.mean(off[1]) + ROUNDING
    assert max(off[0]) < 2 * max(off[1]) + ROUNDING


def test_it_is_for_sizes_that_tiles_hold_and_not_for_a_cpu():
    assert fits(256, 256, 65)
    assert fits(512, 256, 129)
    assert fits(32, 64, 5)
    assert not any(fits(*sizes) for sizes in [(129, 256, 65), (256, 192, 65), (256, 256, 240), (256, 512, 65)])
    assert not _stream_kernels.applies(jnp.dtype(jnp.bfloat16), 256, 256, 65, runs=64)


@pytest.mark.parametrize("features", [5, 17, 65, 129])
def test_what_a_program_keeps_has_room_on_the_chip(features):
    columns = features + 1 + -(features + 1) % 16
    tiles = BACK.stages * 2 * BACK.positions * (columns + BACK.columns)  # of tokens and of the gradient
    assert tiles + 4 * BACK.positions * BACK.columns < _stream_kernels._CHIP
    assert SMALL_MAPS.kept(columns) < _stream_kernels._CHIP
