"""The ground that the numbers stand on."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from emergo.measure import head_similarity


def test_compiled_reductions_are_right():
    """jaxlib 0.10.2 fails this on the CPU: from 32,768 elements on, rows are centred with other
    rows' means."""
    z = np.random.default_rng(0).normal(size=(20_000, 5)).astype(np.float32)
    share = np.array([0.1, 0.2, 0.3, 0.15, 0.25], np.float32)
    ours = jax.jit(jax.vmap(lambda row: share * (row - jnp.sum(share * row))))(z)
    np.testing.assert_allclose(ours, share * (z - (z @ share)[:, None]), rtol=1e-4, atol=1e-6)


def test_shapes_are_checked_in_tests():
    """`conftest.py` has them checked: two heads and three positions have two axes, not one."""
    with pytest.raises(jaxtyping.TypeCheckError, match="head_similarity"):
        head_similarity(np.ones(3))
