"""Closed forms against the integrated flow and against numerical references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from scipy.integrate import solve_ivp
from scipy.special import expit

from emergo import theory
from emergo.theory._closed_form import logit_speed

from ..strategies import cells

jacobian = jax.jit(jax.jacobian(theory.field))
gradient = jax.jit(theory.gradient)
loss = jax.jit(theory.loss)


@pytest.mark.parametrize(
    ("burst", "repeat", "flow"),
    [
        (1, 0.0, "reduced"),
        (4, 0.0, "reduced"),
        (4, 0.0, "exact"),
        (1, 0.1, "reduced"),
        (4, 0.1, "exact"),
    ],
)
def test_plateau_tends_to_the_closed_form(burst, repeat, flow):
    cell = theory.cells([10**5, 10**7, 10**9], 4096, burst, repeat)
    ratio = theory.plateau(cell, flow).time / theory.predicted_plateau(cell, flow)
    assert (np.diff(np.abs(ratio - 1)) <= 1e-6).all()
    # The difference at infinite length is of order 1/sqrt(dim), here below 0.3%.
    assert ratio[-1] == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("burst", [1, 4])
def test_next_order_in_one_over_sqrt_dim(burst):
    """At infinite length the excess is (1 - π/4)/sqrt(π/2) / (B sqrt(d)) in the reduced flow."""
    dims = np.array([64, 256, 1024, 4096])
    cell = theory.cells(10**9, dims, burst)
    excess = theory.plateau(cell).time / theory.predicted_plateau(cell) - 1
    derived = (1 - np.pi / 4) / np.sqrt(np.pi / 2) / (burst * np.sqrt(dims))
    gap = np.abs(excess / derived - 1)
    assert gap[-1] < 0.01
    assert (np.diff(gap) < 0).all()


def test_errata_values():
    """The values at (dim 64, length 4096) and (4096, 1e6) are independent results."""
    cell = theory.cells([4096, 10**6], [64, 4096])
    constant = theory.plateau(cell).time / (np.sqrt(cell.dim) * cell.length)
    np.testing.assert_allclose(constant, [1.283, 1.2567], rtol=5e-4)


@given(cells())
def test_formulas_of_the_three_cases(cell):
    T, d, B, p = map(float, cell)
    root = np.sqrt(np.pi / 2)
    plain = cell._replace(repeat=np.zeros_like(cell.repeat))
    assert theory.predicted_plateau(plain, "reduced") == pytest.approx(
        root * np.sqrt(d) * T / B, rel=1e-12
    )
    assert theory.predicted_plateau(plain, "exact") == pytest.approx(
        root * np.sqrt(d) * T / np.sqrt(B), rel=1e-12
    )
    single = cell._replace(burst=np.ones_like(cell.burst))
    rare = (1 - p) / d
    across = root * T / np.sqrt((p + rare) ** 2 + (d - 1) * rare**2)
    assert theory.predicted_plateau(single, "reduced") == pytest.approx(across, rel=1e-12)
    assert theory.escape_time(plain) == pytest.approx(
        np.sqrt(d) * T / (2 * B) * np.arcsinh(0.8 * np.sqrt(d) * T / B), rel=1e-12
    )


def test_the_linear_loss_has_fallen_by_epsilon_at_the_escape_time():
    cell = theory.cells([64, 512], 32, [1, 4])
    times = theory.escape_time(cell, epsilon=0.3)[:, None]
    np.testing.assert_allclose(
        theory.linear_solution(cell, times).loss[:, 0], 0.5 * 0.7, rtol=1e-10
    )


@pytest.mark.parametrize(("repeat", "dim"), [(0.0, 64), (1.0, 64), (0.3, 16)])
def test_repeat_factor(repeat, dim):
    assert theory.repeat_factor(repeat, dim) == pytest.approx(
        np.hypot(repeat * np.sqrt(dim), 1 - repeat)
    )


@given(cells())
def test_growth_rate_is_the_largest_eigenvalue_of_the_jacobian(cell):
    for flow in ("reduced", "exact"):
        with theory.float64():
            matrix = np.asarray(jacobian(jnp.zeros(3), cell, logit_speed(cell, flow)))
        largest = np.linalg.eigvals(matrix).real.max()
        # LAPACK's general solver has errors relative to the norm of the matrix.
        assert float(theory.growth_rate(cell, flow)) == pytest.approx(
            largest, rel=1e-7, abs=1e-12 * np.abs(matrix).max()
        )


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
    T = 10**7
    d = 10**4
    rate = float(theory.growth_rate(theory.cells(T, d, burst, repeat), flow))
    assert rate == pytest.approx(law(T, d), rel=0.01)


def test_linear_solution_solves_eq_15():
    cell = theory.cells(512, 64, 2)
    rate = 2 / (8 * 512)
    times = np.linspace(0, 2 / rate, 2001)
    found = theory.linear_solution(cell, times)
    # Central differences of a smooth function: errors of order (rate dt)^2 = 1e-6.
    np.testing.assert_allclose(
        np.gradient(found.weight, times)[1:-1], rate * (1 + found.logit)[1:-1], rtol=1e-5
    )
    np.testing.assert_allclose(
        np.gradient(found.logit, times)[1:-1], rate * found.weight[1:-1], rtol=1e-5
    )
    assert found.weight[0] == found.logit[0] == 0


def test_the_flow_starts_like_the_linear_solution():
    cell = theory.cells(10**6, 10**4)
    times = 0.05 * float(theory.plateau(cell).time) * np.linspace(0.1, 1, 50)
    path = theory.trajectory(cell, times)
    linear = theory.linear_solution(cell, times)
    np.testing.assert_allclose(path.alignment, linear.weight, rtol=2e-3)
    np.testing.assert_allclose(path.logit, linear.logit, rtol=5e-3)


def escape_of(velocity, loss, start, horizon):
    """Return the time at which a flow's loss is 0.2 of its start, by SciPy."""

    class Threshold:
        terminal = True

        def __call__(self, t, y):
            return loss(y) - 0.2

    options = {"method": "LSODA", "events": Threshold(), "rtol": 1e-7, "atol": 1e-9}
    return solve_ivp(velocity, (0, horizon), start, **options).t_events[0][0]


