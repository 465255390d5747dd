import jax
import numpy as np

from emergo.models import ToyAttention


def test_forward_is_eq_2():
    model = ToyAttention.init(jax.random.key(0), 7, 3)
    model = ToyAttention(jax.random.normal(jax.random.key(1), (7,)), model.weights)
    tokens = jax.random.normal(jax.random.key(2), (7, 3))
    scores = np.exp(np.asarray(model.logits, np.float64))
    expected = np.asarray(model.weights) @ np.sum(scores[:, None] / scores.sum() * np.asarray(tokens), axis=0)
    np.testing.assert_allclose(model(tokens), expected, rtol=1e-5, atol=1e-6)


def test_attention_starts_uniform_and_sums_to_one():
    model = ToyAttention.init(jax.random.key(0), 9, 4)
    np.testing.assert_allclose(model.attention, np.full(9, 1 / 9), rtol=1e-6)
    assert model.weights.dtype == np.float32
