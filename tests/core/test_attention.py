"""Entropy, mass and lags of attention in cases with a known answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.measure import attention_by_lag, attention_entropy, attention_mass


def test_entropy_of_uniform_one_hot_and_signed_weights():
    weights = jnp.array([[0.25] * 4, [0.0, 1.0, 0.0, 0.0], [-2.0, 2.0, 0.0, 0.0]])
    np.testing.assert_allclose(attention_entropy(weights), [np.log(4), 0, np.log(2)], atol=1e-6)
    assert attention_entropy(jnp.ones((2, 3, 5))).shape == (2, 3)
    assert jnp.isnan(attention_entropy(jnp.zeros(3)))


@given(st.lists(st.floats(1e-3, 1), min_size=2, max_size=8), st.floats(0.1, 10))
def test_entropy_does_not_depend_on_scale_and_is_at_most_uniform(weights, scale):
    entropy = float(attention_entropy(jnp.array(weights)))
    assert -1e-6 <= entropy <= np.log(len(weights)) + 1e-5
    assert float(attention_entropy(scale * jnp.array(weights))) == pytest.approx(entropy, abs=1e-5)


def test_mass_on_relevant_positions():
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(0), (5, 2, 3, 7)))
    relevant = jax.random.bernoulli(jax.random.key(1), 0.4, (5, 7))
    expected = np.einsum("nlhp,np->lh", np.asarray(weights), np.asarray(relevant, np.float32)) / 5
    np.testing.assert_allclose(attention_mass(weights, relevant), expected, rtol=1e-5)
    np.testing.assert_allclose(
        attention_mass(weights, jnp.ones((5, 7), bool)), np.ones((2, 3)), rtol=1e-5
    )


def test_lags_of_a_pattern():
    """Entry (i, j) of the pattern is 10 i + j, so the mean of each lag is known."""
    pattern = 10.0 * jnp.arange(5)[:, None] + jnp.arange(5)
    two_heads = jnp.stack([pattern, -pattern])[None, None]
    expected = np.array([np.mean([11 * i - lag for i in (2, 3, 4)]) for lag in range(3)])
    by_lag = jax.jit(attention_by_lag, static_argnums=(1, 2))(two_heads, 3, 2)
    np.testing.assert_allclose(by_lag, [[expected, -expected]])
    np.testing.assert_allclose(attention_by_lag(two_heads, 1, 4), [[[44.0], [-44.0]]])
    several = jnp.concatenate([two_heads, 3 * two_heads])
    np.testing.assert_allclose(attention_by_lag(several, 3, 2), 2 * by_lag, rtol=1e-6)


@pytest.mark.parametrize(("window", "first_query"), [(6, 4), (3, 1), (0, 2), (2, 5)])
def test_windows_beyond_the_edge_are_refused(window, first_query):
    with pytest.raises(
        InputError, match=rf"from position {first_query} on of 5 do not all have {window} tokens"
    ):
        attention_by_lag(jnp.zeros((1, 1, 1, 5, 5)), window, first_query)
