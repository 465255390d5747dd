"""The full model of yuksel2026: against a second one written by hand, its mask, its dropout, its start."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._errors import InputError
from emergo.models import ChainTransformer

SMALL: dict[str, Any] = {"length": 6, "vocabulary": 5, "heads": 2, "width": 8, "hidden": 3}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(5, size=(4, 6)), jnp.int32)


def by_hand(model, p, tokens):
    """One sequence, one position, one head at a time, in float64."""
    x = np.asarray(p.encode, np.float64)[tokens] + np.asarray(p.positions, np.float64)
    size = model.width // model.heads

    def norm(v, scale):
        return (v - v.mean()) / np.sqrt(v.var() + 1e-5) * np.asarray(scale.gain) + np.asarray(scale.offset)

    for block in p.blocks:
        q, k, v = (x @ np.asarray(m, np.float64) for m in (block.query, block.key, block.value))
        after = np.zeros_like(x)
        for t in range(len(x)):
            mixed = np.zeros(model.width)
            for h in range(model.heads):
                part = slice(h * size, (h + 1) * size)
                first = 0 if model.context is None else max(0, t + 1 - model.context)
                scores = np.exp([q[t, part] @ k[i, part] / np.sqrt(size) for i in range(first, t + 1)])
                mixed[part] = (scores / scores.sum()) @ v[first : t + 1, part]
            y = norm(x[t] + mixed @ np.asarray(block.out), block.norms[0])
            hidden = np.maximum(y @ np.asarray(block.up.weight) + np.asarray(block.up.bias), 0)
            after[t] = norm(y + hidden @ np.asarray(block.down.weight) + np.asarray(block.down.bias), block.norms[1])
        x = after
    return x @ np.asarray(p.decode.weight) + np.asarray(p.decode.bias)


@pytest.mark.parametrize("options", [{}, {"layers": 2, "context": 3}])
def test_both_forwards_are_the_one_by_hand(options):
    model = ChainTransformer(**SMALL, **options)
    parameters = jax.jit(model.init)(jax.random.key(0))
    seen = jax.jit(model.forward)(parameters, TOKENS)
    expected = np.stack([by_hand(model, parameters, row) for row in np.asarray(TOKENS)])
    np.testing.assert_allclose(seen.logits, expected, rtol=1e-4, atol=1e-5)
    answer = jax.jit(model.answer, static_argnums=2)(parameters, TOKENS, 2)
    np.testing.assert_allclose(answer, expected[:, -2:], rtol=1e-4, atol=1e-5)
    free, window = dataclasses.replace(model, context=None), jnp.int32(model.context or 6)
    answer = jax.jit(lambda p, w: free.answer(p, TOKENS, 2, context=w))(parameters, window)
    np.testing.assert_allclose(answer, expected[:, -2:], rtol=1e-4, atol=1e-5)
    maps = np.asarray(seen.attention)
    assert maps.shape == (4, model.layers, 2, 6, 6)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_dropout_is_a_function_of_its_key_and_leaves_the_mean():
    model = ChainTransformer(**SMALL, dropout=0.3)
    ones = jnp.ones((200, 50))
    dropped = np.asarray(model._drop(ones, jnp.array([0, 1], jnp.uint32), 0, 0.3))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.7)}
    assert abs((dropped == 0).mean() - 0.3) < 4 * np.sqrt(0.21 / 10_000)
    parameters = jax.jit(model.init)(jax.random.key(0))
    answer = jax.jit(model.answer, static_argnums=2)
    one, same, other = (np.asarray(answer(parameters, TOKENS, 2, jax.random.key(i))) for i in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    sometimes = jax.jit(dataclasses.replace(model, dropout_every=3).answer, static_argnums=2)
    dry, wet = (np.asarray(sometimes(parameters, TOKENS, 2, jax.random.key(1), step=jnp.int32(i))) for i in (4, 6))
    np.testing.assert_allclose(wet, one, rtol=1e-5, atol=1e-6)
    without = ChainTransformer(**SMALL, dropout=0.0)
    unused = jax.jit(without.answer, static_argnums=2)(parameters, TOKENS, 2, jax.random.key(1))
    expected = np.stack([by_hand(model, parameters, row)[-2:] for row in np.asarray(TOKENS)])
    np.testing.assert_allclose(unused, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dry, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_both_forwards_have_the_same_gradients(layers):
    """`answer` maps the tables of the first block instead of every token, and has fewer queries in the last."""
    model = ChainTransformer(**SMALL, layers=layers)
    parameters = jax.jit(model.init)(jax.random.key(0))
    g = jax.random.normal(jax.random.key(1), (4, 2, 5))

    def plain(p):
        return jnp.sum(model.forward(p, TOKENS).logits[:, -2:] * g)

    ours = jax.jit(jax.grad(lambda p: jnp.sum(model.answer(p, TOKENS, 2) * g)))(parameters)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(jax.jit(jax.grad(plain))(parameters)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_start_and_the_sizes_of_the_paper():
    model = ChainTransformer(31)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert shapes.encode.shape == (50, 255)
    assert shapes.blocks[0].up.weight.shape == (255, 64)
    assert shapes.decode.weight.shape == (255, 50)
    for vocabulary in (5, 10):
        small = dataclasses.replace(ChainTransformer(**SMALL), vocabulary=vocabulary)
        encode = np.asarray(jax.jit(small.init)(jax.random.key(0)).encode)
        gram = encode @ encode.T if encode.shape[0] < encode.shape[1] else encode.T @ encode
        np.testing.assert_allclose(gram, np.eye(min(encode.shape)), atol=1e-5)


def test_the_published_start():
    """Xavier's bounds for maps of 255 to 255 and 64 features and for 50 places, zero biases, an orthogonal decoder."""
    model = ChainTransformer(31, start="xavier")
    parameters, plain = (jax.jit(m.init)(jax.random.key(0)) for m in (model, ChainTransformer(31)))
    block = parameters.blocks[0]
    for map, bound in (
        (block.query, (6 / 510) ** 0.5),
        (block.up.weight, (6 / 319) ** 0.5),
        (parameters.positions, (6 / 305) ** 0.5),
    ):
        assert 0.98 * bound < np.abs(map).max() < bound
        assert abs(float(jnp.std(map)) / bound * 3**0.5 - 1) < 0.03
    for bias in (block.up.bias, block.down.bias, parameters.decode.bias):
        np.testing.assert_array_equal(bias, 0)
    np.testing.assert_allclose(parameters.decode.weight.T @ parameters.decode.weight, np.eye(50), atol=1e-5)
    np.testing.assert_array_equal(parameters.encode, plain.encode)
    assert jnp.linalg.norm(plain.positions, axis=1).mean() > 10 * jnp.linalg.norm(parameters.positions, axis=1).mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide width, got 3 heads with width 8"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1"),
        ({"dropout_every": 0}, "dropout_every must be a whole number of at least 1"),
        ({"context": 0}, "context must be a whole number of at least 1"),
    ],
)
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        ChainTransformer(**(SMALL | options))


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_start_is_named():
    with pytest.raises(InputError, match="unknown start 'small'; known: xavier"):
        ChainTransformer(**SMALL, start="small")  # pyright: ignore[reportArgumentType]
