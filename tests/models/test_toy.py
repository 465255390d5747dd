"""The toy model of zucchet2025 against its equation."""

import jax
import numpy as np

from emergo.core.contract import Spec
from emergo.models import ToyAttention


def test_apply_equals_eq_2():
    model = ToyAttention()
    params = model.init(jax.random.key(0), Spec(length=7, inputs=3, outputs=2))
    params = params._replace(logits=jax.random.normal(jax.random.key(1), (7,)))
    tokens = jax.random.normal(jax.random.key(2), (5, 7, 3))
    scores = np.exp(np.asarray(params.logits, np.float64))
    expected = (
        np.sum(scores[:, None] / scores.sum() * np.asarray(tokens), axis=1)
        @ np.asarray(params.weights).T
    )
    output = model.apply(params, tokens)
    np.testing.assert_allclose(output.value, expected, rtol=1e-5, atol=1e-6)
    assert output.attention is not None
    assert output.value_path is not None
    assert output.attention.shape == (5, 1, 1, 7)
    np.testing.assert_allclose(output.attention[3, 0, 0], params.attention, rtol=1e-6)
    np.testing.assert_array_equal(output.value_path, params.weights.T)


def test_initialisation():
    """Attention is uniform and weights have variance scale²/inputs. Scales may differ per run."""
    spec = Spec(length=9, inputs=40, outputs=40)
    params = ToyAttention().init(jax.random.key(0), spec)
    np.testing.assert_allclose(params.attention, np.full(9, 1 / 9), rtol=1e-6)
    assert params.weights.dtype == np.float32
    assert abs(float(params.weights.var()) * 40 - 1) < 4 * np.sqrt(2 / 1600)
    scaled = jax.jit(lambda model: model.init(jax.random.key(0), spec))(ToyAttention(scale=0.5))
    np.testing.assert_allclose(scaled.weights, 0.5 * params.weights, rtol=1e-6)
    assert jax.tree.leaves(ToyAttention(scale=0.5)) == [0.5]
