"""The full model of yuksel2026: against a second one written by hand, its mask, its dropout, its start."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo._errors import InputError
from emergo.models import ChainTransformer
from emergo.models._chain_transformer import _Dropout

SMALL: dict[str, Any] = {"heads": 2, "width": 8, "hidden": 3}
SPEC = Spec(length=6, inputs=5, outputs=5, answers=2)
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


def started(model, spec=SPEC):
    return jax.jit(lambda key: model.init(key, spec))(jax.random.key(0))


@pytest.mark.parametrize("options", [{}, {"layers": 2, "context": 3}])
def test_both_forwards_are_the_one_by_hand(options):
    model = ChainTransformer(**SMALL, **options)
    params = started(model)
    expected = np.stack([by_hand(model, params, row) for row in np.asarray(TOKENS)])

    @jax.jit
    def plain(params):
        tap = Tap(SPEC._replace(answers=6), reads=["*.pattern"])
        return model.apply(params, TOKENS, tap), tap.taken

    output, taken = plain(params)
    assert output.attention is not None
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)
    for i in range(model.layers):
        pattern = np.asarray(taken[f"layers.{i}.pattern"])
        np.testing.assert_allclose(pattern.sum(-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(output.attention[:, i], pattern[:, :, -1])
    fast = jax.jit(lambda model, p: model.fast(p, TOKENS, Tap(SPEC)))(model, params)  # the context is traced
    np.testing.assert_allclose(fast.value, expected[:, -2:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fast.attention, output.attention, rtol=1e-4, atol=1e-6)
    for last in jax.jit(lambda p: (model.apply(p, TOKENS), model.fast(p, TOKENS)))(params):
        np.testing.assert_allclose(last.value, expected[:, -1], rtol=1e-4, atol=1e-5)


def test_64_bits_all_the_way():
    model = ChainTransformer(**SMALL)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype(jnp.float64), started(model))
        expected = np.stack([by_hand(model, params, row) for row in np.asarray(TOKENS)])
        for value in jax.jit(lambda p: [f(p, TOKENS, Tap(SPEC)).value for f in (model.apply, model.fast)])(params):
            assert value.dtype == jnp.float64
            np.testing.assert_allclose(value, expected[:, -2:], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_dropout_is_a_function_of_its_key_and_leaves_the_mean():
    dropout = _Dropout(jnp.array([0, 1], jnp.uint32), 0.3, 200, ("hidden",))
    dropped = np.asarray(dropout(jnp.ones((200, 50)), 0, "hidden"))
    np.testing.assert_array_equal(dropout(jnp.ones((200, 50)), 0, "added"), 1)
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.7)}
    assert abs((dropped == 0).mean() - 0.3) < 4 * np.sqrt(0.21 / 10_000)
    model = ChainTransformer(**SMALL, dropout=0.3)
    params = started(model)

    def value(model, seed, step=None):
        return np.asarray(
            jax.jit(lambda p, key: model.fast(p, TOKENS, Tap(SPEC, key, step)).value)(params, jax.random.key(seed))
        )

    one, same, other = (value(model, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    sometimes = model.replace(dropout_every=3)
    dry, wet = (value(sometimes, 1, jnp.int32(step)) for step in (4, 6))
    np.testing.assert_allclose(wet, one, rtol=1e-5, atol=1e-6)
    unused = value(model.replace(dropout=0.0), 1)
    expected = np.stack([by_hand(model, params, row)[-2:] for row in np.asarray(TOKENS)])
    np.testing.assert_allclose(unused, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dry, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_dropout_on_token_plus_position_is_branched_over():
    """In a stack where one run has a step with dropout and another has not: as if each were alone; and where none has."""
    model = ChainTransformer(**SMALL, dropout=0.3, dropout_every=3, dropout_at=("embedding",))
    params, g = started(model), jax.random.normal(jax.random.key(1), (4, 2, 5))

    def graded(forward, every):
        def loss(p, step):
            value = forward(p, TOKENS, Tap(SPEC, jax.random.key(3), step)).value
            return jnp.sum(value * g), value

        return jax.jit(jax.vmap(jax.grad(loss, has_aux=True), (None, 0)))(params, jnp.array(every))

    def value(step):
        return model.fast(params, TOKENS, Tap(SPEC, jax.random.key(3), step)).value

    assert "cond[" in str(jax.make_jaxpr(jax.vmap(value))(jnp.array([3, 4])))  # one branch for all, and not both
    mixed, plain = graded(model.fast, [3, 4]), graded(model.apply, [3, 4])
    for one, other in zip(jax.tree.leaves(mixed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    dry = graded(model.fast, [4, 5])[1]
    without = model.replace(dropout=0.0).fast(params, TOKENS, Tap(SPEC)).value
    np.testing.assert_allclose(dry, jnp.stack([without, without]), rtol=1e-4, atol=1e-5)
    assert (np.abs(mixed[1][0] - without) > 1e-3).any()


@pytest.mark.parametrize(("layers", "key"), [(1, 3), (2, None)])
def test_both_forwards_have_the_same_values_and_gradients(layers, key):
    """`fast` maps the tables of the first block instead of every token, and has fewer queries in the last. With dropout
    too: an intervention that changes nothing does not change the run."""
    model = ChainTransformer(**SMALL, layers=layers, dropout=0.3)
    params, g = started(model), jax.random.normal(jax.random.key(1), (4, 2, 5))
    tap = Tap(SPEC, None if key is None else jax.random.key(key), jnp.int32(0))

    def graded(forward):
        def loss(p):
            value = forward(p, TOKENS, tap).value
            return jnp.sum(value * g), value

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    for one, other in zip(*(jax.tree.leaves(graded(f)) for f in (model.apply, model.fast)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


PAPER = Spec(length=31, inputs=50, outputs=50)


def test_the_start_and_the_sizes_of_the_paper():
    shapes = jax.eval_shape(lambda key: ChainTransformer().init(key, PAPER), jax.random.key(0))
    assert shapes.encode.shape == (50, 255)
    assert shapes.blocks[0].up.weight.shape == (255, 64)
    assert shapes.decode.weight.shape == (255, 50)
    for vocabulary in (5, 10):
        encode = np.asarray(started(ChainTransformer(**SMALL), Spec(6, vocabulary, vocabulary)).encode)
        gram = encode @ encode.T if encode.shape[0] < encode.shape[1] else encode.T @ encode
        np.testing.assert_allclose(gram, np.eye(min(encode.shape)), atol=1e-5)


def test_the_published_start():
    """Xavier's bounds for maps of 255 to 255 and 64 features and for 50 positions, zero biases, an orthogonal decoder."""
    params, plain = (started(ChainTransformer(start=start), PAPER) for start in ("xavier", None))
    block = params.blocks[0]
    for map, bound in (
        (block.query, (6 / 510) ** 0.5),
        (block.up.weight, (6 / 319) ** 0.5),
        (params.positions, (6 / 305) ** 0.5),
    ):
        assert 0.98 * bound < np.abs(map).max() < bound
        assert abs(float(jnp.std(map)) / bound * 3**0.5 - 1) < 0.03
    for bias in (block.up.bias, block.down.bias, params.decode.bias):
        np.testing.assert_array_equal(bias, 0)
    np.testing.assert_allclose(params.decode.weight.T @ params.decode.weight, np.eye(50), atol=1e-5)
    np.testing.assert_array_equal(params.encode, plain.encode)
    assert jnp.linalg.norm(plain.positions, axis=1).mean() > 10 * jnp.linalg.norm(params.positions, axis=1).mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide width, got 3 heads with width 8"),
        ({"dropout": 1.0}, "dropout must be below 1, got 1.0"),
        ({"hidden": 0}, "ChainTransformer.hidden must be a whole number of at least 1"),
        ({"dropout_every": 0}, "ChainTransformer.dropout_every must be a whole number of at least 1"),
        ({"dropout_at": ("heads",)}, r"dropout_at must name places of embedding, attention, added, hidden, got \('heads',\)"),
        ({"context": 0}, "ChainTransformer.context must be a whole number of at least 1"),
    ],
)
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        ChainTransformer(**(SMALL | options))


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_start_is_named():
    wrong: dict[str, Any] = {"start": "small"}
    with pytest.raises(InputError, match=r"unknown ChainTransformer.start 'small'; known: xavier"):
        ChainTransformer(**wrong)
