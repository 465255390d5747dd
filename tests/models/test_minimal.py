"""The minimal attention of yuksel2026: attention, identical heads, expressivity, initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import MinimalAttention, MinimalLayer
from emergo.models.fast import find_path

SPEC = Spec(length=6, inputs=5, outputs=5, answers=4)


def case(**options):
    model = MinimalAttention(start="xavier", **options)
    tokens = jnp.asarray(np.random.default_rng(0).integers(5, size=(7, 6)), jnp.int32)
    # Parameters are larger than Xavier's, so that attention is far from uniform.
    return model, jax.tree.map(lambda a: 3 * a, model.init(jax.random.key(1), SPEC)), tokens


def forward(model, params, tokens, spec):
    """Compute the output with the optimised path, which trains this model."""
    path = find_path(model, spec)
    assert path is not None
    return path.forward(model, params, tokens, Tap(spec), 0)


def loss(model, params, tokens, answers):
    """Return the mean cross-entropy of the last tokens, predicted from those before them."""
    spec = Spec(tokens.shape[1] - 1, 0, 0, answers=answers)
    logits = jax.nn.log_softmax(forward(model, params, tokens[:, :-1], spec).value, -1)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, -answers:, None], -1))


def test_tokens_outside_the_context_are_ignored():
    model, params, tokens = case(context=2)
    other = tokens.at[:, :3].set((tokens[:, :3] + 1) % 5)
    for answers, same in ((2, True), (3, False)):
        one, two = (
            np.asarray(model.apply(params, x, Tap(SPEC._replace(answers=answers))).value)
            for x in (tokens, other)
        )
        assert (one == two).all() == same


@pytest.mark.slow
def test_identical_heads_stay_identical_bit_for_bit():
    """With scale 0 all heads are equal. Gradient descent keeps them equal, in a stack of runs."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(6, size=(40, 10))
    for t in range(2, 10):  # the next token mostly follows from the one before
        tokens[:, t] = np.where(rng.random(40) < 0.8, (tokens[:, t - 1] + 1) % 6, tokens[:, t])
    tokens = jnp.asarray(tokens, jnp.int32)
    model = MinimalAttention(heads=3, scale=0.0)

    @jax.jit
    def train(key):
        def step(p, _):
            value, gradient = jax.value_and_grad(lambda p: loss(model, p, tokens, 8))(p)
            return jax.tree.map(lambda a, g: a - 1.0 * g, p, gradient), value

        return jax.lax.scan(step, model.init(key, Spec(9, 6, 6)), length=30)

    keys = jax.random.split(jax.random.key(2), 2)
    (layer,), losses = jax.vmap(train)(keys)
    for array in layer:
        heads = np.moveaxis(np.asarray(array), 1, 0)
        assert np.abs(heads).max() > 1e-3  # something was learned
        assert (heads == heads[:1]).all()
    losses = np.asarray(losses)
    assert (losses[..., -1] < losses[..., 0] - 0.1).all()


@pytest.mark.slow
def test_equal_heads_have_equal_gradients_in_float64():
    """At this size a product over all heads at once would round them differently."""
    model = MinimalAttention(heads=2, layers=2, start="xavier")
    tokens = jnp.asarray(np.random.default_rng(0).integers(10, size=(128, 10)), jnp.int32)
    with jax.enable_x64(True):
        start = model.init(jax.random.key(2), Spec(9, 10, 10))
        equal = jax.tree.map(lambda a: jnp.stack([a[0], a[0]]).astype(jnp.float64), start)
        tap = Tap(reads=["layers.*.pattern"])
        plain = model.apply(equal, tokens[:, :-1], tap)
        assert plain.attention is not None
        gradient = jax.jit(jax.grad(lambda p: loss(model, p, tokens, 6)))(equal)
        for array in (
            *jax.tree.leaves(gradient),
            *(jnp.swapaxes(maps, 0, 1) for maps in tap.taken.values()),
        ):
            assert array.dtype == jnp.float64
            assert np.abs(array).max() > 1e-4
            np.testing.assert_array_equal(array[0], array[1])


def test_the_model_can_represent_its_teacher():
    """One head per group of lags, with attention on the group and its map as value, has the logits
    of the task of yuksel2026."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, size=(20, 7))
    maps = rng.standard_normal((2, 4, 4))
    query = np.zeros((2, 11, 11), np.float32)
    value = np.zeros((2, 11, 4), np.float32)
    expected = np.zeros((20, 5, 4))
    for k, lags in enumerate(([0], [1, 2])):
        for t, lag in ((t, lag) for t in range(7) for lag in lags):
            if t >= lag:
                query[k, 4 + t - lag, 4 + t] = 1000.0
            if t >= 2:
                expected[:, t - 2] += maps[k][tokens[:, t - lag]]
        value[k, :4] = len(lags) * maps[k]
    params = (MinimalLayer(jnp.asarray(query), jnp.asarray(value)),)
    spec = Spec(7, 4, 4, answers=5)
    model = MinimalAttention(heads=2)
    logits = model.apply(params, jnp.asarray(tokens, jnp.int32), Tap(spec)).value
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_initialisation():
    key = jax.random.key(0)
    (small,) = MinimalAttention(scale=1e-9).init(key, SPEC)
    assert not np.asarray(small.value).any()
    assert 0.9e-9 < float(jnp.abs(small.query).max()) <= 1e-9
    assert (np.asarray(small.query[0]) != np.asarray(small.query[1])).any()
    first, last = MinimalAttention(layers=2, start="xavier").init(key, SPEC._replace(outputs=4))
    bound = np.sqrt(6 / 22)
    assert first.value.shape == (3, 11, 11)
    assert last.value.shape == (3, 11, 4)
    for array in (*first, *last):
        assert 0.9 * bound < float(jnp.abs(array).max()) <= bound * (1 + 1e-6)
    (traced,) = jax.jit(lambda model: model.init(key, SPEC))(MinimalAttention(scale=1e-9))
    np.testing.assert_allclose(traced.query, small.query, rtol=1e-6)
    assert MinimalAttention(start="xavier").init(key, Spec(2, 3, 9))[0].value.shape == (3, 5, 9)
