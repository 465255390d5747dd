"""Dropout in the optimised path of `ChainTransformer`; `test_table.py` compares the rest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import ChainTransformer
from emergo.models.fast import find_path

SPEC = Spec(length=6, inputs=5, outputs=5, answers=2)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(5, size=(4, 6)), jnp.int32)


@pytest.mark.slow
def test_a_stack_branches_over_dropout_of_the_embedding():
    """If one run of a stack has dropout in a step and another has none, both compute the same as
    alone. If no run has dropout, the stack takes the cheaper branch."""
    model = ChainTransformer(
        heads=2, width=8, hidden=3, dropout=0.3, dropout_every=3, dropout_at=("embedding",)
    )
    params = model.init(jax.random.key(0), SPEC)
    path = find_path(model, SPEC)
    assert path is not None
    g = jax.random.normal(jax.random.key(1), (4, 2, 5))

    def value(optimised: bool, p: Any, step: Any) -> jax.Array:
        tap = Tap(SPEC, jax.random.key(3), step)
        if optimised:
            return path.forward(model, p, TOKENS, tap, 0).value
        return model.apply(p, TOKENS, tap).value

    def graded(optimised: bool, steps: list[int]) -> Any:
        def loss(p, step):
            output = value(optimised, p, step)
            return jnp.sum(output * g), output

        return jax.jit(jax.vmap(jax.grad(loss, has_aux=True), (None, 0)))(params, jnp.array(steps))

    stacked = jax.vmap(lambda step: value(True, params, step))
    assert "cond[" in str(jax.make_jaxpr(stacked)(jnp.array([3, 4])))
    mixed = graded(True, [3, 4])
    for one, other in zip(*map(jax.tree.leaves, (mixed, graded(False, [3, 4]))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    dry = graded(True, [4, 5])[1]
    without = model.replace(dropout=0.0).apply(params, TOKENS, Tap(SPEC)).value
    np.testing.assert_allclose(dry, jnp.stack([without, without]), rtol=1e-4, atol=1e-5)
    assert (np.abs(mixed[1][0] - without) > 1e-3).any()
