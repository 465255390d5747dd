"""Forms of attention, masks and positional encodings against their formulas in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._attention import attend, causal, near, rotate, score, sinusoids, weigh


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("form", ["softmax", "sigmoid", "linear"])
@pytest.mark.parametrize("top_k", [1, 2, 9])
def test_top_k_sees_only_the_largest_scores(form, window, top_k):
    """Other positions do not count as visible either."""
    (scores,) = drawn((2, 6, 6))
    weights = np.asarray(weigh(form, scores, None if window is None else near(6, window), top_k))
    for n, i in np.ndindex(2, 6):
        seen = [j for j in range(6) if window is None or abs(i - j) < window]
        chosen = sorted(seen, key=lambda j: -float(scores[n, i, j]))[:top_k]
        own = np.asarray(scores)[n, i, chosen]
        expected = {
            "softmax": np.exp(own) / np.exp(own).sum(),
            "sigmoid": 1 / (1 + len(chosen) * np.exp(-own)),
            "linear": own / len(chosen),
        }[form]
        np.testing.assert_allclose(weights[n, i, chosen], expected, rtol=1e-5)
        assert not np.delete(weights[n, i], chosen).any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["softmax", "linear", "sigmoid", "biased", "positional"])
@pytest.mark.parametrize("learned", [False, True])
def test_forms_equal_their_formulas(form, masked, learned):
    """One sequence, head and query at a time."""
    q, k, v, bias, temperature = drawn((2, 4, 3, 6), (2, 4, 3, 6), (2, 4, 3, 6), (3, 4, 4), (3,))
    given = bias if form in ("biased", "positional") else None
    logs = temperature if learned else None
    mask = causal(4) if masked else None
    weights = np.broadcast_to(weigh(form, score(form, q, k, given, logs), mask), (2, 3, 4, 4))
    mixed = attend(jnp.asarray(weights), v)
    for n, h, i in np.ndindex(2, 3, 4):
        seen = range(i + 1 if masked else 4)
        scores = np.array([np.dot(q[n, i, h], k[n, j, h]) / np.sqrt(6) for j in seen])
        scores = {
            "biased": scores + bias[h, i, : len(seen)],
            "positional": np.asarray(bias[h, i, : len(seen)]),
        }.get(form, scores)
        scores = scores / np.exp(temperature[h]) if learned else scores
        if form == "linear":
            expected = scores / len(seen)
        elif form == "sigmoid":
            expected = 1 / (1 + len(seen) * np.exp(-scores))
        else:
            expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(weights[n, h, i, : len(seen)], expected, rtol=1e-4, atol=1e-6)
        assert not weights[n, h, i, len(seen) :].any()
        np.testing.assert_allclose(
            mixed[n, i, h], expected @ np.asarray(v)[n, : len(seen), h], rtol=1e-3, atol=1e-5
        )


def test_sinusoids():
    """Vaswani et al. 2017, Section 3.5."""
    angle = np.arange(7)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    expected = np.zeros((7, 8))
    expected[:, ::2] = np.sin(angle)
    expected[:, 1::2] = np.cos(angle)
    np.testing.assert_allclose(sinusoids(7, 8), expected, rtol=1e-5, atol=1e-6)


def test_rope_multiplies_complex_numbers():
    """Su et al. 2021: pairs of features are complex numbers, multiplied by exp(i angle)."""
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 6))
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(
        1j * np.arange(7)[:, None] / 10_000 ** (np.arange(0, 6, 2) / 6)
    )[:, None]
    expected = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    np.testing.assert_allclose(
        rotate(jnp.asarray(x, jnp.float32), 7), expected, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        rotate(jnp.asarray(x[:, -2:], jnp.float32), 7), expected[:, -2:], rtol=1e-5, atol=1e-5
    )
    low = rotate(jnp.asarray(x, jnp.bfloat16), 7)
    assert low.dtype == jnp.bfloat16
