"""The optimised path of the Transformer in bf16; `test_table.py` compares it in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.contract import Spec, Tap
from emergo.models import Transformer
from emergo.models.fast import find_path

SPEC = Spec(length=7, inputs=4, outputs=2)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
def test_bf16_is_near_fp32(layers, positions):
    """An operation rounds by at most 0.4%, and few follow each other."""
    model = Transformer(layers=layers, heads=2, width=8, positions=positions)
    rng = np.random.default_rng(0)
    start = model.init(jax.random.key(0), SPEC)
    params = jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), "f4"), start)
    inputs = jnp.asarray(rng.standard_normal((2, 7, 4)), jnp.float32)
    path = find_path(model, SPEC)
    assert path is not None

    @jax.jit
    def both(params, inputs):
        fast = path.forward(model, params, inputs, Tap(SPEC), 0)
        return fast, model.apply(params, inputs)

    exact, _ = both(params, inputs)
    for output in both(*jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, inputs))):
        assert output.value.dtype == jnp.bfloat16
        assert output.attention.dtype == output.value_path.dtype == jnp.float32
        for ours, theirs in ((output.value, exact.value), (output.attention, exact.attention)):
            largest = float(np.abs(theirs).max())
            ours = ours.astype(jnp.float32)
            np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-2 * largest)
