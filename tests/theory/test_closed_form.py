import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from emergo import theory
from emergo.theory._closed_form import logit_speed

from ..strategies import cells

jacobian = jax.jit(jax.jacobian(theory.field))


@pytest.mark.parametrize(
    ("burst", "repeat", "flow"),
    [(1, 0.0, "reduced"), (4, 0.0, "reduced"), (4, 0.0, "exact"), (1, 0.1, "reduced"), (4, 0.1, "exact")],
)
def test_plateau_tends_to_the_closed_form(burst, repeat, flow):
    cell = theory.cells([10**5, 10**7, 10**9], 4096, burst, repeat)
    ratio = theory.plateau(cell, flow).time / theory.predicted_plateau(cell, flow)
    assert (np.diff(np.abs(ratio - 1)) <= 1e-6).all()
    # What is left at infinite length is of order 1/sqrt(dim), here under 0.3%.
    assert ratio[-1] == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("burst", [1, 4])
def test_next_order_in_one_over_sqrt_dim(burst):
    """docs/theory.md: at infinite length the excess is (1 - π/4)/sqrt(π/2) / (B sqrt(d)) in the reduced flow."""
    dims = np.array([64, 256, 1024, 4096])
    cell = theory.cells(10**9, dims, burst)
    excess = theory.plateau(cell).time / theory.predicted_plateau(cell) - 1
    derived = (1 - np.pi / 4) / np.sqrt(np.pi / 2) / (burst * np.sqrt(dims))
    gap = np.abs(excess / derived - 1)
    assert gap[-1] < 0.01
    assert (np.diff(gap) < 0).all()


def test_errata_values():
    """1.283 sqrt(d) T at (dim 64, length 4096) and 1.2567 at (4096, 1e6), integrated independently before this package."""
    cell = theory.cells([4096, 10**6], [64, 4096])
    constant = theory.plateau(cell).time / (np.sqrt(cell.dim) * cell.length)
    np.testing.assert_allclose(constant, [1.283, 1.2567], rtol=5e-4)


@given(cells())
def test_formulas_of_the_three_cases(cell):
    T, d, B, p = map(float, cell)
    root = np.sqrt(np.pi / 2)
    plain = cell._replace(repeat=np.zeros_like(cell.repeat))
    assert theory.predicted_plateau(plain, "reduced") == pytest.approx(root * np.sqrt(d) * T / B, rel=1e-12)
    assert theory.predicted_plateau(plain, "exact") == pytest.approx(root * np.sqrt(d) * T / np.sqrt(B), rel=1e-12)
    single = cell._replace(burst=np.ones_like(cell.burst))
    rare = (1 - p) / d
    across = root * T / np.sqrt((p + rare) ** 2 + (d - 1) * rare**2)
    assert theory.predicted_plateau(single, "reduced") == pytest.approx(across, rel=1e-12)
    assert theory.escape_time(plain) == pytest.approx(
        np.sqrt(d) * T / (2 * B) * np.arcsinh(0.8 * np.sqrt(d) * T / B), rel=1e-12
    )


def test_escape_time_is_where_the_linear_loss_has_fallen_by_epsilon():
    cell = theory.cells([64, 512], 32, [1, 4])
    times = theory.escape_time(cell, epsilon=0.3)[:, None]
    np.testing.assert_allclose(theory.linear_solution(cell, times).loss[:, 0], 0.5 * 0.7, rtol=1e-10)


@pytest.mark.parametrize(("repeat", "dim"), [(0.0, 64), (1.0, 64), (0.3, 16)])
def test_repeat_factor(repeat, dim):
    assert theory.repeat_factor(repeat, dim) == pytest.approx(np.hypot(repeat * np.sqrt(dim), 1 - repeat))


@given(cells())
def test_growth_rate_is_the_largest_eigenvalue_of_the_jacobian(cell):
    for flow in ("reduced", "exact"):
        with theory.float64():
            matrix = np.asarray(jacobian(jnp.zeros(3), cell, logit_speed(cell, flow)))
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
