"""The fast forward of the minimal model against the plain one; identical heads; the model can express the task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._contract import Spec, Tap
from emergo._errors import InputError
from emergo.models import MinimalAttention, MinimalLayer

OPTIONS = [{}, {"layers": 3, "heads": 2, "context": 3}]
SPEC = Spec(length=6, inputs=5, outputs=5, answers=4)


def case(**options):
    model = MinimalAttention(start="xavier", **options)
    tokens = jnp.asarray(np.random.default_rng(0).integers(5, size=(7, 6)), jnp.int32)
    # Larger than Xavier's, so that attention is far from uniform.
    return model, jax.tree.map(lambda a: 3 * a, model.init(jax.random.key(1), SPEC)), tokens


def loss(model, params, tokens, answers):
    """The mean cross-entropy of the last tokens, from those before them."""
    spec = Spec(tokens.shape[1] - 1, 0, 0, answers=answers)
    logits = jax.nn.log_softmax(model.fast(params, tokens[:, :-1], Tap(spec)).value, -1)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, -answers:, None], -1))


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_the_fast_forward_and_its_gradient_are_the_plain_ones(options):
    model, params, tokens = case(**options)

    def graded(forward):
        def value(p):
            output = forward(p, tokens, Tap(SPEC))
            return jnp.sum(jax.nn.log_softmax(output.value, -1)[..., 0] ** 2), output

        return jax.jit(jax.grad(value, has_aux=True))(params)

    (folded, fast), (plain, slow) = graded(model.fast), graded(model.apply)
    assert fast.value.shape == (7, 4, 5)
    np.testing.assert_allclose(fast.value, slow.value, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(fast.attention, slow.attention, rtol=1e-4, atol=1e-5)
    for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(folded), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-4 * float(jnp.abs(one).max()))


def test_attention_is_causal_and_sums_to_one():
    model, params, tokens = case(context=2)
    tap = Tap(reads=["layers.0.pattern"])
    model.apply(params, tokens, tap)
    maps = np.asarray(tap.taken["layers.0.pattern"])
    assert maps.shape == (7, 3, 6, 6)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    behind = np.arange(6)[:, None] - np.arange(6)
    assert (maps[..., (behind < 0) | (behind > 1)] == 0).all()
    assert (maps[..., (behind >= 0) & (behind < 2)] > 0).all()


def test_tokens_outside_the_context_do_not_matter():
    model, params, tokens = case(context=2)
    other = tokens.at[:, :3].set((tokens[:, :3] + 1) % 5)
    for answers, same in ((2, True), (3, False)):
        one, two = (np.asarray(model.fast(params, x, Tap(SPEC._replace(answers=answers))).value) for x in (tokens, other))
        assert (one == two).all() == same


@pytest.mark.slow
def test_identical_heads_stay_identical_bit_for_bit():
    """Scale 0: every head is the same; gradient descent keeps them so, here in a batch of runs."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(6, size=(40, 10))
    for t in range(2, 10):  # what comes next mostly follows from the token before
        tokens[:, t] = np.where(rng.random(40) < 0.8, (tokens[:, t - 1] + 1) % 6, tokens[:, t])
    tokens, model = jnp.asarray(tokens, jnp.int32), MinimalAttention(heads=3, scale=0.0)

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
def test_equal_heads_have_equal_gradients_in_64_bits():
    """At a size where a product over all heads at once rounds them differently in the last bit."""
    model = MinimalAttention(heads=2, layers=2, start="xavier")
    tokens = jnp.asarray(np.random.default_rng(0).integers(10, size=(128, 10)), jnp.int32)
    with jax.enable_x64(True):
        start = model.init(jax.random.key(2), Spec(9, 10, 10))
        equal = jax.tree.map(lambda a: jnp.stack([a[0], a[0]]).astype(jnp.float64), start)
        tap = Tap(reads=["layers.*.pattern"])
        plain = model.apply(equal, tokens[:, :-1], tap)
        fast = model.fast(equal, tokens[:, :-1])
        np.testing.assert_allclose(fast.value, plain.value, rtol=1e-10)
        assert fast.attention is not None
        assert plain.attention is not None
        np.testing.assert_allclose(fast.attention, plain.attention, rtol=1e-10)
        gradient = jax.jit(jax.grad(lambda p: loss(model, p, tokens, 6)))(equal)
        for array in (*jax.tree.leaves(gradient), *(jnp.swapaxes(maps, 0, 1) for maps in tap.taken.values())):
            assert array.dtype == jnp.float64
            assert np.abs(array).max() > 1e-4
            np.testing.assert_array_equal(array[0], array[1])


def test_the_model_holds_its_teacher():
    """A head for each of two groups of lags, its attention on them, its value the group's map: the logits of the task of
    yuksel2026, to which each group adds the sum of its map's rows over its positions."""
    rng = np.random.default_rng(0)
    tokens, maps = rng.integers(4, size=(20, 7)), rng.standard_normal((2, 4, 4))
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
    logits = MinimalAttention(heads=2).fast(params, jnp.asarray(tokens, jnp.int32), Tap(spec)).value
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_starts():
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "MinimalAttention.heads must be a whole number of at least 1"),
        ({"context": 0}, "MinimalAttention.context must be a whole number of at least 1"),
        ({"scale": -1.0}, "MinimalAttention.scale must be a finite number of at least 0"),
        ({"start": "savier"}, "unknown MinimalAttention.start 'savier'; did you mean xavier"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        MinimalAttention(**options)