@pytest.mark.parametrize("form", ["linear", "sigmoid"])
@pytest.mark.parametrize(("length", "dim"), [(10**3, 256), (10**5, 1024)])
def test_the_toy_model_with_other_forms_of_attention(form, length, dim):
    """Sigmoid weights have the plateau of softmax. With linear weights (1 + a)/T the flow leaves it
    exponentially, at the time of the linearised flow (docs/theory.md). The state is w, the relevant
    logit and the logit of every other token."""

    def parts(y):
        if form == "linear":
            return y[0], *(1 + y[1:]) / length, 1 / length, 1 / length
        relevant, other = expit(y[1:] - np.log(length))
        return y[0], relevant, other, relevant * (1 - relevant), other * (1 - other)

    def velocity(t, y):
        w, relevant, other, by_relevant, by_other = parts(y)
        error = (relevant * w - dim**0.5) / dim
        return [
            -w * (length - 1) * other**2 / dim - relevant * error,
            -by_relevant * w * error,
            -by_other * other * w**2 / dim,
        ]

    def loss(y):
        w, relevant, other, *_ = parts(y)
        return w**2 * (length - 1) * other**2 / dim + (relevant * w - dim**0.5) ** 2 / dim

    cell = theory.cells(length, dim)
    time = escape_of(velocity, loss, np.zeros(3), 100 * dim**0.5 * length)
    if form == "sigmoid":
        assert time / theory.plateau(cell).time == pytest.approx(1, abs=2 / length)
    else:
        # 1.12 and 1.07: the delay shrinks as the logarithm of the length and sqrt(dim) grow
        assert 1 < time / theory.escape_time(cell, epsilon=2 * (1 - 0.2**0.5)) < 1.13


@pytest.mark.parametrize(
    ("alignment", "logit", "tolerance"), [(-1.0, 0.0, 0.014), (4.0, -1.0, 0.014), (0.5, 3.0, 0.03)]
)
def test_the_plateau_from_another_start_equals_the_formula(alignment, logit, tolerance):
    """The neglected term, which pulls a misaligned W to 0, is of order 1/sqrt(dim)."""
    cell = theory.cells(10**5, 1024)

    def velocity(t, y):
        with theory.float64():
            return -np.asarray(gradient(jnp.asarray(y), cell))

    def loss_of(y):
        with theory.float64():
            return 2 * float(loss(jnp.asarray(y), cell))

    predicted = float(theory.plateau_from(cell, alignment, logit))
    time = escape_of(velocity, loss_of, [alignment, logit], 10 * predicted)
    assert time / predicted == pytest.approx(1, abs=tolerance)


def test_the_plateau_from_the_origin_is_the_closed_form():
    cell = theory.cells([100, 1000], 16, [1, 4], [0.0, 0.2])
    np.testing.assert_allclose(theory.plateau_from(cell, 0.0), theory.predicted_plateau(cell))


def test_the_best_of_several_heads_ends_the_plateau():
    """Heads do not interact before the first take-off (docs/theory.md)."""
    length = 10**4
    dim = 1024
    starts = np.array([-0.6, 0.2, 0.9])

    def parts(y):
        return y[:3], expit(y[3:] - np.log(length - 1))

    def velocity(t, y):
        w, A = parts(y)
        error = (A @ w - dim**0.5) / dim
        mixed = ((1 - A) @ w) / (dim * (length - 1))
        return np.concatenate([-A * error - (1 - A) * mixed, -A * (1 - A) * w * (error - mixed)])

    def loss(y):
        w, A = parts(y)
        return ((1 - A) @ w) ** 2 / (dim * (length - 1)) + (A @ w - dim**0.5) ** 2 / dim

    time = escape_of(velocity, loss, np.concatenate([starts, np.zeros(3)]), 10 * dim**0.5 * length)
    each = theory.plateau_from(theory.cells(np.full(3, length), dim), starts)
    assert time / each.min() == pytest.approx(1, abs=0.02)
    assert each.min() < 0.75 * each[1]
