"""Sinusoids and rotations, by their formulas in NumPy."""

import jax.numpy as jnp
import numpy as np

from emergo.models._attention import rotate, sinusoids


def test_sinusoids():
    """Vaswani et al. 2017, Section 3.5."""
    angle = np.arange(7)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    expected = np.zeros((7, 8))
    expected[:, ::2], expected[:, 1::2] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(sinusoids(7, 8), expected, rtol=1e-5, atol=1e-6)


def test_rotations():
    """Su et al. 2021: pairs of features are complex numbers, multiplied by exp(i angle)."""
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 6))
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * np.arange(7)[:, None] / 10_000 ** (np.arange(0, 6, 2) / 6))[
        :, None
    ]
    expected = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    np.testing.assert_allclose(rotate(jnp.asarray(x, jnp.float32), 7), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rotate(jnp.asarray(x[:, -2:], jnp.float32), 7), expected[:, -2:], rtol=1e-5, atol=1e-5)
    low = rotate(jnp.asarray(x, jnp.bfloat16), 7)
    assert low.dtype == jnp.bfloat16


def test_scores_of_rotated_vectors_depend_on_the_distance_alone():
    q, k = (np.broadcast_to(v, (1, 7, 1, 6)) for v in np.random.default_rng(1).standard_normal((2, 6)))
    q, k = (np.asarray(rotate(jnp.asarray(a, jnp.float32), 7))[0, :, 0] for a in (q, k))
    scores = q @ k.T
    for lag in range(1, 7):
        np.testing.assert_allclose(np.diagonal(scores, -lag), scores[lag, 0], rtol=1e-4, atol=1e-5)
    assert abs(scores[1, 0] - scores[0, 0]) > 1e-3
