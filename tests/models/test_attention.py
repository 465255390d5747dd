"""Where a GPU's fused attention may be used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._attention import _tiles, attend_all


@pytest.mark.parametrize(
    ("length", "size", "causal", "expected"),
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
def test_whole_tiles_and_the_sizes_of_the_kernel(length, size, causal, expected):
    assert _tiles(length, size, causal) == expected


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [64, 65, 100, 128, 192, 256])
def test_gradients_are_those_of_the_plain_form_where_all_scores_are_far_below_0(length, causal):
    """At -100 the kernel's gradient is NaN for lengths of 64 and 192."""
    q, k, v, g = (0.1 * jax.random.normal(key, (8, length, 4, 64)) for key in jax.random.split(jax.random.key(0), 4))
    q, k = q.at[..., 0].set(8.0), k.at[..., 0].set(-100.0)

    visible = jnp.tril(jnp.ones((length, length), bool)) if causal else None

    def gradients(fused):
        def loss(*parts):
            low_q, low_k, low_v = (p.astype(jnp.bfloat16) for p in parts)
            mixed = attend_all("softmax", low_q, low_k, low_v, None, visible, fused)
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
