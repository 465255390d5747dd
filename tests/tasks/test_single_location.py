"""The law of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emergo._errors import InputError
from emergo.tasks import SingleLocation


@pytest.mark.slow
@settings(max_examples=20)
@given(st.sampled_from([2, 5, 9]), st.sampled_from([1, 4]), st.sampled_from([1, 3, 8]), st.integers(0, 1000))
def test_shapes_repeats_and_target(length, dim, burst, seed):
    task = SingleLocation(length, dim, min(burst, length - 1))
    key_truth, key_data = jax.random.split(jax.random.key(seed))
    truth = task.truth(key_truth)
    data = task.sample(key_data, 3, truth)
    assert data.tokens.shape == (3, length, dim)
    relevant = np.asarray(data.tokens[:, np.asarray(task.relevant)])
    assert relevant.shape[1] == task.burst
    assert (relevant == relevant[:, :1]).all()
    np.testing.assert_allclose(data.target, relevant[:, 0] @ np.asarray(truth.weights).T, rtol=1e-5, atol=1e-6)
    # The other tokens are all different.
    others = np.asarray(data.tokens[:, ~np.asarray(task.relevant)])
    assert len({o.tobytes() for o in others.reshape(-1, dim)}) == others.shape[0] * others.shape[1]


@pytest.mark.parametrize("repeat", [0.0, 0.3, 1.0])
def test_covariance_and_frequency_of_the_special_token(repeat):
    """40,000 samples: standard errors of entries of a covariance are about sqrt(2/40000)/dim = 0.7% of 1/dim."""
    task, n = SingleLocation(3, 4, repeat=repeat), 40_000
    truth = task.truth(jax.random.key(0))
    tokens = np.asarray(task.sample(jax.random.key(1), n, truth).tokens)
    special = (tokens[:, -1] == np.asarray(truth.special)).all(-1)
    assert abs(special.mean() - repeat) <= 4 * np.sqrt(repeat * (1 - repeat) / n)
    fresh = np.eye(4) / 4
    expected = repeat * np.outer(truth.special, truth.special) + (1 - repeat) * fresh
    np.testing.assert_allclose(tokens[:, -1].T @ tokens[:, -1] / n, expected, atol=0.012)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, 0] / n, fresh, atol=0.008)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, -1] / n, np.zeros((4, 4)), atol=0.01)
    np.testing.assert_allclose(tokens[:, 0].mean(0), np.zeros(4), atol=0.012)


def test_the_truth_has_entries_of_variance_one_over_dim():
    weights = np.asarray(SingleLocation(2, 100).truth(jax.random.key(0)).weights)
    assert weights.var() == pytest.approx(0.01, rel=0.06)
    assert weights.dtype == np.float32


def test_a_key_gives_the_same_data_alone_and_mapped():
    task = SingleLocation(5, 3, 2, 0.4)
    truth = task.truth(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    mapped = jax.vmap(lambda k: task.sample(k, 6, truth).tokens)(keys)
    alone = jnp.stack([task.sample(k, 6, truth).tokens for k in keys])
    np.testing.assert_array_equal(mapped, alone)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 4), "length must be a whole number of at least 2"),
        ((8, 0), "dim must be a whole number of at least 1"),
        ((8, 4, 0), "burst must be a whole number of at least 1"),
        ((8, 4, 8), "burst must be smaller than length"),
        ((8, 4, 1, 1.5), r"repeat must be in \[0, 1\]"),
        ((8, 4, 1, float("nan")), r"repeat must be in \[0, 1\]"),
        ((True, 4), "length must be a whole number"),
    ],
)
def test_wrong_sizes_are_named(values, message):
    with pytest.raises(InputError, match=message):
        SingleLocation(*values)
