"""Maps that grow: gradients, the limit of small dims, and the steps of Adam."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from benchmarks import adam_rates
from benchmarks.growing_maps import Maps, draw, gradients, grown_plateau
from emergo.models import Assembly
from emergo.theory import assembly_plateau


def test_gradients_are_those_of_the_loss():
    """The loss is linear in the map and in the logit with the given slopes."""
    rng = np.random.default_rng(0)
    maps = draw(Assembly(width=8), 3, rng)
    stream = rng.normal(size=8).astype(np.float32)
    by_path = rng.normal(size=(3, 3)).astype(np.float32)
    by_logit = np.float32(0.7)

    def gain(maps):
        path = maps.content @ maps.value @ maps.out @ maps.readout
        query = stream @ maps.query + maps.query_bias
        return jnp.sum(path * by_path) + by_logit * query @ (maps.mark @ maps.key)

    arrays: list[Any] = [jnp.asarray(one) for one in maps]
    as_arrays = Maps(*arrays)
    expected = jax.grad(gain)(as_arrays)
    for own, other in zip(gradients(maps, maps, stream, by_path, by_logit), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_few_dims_at_fixed_rates_have_the_plateau_of_the_formula():
    model = Assembly(width=128, mlp=False)
    steps = [grown_plateau(model, 64, 8, 1e-3, seed=seed, fixed=True) for seed in range(4)]
    # Targets are random matrices, whose squared norm spreads by a fifth.
    assert np.mean(steps) == pytest.approx(assembly_plateau(model, 64, 8, 1e-3), rel=0.2)


def test_directions_are_those_of_adam():
    setting = adam_rates.Setting(Assembly(width=8), 2, 0.9)
    zero = {"a": jnp.zeros(3)}
    state = adam_rates.State(zero, zero, zero, jnp.int32(0))
    optimizer = optax.scale_by_adam(b1=adam_rates.B1, b2=0.9, eps=adam_rates.EPSILON)
    optax_state: Any = optimizer.init(zero)
    for step in range(3):
        gradient: Any = {"a": jnp.array([1.0, -2.0, 0.5]) * (step + 1)}
        state = adam_rates.moments(setting, state, gradient)
        expected: Any
        expected, optax_state = optimizer.update(gradient, optax_state)
        np.testing.assert_allclose(
            adam_rates.direction(setting, state)["a"], expected["a"], rtol=1e-5
        )


def test_what_a_factor_adds_is_minus_half_of_its_slope():
    rows = [
        {"model": "m", "b2": 0.9, "dim": dim, "seed": seed, "quantity": name}
        | dict.fromkeys(adam_rates.FACTORS, 1.0)
        | {"memory": (1 + 0.1 * seed) * dim ** (-0.4 if name == "map" else 0.0)}
        for dim in adam_rates.DIMS
        for seed in range(3)
        for name in ("map", "logit")
        for _ in adam_rates.POINTS
    ]
    found = adam_rates.additions(pd.DataFrame(rows)).set_index(["factor", "quantity"])
    assert found.loc[("memory", "map"), "adds"] == pytest.approx(0.2)
    assert found.loc[("memory", "logit"), "adds"] == pytest.approx(0.0, abs=1e-9)
    assert found.loc[("all", "both"), "adds"] == pytest.approx(0.2)
