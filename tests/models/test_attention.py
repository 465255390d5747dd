"""Forms of attention by their formulas, and where a GPU's fused attention may be used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._attention import _tiles, attend, attend_all, causal, near, score, weigh


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("context", [None, 1, 3])
def test_the_causal_mask(context):
    mask = np.asarray(causal(5, context))
    for i in range(5):
        assert [j for j in range(5) if mask[i, j]] == list(range(max(0, i + 1 - (context or 5)), i + 1))


@pytest.mark.parametrize("window", [1, 3, 9])
def test_the_local_mask(window):
    mask = np.asarray(near(5, window))
    for i in range(5):
        assert [j for j in range(5) if mask[i, j]] == list(range(max(0, i + 1 - window), min(5, i + window)))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("form", ["softmax", "sigmoid", "linear"])
@pytest.mark.parametrize("top_k", [1, 2, 9])
def test_only_the_largest_scores_are_seen(form, window, top_k):
    """One query at a time, in NumPy: what is not seen does not count as a visible position either."""
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
def test_forms_are_their_formulas(form, masked, learned):
    """One sequence, head and query at a time, in NumPy."""
    q, k, v, bias, temperature = drawn((2, 4, 3, 6), (2, 4, 3, 6), (2, 4, 3, 6), (3, 4, 4), (3,))
    given = bias if form in ("biased", "positional") else None
    logs = temperature if learned else None
    mask = causal(4) if masked else None
    weights = np.broadcast_to(weigh(form, score(form, q, k, given, logs), mask), (2, 3, 4, 4))
    mixed = attend(jnp.asarray(weights), v)
    for n, h, i in np.ndindex(2, 3, 4):
        seen = range(i + 1 if masked else 4)
        scores = np.array([np.dot(q[n, i, h], k[n, j, h]) / np.sqrt(6) for j in seen])
        scores = {"biased": scores + bias[h, i, : len(seen)], "positional": np.asarray(bias[h, i, : len(seen)])}.get(
            form, scores
        )
        scores = scores / np.exp(temperature[h]) if learned else scores
        if form == "linear":
            expected = scores / len(seen)
        elif form == "sigmoid":
            expected = 1 / (1 + len(seen) * np.exp(-scores))
        else:
            expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(weights[n, h, i, : len(seen)], expected, rtol=1e-4, atol=1e-6)
        assert not weights[n, h, i, len(seen) :].any()
        np.testing.assert_allclose(mixed[n, i, h], expected @ np.asarray(v)[n, : len(seen), h], rtol=1e-3, atol=1e-5)


def test_sigmoid_weights_of_equal_scores_are_nearly_those_of_softmax():
    """At score 0 each is 1/(1 + visible): the offset keeps the sum near 1 at the start, whatever the length."""
    weights = weigh("sigmoid", jnp.zeros((1, 100, 100)), causal(100))
    np.testing.assert_allclose(weights.sum(-1)[0], np.arange(1, 101) / np.arange(2, 102), rtol=1e-5)


@pytest.mark.parametrize(
    ("length", "size", "masked", "expected"),
    [
        (128, 64, False, 1),
        (512, 128, False, 4),
        (64, 64, False, 0),
        (192, 64, False, 0),
        (65, 64, False, 0),
        (65, 64, True, 1),
        (64, 64, True, 0),
        (129, 64, True, 2),
        (128, 20, False, 0),
        (128, 256, True, 0),
    ],
)
def test_whole_tiles_and_the_sizes_of_the_kernel(length, size, masked, expected):
    assert _tiles(length, size, masked) == expected


@pytest.mark.parametrize(("length", "tiled"), [(128, 128), (129, 128), (130, 256), (257, 256), (100, 128)])
def test_a_last_position_behind_whole_tiles_is_left_to_itself(length, tiled, monkeypatch):
    """The kernel is stood in for by XLA's form, so that a CPU can show what it is given and what is made of it."""
    given, reference = [], jax.nn.dot_product_attention

    def kernel(q, k, v, *, is_causal, implementation):
        given.append(q.shape[1])
        return reference(q, k, v, is_causal=is_causal, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    q, k, v = (part.astype(jnp.bfloat16) for part in drawn(*[(2, length, 2, 8)] * 3))
    temperature = jnp.array([0.0, 0.3])
    fused, plain = (attend_all("softmax", q, k, v, None, causal(length), way, temperature) for way in (True, False))
    assert given == [tiled]
    np.testing.assert_allclose(fused.astype(jnp.float32), plain.astype(jnp.float32), atol=0.02)  # bf16: 8 bits of up to 3


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("length", [64, 65, 100, 128, 129, 192, 256])
def test_gradients_are_those_of_the_plain_form_where_all_scores_are_far_below_0(length, masked, learned):
    """At -100 the kernel's gradient is NaN for lengths of 64 and 192."""
    q, k, v, g = (0.1 * jax.random.normal(key, (8, length, 4, 64)) for key in jax.random.split(jax.random.key(0), 4))
    q, k = q.at[..., 0].set(8.0), k.at[..., 0].set(-100.0)

    visible = causal(length) if masked else None
    temperature = jnp.array([0.0, 0.1, -0.1, 0.05]) if learned else None

    def gradients(fused):
        def loss(*parts):
            low_q, low_k, low_v = (p.astype(jnp.bfloat16) for p in parts)
            mixed = attend_all("softmax", low_q, low_k, low_v, None, visible, fused, temperature)
            return jnp.sum(mixed.astype(jnp.float32) * g)

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    fused, plain = (list(gradients(which)) for which in (True, False))
    assert all(bool(jnp.isfinite(part).all()) for part in fused)
    # The first component of the query's is exactly 0, as weights do not depend on what is added to all scores. What is left is
    # rounding times -100: on an H200 the two forms differed by up to 0.006.
    for part in (fused, plain):
        np.testing.assert_allclose(part[0][..., 0], 0, atol=0.02)
    np.testing.assert_allclose(fused[0][..., 1:], plain[0][..., 1:], atol=5e-4)  # of up to 0.002
    for one, other in zip(fused[1:], plain[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=5e-3)  # bf16: 8 bits of numbers up to 0.5
