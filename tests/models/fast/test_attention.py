"""Attention of all positions with cuDNN's kernel, and the lengths for which it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models.fast import attend_all, causal
from emergo.models.fast._attention import attend_causally


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("length", "tiled"), [(128, 128), (129, 128), (130, 256), (257, 256), (100, 128)]
)
def test_cudnn_gets_whole_tiles(length, tiled, monkeypatch):
    """A last position after whole tiles is computed separately. XLA's form replaces cuDNN's here,
    so that the test runs on a CPU."""
    given = []
    reference = jax.nn.dot_product_attention

    def kernel(q, k, v, *, is_causal, implementation):
        given.append(q.shape[1])
        return reference(q, k, v, is_causal=is_causal, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    q, k, v = (part.astype(jnp.bfloat16) for part in drawn(*[(2, length, 2, 8)] * 3))
    temperature = jnp.array([0.0, 0.3])
    fused, plain = (
        attend_all("softmax", q, k, v, None, causal(length), fused, temperature)
        for fused in (True, False)
    )
    assert given == [tiled]
    np.testing.assert_allclose(
        fused.astype(jnp.float32), plain.astype(jnp.float32), atol=0.02
    )  # bf16: 8 bits of up to 3


@pytest.mark.parametrize("length", [65, 130])
def test_blocks_of_queries_equal_all_queries(length):
    """Outputs and gradients, for lengths that blocks do not divide."""
    *maps, weights = drawn(*[(2, length, 2, 8)] * 4)
    visible = causal(length)

    def both(attend):
        def loss(q, k, v):
            mixed = attend(q, k, v)
            return jnp.sum(weights * mixed), mixed

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*maps)

    blocks = both(lambda q, k, v: attend_causally(q, k, v, on_gpu=False))
    plain = both(lambda q, k, v: attend_all("softmax", q, k, v, None, visible, False))
    for one, other in zip(jax.tree.leaves(blocks), jax.tree.leaves(plain), strict=True):
        # fp32 sums of up to 130 numbers in other orders.
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("length", [64, 65, 100, 128, 129, 192, 256])
def test_gradients_are_finite_if_all_scores_are_far_below_0(length, masked, learned):
    """At scores of -100 the gradient of cuDNN's kernel is NaN at lengths 64 and 192."""
    q, k, v, g = (
        0.1 * jax.random.normal(key, (8, length, 4, 64))
        for key in jax.random.split(jax.random.key(0), 4)
    )
    q = q.at[..., 0].set(8.0)
    k = k.at[..., 0].set(-100.0)

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
    # The first component of the query's gradient is exactly 0, because softmax ignores a constant
    # added to all scores. The rest is rounding times 100: up to 0.006 on an H200.
    for part in (fused, plain):
        np.testing.assert_allclose(part[0][..., 0], 0, atol=0.02)
    np.testing.assert_allclose(fused[0][..., 1:], plain[0][..., 1:], atol=5e-4)  # of up to 0.002
    for one, other in zip(fused[1:], plain[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=5e-3)  # bf16: 8 bits of numbers up to 0.5
