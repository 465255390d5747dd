import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from emergo import theory

from ..strategies import cells

field = jax.jit(theory.field, static_argnums=2)
jacobian = jax.jit(jax.jacobian(theory.field), static_argnums=2)


@given(cells())
def test_linearisation_is_the_jacobian_of_the_field(cell):
    for flow in ("reduced", "exact"):
        ours = theory.linearise(cell, flow)
        with theory.float64():
            start = jnp.zeros(3)
            drift = field(start, cell, flow)
            matrix = jacobian(start, cell, flow)
        np.testing.assert_allclose(ours.drift, drift, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(ours.matrix, matrix, rtol=1e-9, atol=1e-15)


@given(cells())
def test_growth_rate_is_the_largest_eigenvalue(cell):
    for flow in ("reduced", "exact"):
        matrix = theory.linearise(cell, flow).matrix
        largest = np.linalg.eigvals(matrix).real.max()
        # LAPACK's general solver loses digits against the norm of the matrix.
        assert float(theory.growth_rate(cell, flow)) == pytest.approx(largest, rel=1e-7, abs=1e-12 * np.abs(matrix).max())


@pytest.mark.parametrize(
    ("burst", "repeat", "flow", "law"),
    [
        (1, 0.0, "reduced", lambda T, d: 1 / (np.sqrt(d) * T)),
        (8, 0.0, "reduced", lambda T, d: 8 / (np.sqrt(d) * T)),
        (8, 0.0, "exact", lambda T, d: np.sqrt(8) / (np.sqrt(d) * T)),
        (1, 0.2, "reduced", lambda T, d: np.sqrt(0.04 * d + 0.64) / (np.sqrt(d) * T)),
    ],
)
def test_eigenvalue_laws_at_large_size(burst, repeat, flow, law):
    T, d = 10**7, 10**4
    rate = float(theory.growth_rate(theory.cells(T, d, burst, repeat), flow))
    assert rate == pytest.approx(law(T, d), rel=0.01)


def test_linear_solution_solves_eq_15():
    cell = theory.cells(512, 64, 2)
    rate = 2 / (8 * 512)
    times = np.linspace(0, 2 / rate, 2001)
    found = theory.linear_solution(cell, times)
    # Central differences of a smooth function: errors of order (rate dt)^2 = 1e-6.
    np.testing.assert_allclose(np.gradient(found.weight, times)[1:-1], rate * (1 + found.logit)[1:-1], rtol=1e-5)
    np.testing.assert_allclose(np.gradient(found.logit, times)[1:-1], rate * found.weight[1:-1], rtol=1e-5)
    assert found.weight[0] == found.logit[0] == 0


def test_linear_solution_is_the_start_of_the_flow():
    cell = theory.cells(10**6, 10**4)
    times = 0.05 * float(theory.plateau(cell).time) * np.linspace(0.1, 1, 50)
    path, linear = theory.trajectory(cell, times), theory.linear_solution(cell, times)
    np.testing.assert_allclose(path.alignment, linear.weight, rtol=2e-3)
    np.testing.assert_allclose(path.logit, linear.logit, rtol=5e-3)
