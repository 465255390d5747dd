"""The full model of yuksel2026 against NumPy: forward pass, dropout, initialisation, options."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.core.errors import InputError
from emergo.models import ChainTransformer

SMALL: dict[str, Any] = {"heads": 2, "width": 8, "hidden": 3}
SPEC = Spec(length=6, inputs=5, outputs=5, answers=2)
PAPER = Spec(length=31, inputs=50, outputs=50)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(5, size=(4, 6)), jnp.int32)


def by_hand(model, p, tokens):
    """Compute the forward pass of one sequence, position and head at a time, in float64."""
    x = np.asarray(p.encode, np.float64)[tokens] + np.asarray(p.positions, np.float64)
    size = model.width // model.heads

    def norm(v, parameters):
        normal = (v - v.mean()) / np.sqrt(v.var() + 1e-5)
        return normal * np.asarray(parameters.gain) + np.asarray(parameters.offset)

    def linear(v, map):
        return v @ np.asarray(map.weight) + np.asarray(map.bias)

    for block in p.blocks:
        q, k, v = (x @ np.asarray(m, np.float64) for m in (block.query, block.key, block.value))
        after = np.zeros_like(x)
        for t in range(len(x)):
            mixed = np.zeros(model.width)
            first = 0 if model.context is None else max(0, t + 1 - model.context)
            for h in range(model.heads):
                part = slice(h * size, (h + 1) * size)
                scores = np.exp(k[first : t + 1, part] @ q[t, part] / np.sqrt(size))
                mixed[part] = (scores / scores.sum()) @ v[first : t + 1, part]
            y = norm(x[t] + mixed @ np.asarray(block.out), block.norms[0])
            hidden = np.maximum(linear(y, block.up), 0)
            after[t] = norm(y + linear(hidden, block.down), block.norms[1])
        x = after
    return linear(x, p.decode)


def started(model, spec=SPEC):
    return jax.jit(lambda key: model.init(key, spec))(jax.random.key(0))


def expected_of(model, params):
    return np.stack([by_hand(model, params, row) for row in np.asarray(TOKENS)])


@pytest.mark.parametrize("options", [{}, {"layers": 2, "context": 3}])
def test_apply_equals_a_forward_pass_in_numpy(options):
    model = ChainTransformer(**SMALL, **options)
    params = started(model)
    expected = expected_of(model, params)
    tap = Tap(SPEC._replace(answers=6), reads=["*.pattern"])
    output = model.apply(params, TOKENS, tap)
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)
    assert output.attention is not None
    for i in range(model.layers):
        pattern = np.asarray(tap.taken[f"layers.{i}.pattern"])
        np.testing.assert_allclose(pattern.sum(-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(output.attention[:, i], pattern[:, :, -1])
    last = model.apply(params, TOKENS).value
    np.testing.assert_allclose(last, expected[:, -1], rtol=1e-4, atol=1e-5)


def test_float64_is_kept():
    model = ChainTransformer(**SMALL)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype(jnp.float64), started(model))
        value = model.apply(params, TOKENS, Tap(SPEC)).value
        assert value.dtype == jnp.float64
        expected = expected_of(model, params)[:, -2:]
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_dropout_is_a_function_of_its_key_and_keeps_the_mean():
    dropout = ChainTransformer(**SMALL, dropout_at=("hidden",)).dropout_of(
        jnp.array([0, 1], jnp.uint32), 0.3, layer=0, count=200
    )
    dropped = np.asarray(dropout(jnp.ones((200, 50)), 0, "hidden"))
    np.testing.assert_array_equal(dropout(jnp.ones((200, 50)), 0, "added"), 1)
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.7)}
    assert abs((dropped == 0).mean() - 0.3) < 4 * np.sqrt(0.21 / 10_000)
    model = ChainTransformer(**SMALL, dropout=0.3)
    params = started(model)

    def value(model, seed, step=None):
        tap = Tap(SPEC, jax.random.key(seed), step)
        return np.asarray(jax.jit(lambda p: model.apply(p, TOKENS, tap).value)(params))

    one = value(model, 1)
    np.testing.assert_array_equal(one, value(model, 1))
    assert (one != value(model, 2)).any()
    sometimes = model.replace(dropout_every=3)
    np.testing.assert_allclose(value(sometimes, 1, jnp.int32(6)), one, rtol=1e-5, atol=1e-6)
    without = expected_of(model, params)[:, -2:]
    for found in (value(sometimes, 1, jnp.int32(4)), value(model.replace(dropout=0.0), 1)):
        np.testing.assert_allclose(found, without, rtol=1e-4, atol=1e-5)


def test_pytorch_initialisation_has_the_sizes_of_the_paper():
    shapes = jax.eval_shape(lambda key: ChainTransformer().init(key, PAPER), jax.random.key(0))
    assert shapes.encode.shape == (50, 255)
    assert shapes.blocks[0].up.weight.shape == (255, 64)
    assert shapes.decode.weight.shape == (255, 50)
    for vocabulary in (5, 10):
        spec = Spec(6, vocabulary, vocabulary)
        encode = np.asarray(started(ChainTransformer(**SMALL), spec).encode)
        gram = encode @ encode.T if encode.shape[0] < encode.shape[1] else encode.T @ encode
        np.testing.assert_allclose(gram, np.eye(min(encode.shape)), atol=1e-5)


def test_published_initialisation():
    """Xavier's bounds, zero biases and an orthogonal decoder."""
    params, plain = (started(ChainTransformer(start=start), PAPER) for start in ("xavier", None))
    block = params.blocks[0]
    bounds = [(block.query, 6 / 510), (block.up.weight, 6 / 319), (params.positions, 6 / 305)]
    for map, square in bounds:
        bound = square**0.5
        assert 0.98 * bound < np.abs(map).max() < bound
        assert abs(float(jnp.std(map)) / bound * 3**0.5 - 1) < 0.03
    for bias in (block.up.bias, block.down.bias, params.decode.bias):
        np.testing.assert_array_equal(bias, 0)
    np.testing.assert_allclose(params.decode.weight.T @ params.decode.weight, np.eye(50), atol=1e-5)
    np.testing.assert_array_equal(params.encode, plain.encode)
    long, short = (jnp.linalg.norm(p.positions, axis=1).mean() for p in (plain, params))
    assert long > 10 * short


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide width, got 3 heads with width 8"),
        ({"dropout": 1.0}, "dropout must be below 1, got 1.0"),
        (
            {"dropout_at": ("heads",)},
            r"dropout_at must name places of embedding, attention, added, hidden, got \('heads',\)",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        ChainTransformer(**(SMALL | options))
