"""The fast forward of the minimal model against the plain one; identical heads; the model can express the task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo._errors import InputError
from emergo.models import MinimalAttention, MinimalLayer
from emergo.tasks import Groups, MarkovChain

OPTIONS = [{}, {"layers": 3, "heads": 2, "context": 3}]


def case(**options):
    model = MinimalAttention(6, vocabulary=5, start="xavier", **options)
    tokens = jnp.asarray(np.random.default_rng(0).integers(5, size=(7, 6)), jnp.int32)
    # Larger than Xavier's, so that attention is far from uniform.
    return model, jax.tree.map(lambda a: 3 * a, model.init(jax.random.key(1))), tokens


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_the_fast_forward_and_its_gradient_are_the_plain_ones(options):
    model, parameters, tokens = case(**options)
    last = 4

    def loss(logits):
        return jnp.sum(jax.nn.log_softmax(logits[:, -last:], -1)[..., 0] ** 2)

    def both(function):
        def value(p):
            logits = function(p)
            return loss(logits), logits

        (_, logits), gradient = jax.jit(jax.value_and_grad(value, has_aux=True))(parameters)
        return logits, gradient

    seen, plain = both(lambda p: model.forward(p, tokens).logits)
    fast, folded = both(lambda p: model.answer(p, tokens, last))
    assert fast.shape == (7, last, 5)
    np.testing.assert_allclose(fast, seen[:, -last:], rtol=2e-5, atol=2e-5)
    for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(folded), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-4 * float(jnp.abs(one).max()))


def test_attention_is_causal_and_sums_to_one():
    model, parameters, tokens = case(context=2)
    maps = np.asarray(jax.jit(model.forward)(parameters, tokens).attention)
    assert maps.shape == (7, 1, 3, 6, 6)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    behind = np.arange(6)[:, None] - np.arange(6)
    assert (maps[..., (behind < 0) | (behind > 1)] == 0).all()
    assert (maps[..., (behind >= 0) & (behind < 2)] > 0).all()


def test_tokens_outside_the_context_do_not_matter():
    model, parameters, tokens = case(context=2)
    other = tokens.at[:, :3].set((tokens[:, :3] + 1) % 5)
    answer = jax.jit(model.answer, static_argnums=2)
    np.testing.assert_array_equal(answer(parameters, tokens, 2), answer(parameters, other, 2))
    assert (np.asarray(answer(parameters, tokens, 3)) != np.asarray(answer(parameters, other, 3))).any()
    free = jax.jit(dataclasses.replace(model, context=None).answer, static_argnums=2)
    np.testing.assert_allclose(free(parameters, tokens, 3, jnp.int32(2)), answer(parameters, tokens, 3), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_identical_heads_stay_identical_bit_for_bit():
    """Scale 0: every head is the same; gradient descent keeps them so, here in a batch of runs."""
    task = MarkovChain(Groups((1, 1)), 6, 0.3, 8)
    truth = task.truth(jax.random.key(0))
    tokens = task.sample(jax.random.key(1), 40, truth)
    model = MinimalAttention(task.length - 1, 6, heads=3, scale=0.0)

    @jax.jit
    def train(key):
        def step(p, _):
            def loss(p):
                return task.cross_entropy(tokens, jax.nn.log_softmax(model.answer(p, tokens[:, :-1], 8), -1))

            value, gradient = jax.value_and_grad(loss)(p)
            return jax.tree.map(lambda a, g: a - 1.0 * g, p, gradient), value

        return jax.lax.scan(step, model.init(key), length=30)

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
    task = MarkovChain(Groups((2, 2)), 10, 0.1, 6)
    model = MinimalAttention(task.length - 1, 10, heads=2, layers=2, start="xavier")
    with jax.enable_x64(True):
        tokens = task.sample(jax.random.key(1), 128, task.truth(jax.random.key(0)))
        equal = jax.tree.map(lambda a: jnp.stack([a[0], a[0]]).astype(jnp.float64), model.init(jax.random.key(2)))

        @jax.jit
        def gradient(p):
            return jax.grad(lambda p: task.cross_entropy(tokens, jax.nn.log_softmax(model.answer(p, tokens[:, :-1], 6), -1)))(p)

        for array in (
            *jax.tree.leaves(gradient(equal)),
            jnp.swapaxes(model.forward(equal, tokens[:, :-1]).attention[:, 0], 0, 1),
        ):
            assert array.dtype == jnp.float64
            assert np.abs(array).max() > 1e-4
            np.testing.assert_array_equal(array[0], array[1])


def test_the_model_holds_the_teacher():
    """A head a group, its attention on the positions of the group, its value the group's map: the teacher's distribution."""
    task = MarkovChain(Groups((1, 2)), 4, 0.5, 5)
    truth = task.truth(jax.random.key(0))
    tokens = task.sample(jax.random.key(1), 20, truth)
    model = MinimalAttention(task.length - 1, 4, heads=2)
    query = np.zeros((2, model.size, model.size), np.float32)
    value = np.zeros((2, model.size, 4), np.float32)
    for k, lags in enumerate(([0], [1, 2])):
        for t in range(model.length):
            for lag in lags:
                if t >= lag:
                    query[k, 4 + t - lag, 4 + t] = 1000.0
        value[k, :4] = len(lags) * np.asarray(truth.maps[k]).T / task.temperature
    parameters = (MinimalLayer(jnp.asarray(query), jnp.asarray(value)),)
    logits = jax.jit(model.answer, static_argnums=2)(parameters, tokens[:, :-1], 5)
    np.testing.assert_allclose(jax.nn.log_softmax(logits, -1), task.teacher(truth, tokens), atol=1e-4)


def test_starts():
    small = MinimalAttention(6, 5, scale=1e-9).init(jax.random.key(0))[0]
    assert not np.asarray(small.value).any()
    assert 0.9e-9 < float(jnp.abs(small.query).max()) <= 1e-9
    assert (np.asarray(small.query[0]) != np.asarray(small.query[1])).any()
    first, last = MinimalAttention(6, 5, layers=2, start="xavier").init(jax.random.key(0))
    bound = np.sqrt(6 / 22)
    assert first.value.shape == (3, 11, 11)
    assert last.value.shape == (3, 11, 5)
    for array in (*first, *last):
        assert 0.9 * bound < float(jnp.abs(array).max()) <= bound * (1 + 1e-6)
    traced = jax.jit(lambda s: MinimalAttention(6, 5).init(jax.random.key(0), s))(1e-9)[0]
    np.testing.assert_allclose(traced.query, small.query, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads must be a whole number of at least 1"),
        ({"context": 0}, "context must be a whole number of at least 1"),
        ({"scale": -1.0}, "scale must be finite and not negative"),
        ({"start": "savier"}, "unknown start 'savier'; did you mean xavier"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        MinimalAttention(**({"length": 6} | options))
