"""The flow of several heads: derivatives, integration, stages, growth rates."""

from typing import Any, cast, get_args

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from emergo.core.errors import InputError
from emergo.tasks import Groups, MarkovRegression
from emergo.theory import float64
from emergo.theory import incremental as inc

FLOWS = get_args(inc.Flow)
ONES = Groups((1, 1, 1))
SHAPES = [
    ONES,
    Groups((1, 2), 1.3, "far"),
    Groups((2, 2), 2.0, stride=1),
    Groups((2, 1), weights=((0.7, 0.3), (1.0,))),
]


def somewhere(groups, heads, length, seed=0):
    rng = np.random.default_rng(seed)
    return inc.Heads(
        jnp.asarray(rng.normal(size=(heads, groups.count))),
        jnp.asarray(rng.normal(size=(heads, length))),
    )


@pytest.mark.parametrize("groups", SHAPES)
def test_the_logit_flow_is_minus_the_gradient(groups):
    """At a point without symmetry. The flows differ by the factor J(s) = diag(s) - s s^T."""
    with float64():
        delta = inc.target(groups, 6)
        heads = somewhere(groups, 3, 6)
        gradient = jax.jit(jax.grad(inc.loss))(heads, delta)
        logit, other = (
            jax.jit(inc.velocity, static_argnums=2)(heads, delta, flow) for flow in FLOWS
        )
        s = np.asarray(inc.attention(heads))
    np.testing.assert_allclose(logit.values, -gradient.values, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(logit.logits, -gradient.logits, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(other.values, logit.values)
    for row, fast, slow in zip(s, np.asarray(other.logits), np.asarray(logit.logits), strict=True):
        np.testing.assert_allclose((np.diag(row) - np.outer(row, row)) @ fast, slow, atol=1e-13)


@pytest.mark.parametrize("groups", [SHAPES[1], SHAPES[3]])
def test_the_loss_equals_the_regression_task(groups):
    """100,000 samples of the task have a standard error near 0.3%."""
    task = MarkovRegression(groups, dim=2, length=4)
    truth = task.truth(jax.random.key(0))
    heads = somewhere(groups, 2, 4)
    data = task.batch(jax.random.key(1), 100_000, truth)
    # A value vector's coordinates are along the normalised maps.
    maps = np.asarray(truth.maps) / groups.strengths[:, None, None]
    values = np.einsum("kj,jab->kab", heads.values, maps)
    newest_first = np.asarray(data.inputs)[:, ::-1]
    output = np.einsum("kab,kt,ntb->na", values, np.asarray(inc.attention(heads)), newest_first)
    sampled = 0.5 * np.sum((output - np.asarray(data.target)) ** 2, 1)
    exact = float(inc.loss(heads, inc.target(groups, 4)))
    assert abs(sampled.mean() - exact) < 4 * sampled.std() / np.sqrt(len(sampled))


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_stages_of_the_flow(flow):
    """Check the claims of the paper on one integration, and compare it with SciPy's."""
    scales = np.array([0.0, 1e-2, 1e-4, 1e-6, 1e-8])
    times = np.append(0, np.geomspace(1e-2, 1500, 1000))
    path = inc.trajectory(ONES, times, 3, flow=flow, scale=scales)
    levels = inc.plateaus(ONES, 3)
    np.testing.assert_allclose(levels, [6.12105, 1.945, 0.5, 0], atol=1e-5)
    found = inc.stage_times(path, levels)

    # Equal heads stay equal, bit for bit, and never leave the first plateau.
    assert (path.attention[0] == path.attention[0][:, :1]).all()
    assert (path.values[0] == path.values[0][:, :1]).all()
    assert np.isnan(found[0, 1:]).all()
    assert path.loss[0, -1] == pytest.approx(levels[1], rel=1e-3)

    # The first stage does not depend on the scale. The second is later for smaller scales, and
    # grows faster than their logarithm.
    np.testing.assert_allclose(found[:, 0], found[0, 0], rtol=1e-2)
    steps = np.diff(found[1:, 1])
    assert (np.diff(steps) > 0).all()
    assert (np.diff(found[1:], axis=1) > 0).all()

    # Between stages the loss stays at the predicted level for most of the time.
    for k in (1, 2):
        inside = (path.time > 1.7 * found[3, k - 1]) & (path.time < 0.7 * found[3, k])
        assert path.loss[3, inside].min() == pytest.approx(levels[k], rel=0.03)

    # Competition: after the first stage all heads attend to group 1. Cooperation: in the end each
    # head attends most to a different group. It may attend to others too, since any three
    # independent patterns can be combined to a loss of 0.
    between = np.searchsorted(path.time, np.sqrt(found[4, 0] * found[4, 1]))
    assert (path.attention[4, between, :, 0] > 0.7).all()
    for end in path.attention[1:, -1]:
        assert sorted(end.argmax(0).tolist()) == [0, 1, 2]
    np.testing.assert_allclose(path.loss[1:, -1], 0, atol=1e-9)

    delta = inc.target(ONES)
    with float64():
        first = inc.start(3, delta, scales[1], 0)
        s0 = np.asarray(inc.attention(first))

    def velocity(_, y):
        V = y[:9].reshape(3, 3)
        s = y[9:].reshape(3, 3)
        R = delta - V.T @ s
        moved = []
        for k in range(3):
            J = np.diag(s[k]) - np.outer(s[k], s[k])
            moved.append((J @ J if flow == "logit" else J) @ R.T @ V[k])
        return np.concatenate([(s @ R.T).ravel(), np.ravel(moved)])

    some = times[times < 60][::20]
    theirs = solve_ivp(
        velocity, (0, some[-1]), np.append(np.zeros(9), s0), "DOP853", some, rtol=1e-11, atol=1e-13
    ).y
    np.testing.assert_allclose(
        path.values[1][times < 60][::20].reshape(-1, 9).T, theirs[:9], atol=1e-6
    )
    np.testing.assert_allclose(
        path.attention[1][times < 60][::20].reshape(-1, 9).T, theirs[9:], atol=1e-6
    )


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(
    ("groups", "heads", "length"), [(Groups((2, 3), 1.5), 2, 9), (SHAPES[2], 4, 5)]
)
def test_rates_at_the_start_are_eigenvalues(flow, groups, heads, length):
    """The Jacobian of all heads comes from automatic differentiation."""
    delta = inc.target(groups, length)
    count = groups.count
    with float64():
        zero = inc.Heads(jnp.zeros((heads, count)), jnp.zeros((heads, length)))
        flat, back = jax.flatten_util.ravel_pytree(zero)
        moved = jax.jit(
            jax.jacfwd(
                lambda y: jax.flatten_util.ravel_pytree(inc.velocity(back(y), delta, flow))[0]
            )
        )
        jacobian = moved(flat)
    growing = np.sort(np.linalg.eigvals(jacobian).real)[::-1][: heads * count]
    differences, common = inc.start_rates(groups, length, heads, flow)
    expected = np.sort(np.append(np.tile(differences, heads - 1), common))[::-1]
    # Zero eigenvalues of a defective matrix have errors of the square root of the precision.
    np.testing.assert_allclose(growing, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("flow", FLOWS)
def test_leading_rates(flow):
    """The printed formulas neglect terms of order n/T."""
    groups = Groups((2, 1), 1.5)
    heads = 4
    m = np.array([1.5, 1.0])
    n = np.array([2, 1])
    for length in (100, 1000):
        differences, common = inc.start_rates(groups, length, heads, flow, leading=True)
        if flow == "logit":
            np.testing.assert_allclose(differences, np.sqrt(n) * m / length)
            np.testing.assert_allclose(
                common, (-heads + np.sqrt(heads**2 + 4 * n * m**2)) / (2 * length)
            )
        else:
            np.testing.assert_allclose(differences, m * np.sqrt(n / length))
        np.testing.assert_allclose(
            inc.start_rates(groups, length, heads, flow)[0], differences, rtol=3 / length
        )


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_growth_on_the_symmetric_plateau(flow):
    """Attention, rate and growth equal the formulas, for unequal groups and unused positions."""
    groups = Groups((2, 1, 1), 1.5)
    heads = 2
    length = 6
    found = inc.growth(groups, np.geomspace(1e-2, 2e4, 400), heads, length, flow)
    late = found.time > 1e4
    formula = inc.cooperation(groups, length, heads, found.time[late], flow)
    for k, position in enumerate((2, 3)):
        np.testing.assert_allclose(found.attention[late, position], formula.attention[k], rtol=0.02)
    np.testing.assert_allclose(found.rate[late], formula.rate, rtol=0.02)
    slope = np.diff(found.log[late]) / np.diff(np.sqrt(found.time[late]))
    np.testing.assert_allclose(
        1 / slope**2, inc.escape_factor(groups, length, heads, flow), rtol=0.04
    )
    assert found.log[-1] > 60  # far beyond the range of differences in float64
    assert found.loss[-1] == pytest.approx(inc.plateaus(groups, heads)[1], rel=1e-3)

    # The growth until the second stage, for two initial scales, differs by the ratio of the scales.
    path = inc.trajectory(
        groups, np.append(0, np.geomspace(0.1, 3000, 800)), heads, length, flow, scale=[1e-5, 1e-9]
    )
    second = inc.stage_times(path, inc.plateaus(groups, heads))[:, 1]
    grown = np.interp(second, found.time, found.log)
    assert grown[1] - grown[0] == pytest.approx(np.log(1e4), rel=0.02)


def test_escape_with_two_groups_equals_the_printed_formula():
    groups = Groups((3, 2), 1.6)
    length = 11
    heads = 5
    ratio = 3 * 1.6**2 / 2 - 1
    assert inc.escape_factor(groups, length, heads, "logit") == pytest.approx(
        11 / 10 * 3 / 5 * ratio
    )
    assert inc.escape_factor(groups, length, heads, "preconditioned") == pytest.approx(
        3 / 20 * ratio
    )


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_the_first_stage_of_long_sequences(flow):
    groups = Groups((2, 1), 1.8)
    length = 400
    heads = 2
    expected = inc.first_stage(groups, length, heads, flow)
    path = inc.trajectory(
        groups, np.linspace(0, 1.2 * expected, 200), heads, length, flow, scale=0.0
    )
    # Corrections are of order 1/T in the logit flow and 1/sqrt(T) in the other.
    assert inc.stage_times(path, inc.plateaus(groups, heads))[0] == pytest.approx(
        expected, rel=0.03
    )
    mu = np.sqrt(2) * 1.8
    if flow == "logit":
        assert expected > length * max(np.sqrt(np.pi / 2) / mu, heads / (2 * mu**2))
        # The limit of few heads is the plateau of the single-location task.
        assert inc.first_stage(Groups((1,)), 100, 1) > 100 * np.sqrt(np.pi / 2)
        assert inc.first_stage(Groups((1,)), 100, 300) == pytest.approx(100 * 150, rel=1e-3)


def test_takeoff_with_and_without_damping():
    assert inc.takeoff(2.0, 0.0) == pytest.approx(np.sqrt(np.pi / 2) / 2.0, rel=1e-6)
    # The first order in the damping has the factor 1 - pi/4 (docs/theory.md).
    assert inc.takeoff(1.0, 1e-3) == pytest.approx(
        np.sqrt(np.pi / 2) + 1e-3 * (1 - np.pi / 4), abs=1e-6
    )
    assert 1 < inc.takeoff(1.0, 100.0) / (100 / 2) < 1.1
    assert inc.takeoff(3.0, 6.0) == pytest.approx(inc.takeoff(1.0, 2.0) / 3, rel=1e-6)
    assert inc.first_stage(Groups((2,)), 50, 3) == pytest.approx(50 * inc.takeoff(np.sqrt(2), 3))


def test_plateaus_of_few_heads_and_reversed_groups():
    groups = Groups((2, 4, 8), 1.5, "far")
    powers = [8 * 1.5**4, 4 * 1.5**2, 2]
    np.testing.assert_allclose(inc.plateaus(groups, 2), [sum(powers) / 2, sum(powers[1:]) / 2, 1.0])
    assert inc.learning_order(groups) == (2, 1, 0)
    # Size and strength both count. Equal powers are ordered by strength.
    assert inc.learning_order(Groups((1, 9), 1.5)) == (1, 0)
    assert inc.learning_order(Groups((1, 4), 2.0)) == (0, 1)
    assert inc.learning_order(Groups((4, 1), 2.0, "far")) == (1, 0)


def test_the_target():
    np.testing.assert_allclose(inc.target(Groups((1, 2), 2.0), 4), [[2, 0, 0, 0], [0, 1, 1, 0]])
    np.testing.assert_allclose(inc.target(SHAPES[2]), [[2, 2, 0], [0, 1, 1]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inc.target(ONES, 2), "length must be at least the window, 3"),
        (lambda: inc.trajectory(ONES, [0.0]), "times must be two or more"),
        (lambda: inc.trajectory(ONES, [0, 1, 1]), "times must be two or more"),
        (lambda: inc.trajectory(ONES, [0, np.inf]), "times must be two or more"),
        (lambda: inc.trajectory(ONES, [0, 1], scale=-1.0), "scale must be finite"),
        (lambda: inc.trajectory(ONES, [0, 1], heads=0), "heads must be at least 1"),
        (lambda: inc.plateaus(SHAPES[2], 2), "these overlap"),
        (lambda: inc.cooperation(ONES, 3, 1, [1.0]), "at least 2 heads"),
        (lambda: inc.cooperation(SHAPES[3], 3, 2, [1.0]), "have no weights"),
        (lambda: inc.escape_factor(Groups((1, 1), 1.0), 3, 2), "equally strong"),
        (lambda: inc.growth(ONES, [0, -1]), "times must be two or more"),
        (
            lambda: inc.start_rates(ONES, 3, 3, cast(Any, "logits")),
            "unknown flow 'logits'; did you mean logit",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
