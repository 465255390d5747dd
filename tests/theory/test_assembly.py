"""The rates behind the exponents of trained Transformers: against automatic differentiation,
gradients of single samples, the flow of the toy model and an integrated product."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from emergo.core.errors import InputError
from emergo.models import Assembly
from emergo.models._attention import sinusoids
from emergo.papers.transformers import TASK
from emergo.theory import assembly_plateau, assembly_rates, cells, plateau

TOKENS = Assembly(
    width=256, mlp=False, embed=0.0, queries=0.0, maps=1.0, biases=0.0, skip=0.0, positions=0.0
)
WIDE = Assembly(width=256, mlp=False)
LENGTH, DIM = 12, 20
SPEC = TASK.replace(length=LENGTH, dim=DIM).spec
SEEDS = 4


def rate_of_map(rates):
    return sum(block.rate for block in rates.values)


def rate_of_logit(rates):
    """Both factors of q·k/√n move; the rate of each is per unit of the other."""
    by_query = sum(block.rate for block in rates.query) * rates.key_norm
    by_key = sum(block.rate for block in rates.key) * rates.query_norm
    return (by_query + by_key) / rates.size


def squared(gradient, names):
    """Return the squared norm of each named part of a gradient."""
    parts = (getattr(gradient, name) for name in names)
    return np.array([float(sum(jnp.sum(x**2) for x in jax.tree.leaves(part))) for part in parts])


@functools.cache
def gradient_of_map():
    """Return a function to the gradient of one random direction of the map from tokens."""

    @jax.jit
    def gradient(model, seed):
        key = jax.random.key(seed)
        direction = jax.random.normal(jax.random.fold_in(key, 1), (DIM, DIM))
        direction = direction / jnp.sqrt(jnp.sum(direction**2))

        def along(params):
            path = model.apply(params, jnp.zeros((1, LENGTH, DIM + 1))).value_path
            return jnp.sum(path[1:] * direction)

        return jax.grad(along)(model.init(key, SPEC))

    return gradient


@pytest.mark.parametrize(
    ("switches", "blocks"),
    [
        ({}, ("value", "out", "readout", "embed")),
        ({"keep_content": 1.0}, ("value", "out", "readout", "embed")),
        ({"embed": 0.0}, ("value", "out", "readout")),
        ({"maps": 2.0}, ("value", "readout", "embed")),
        ({"maps": 1.0}, ("readout", "embed")),
    ],
    ids=str,
)
def test_the_map_moves_at_the_rate_of_each_block(switches, blocks):
    """A step along its gradient moves a function by the squared norm of the gradient.

    Squared norms over random maps of width 256 spread by a few percent per seed.
    """
    model = WIDE.replace(**switches)
    measured = [squared(gradient_of_map()(model, seed), blocks) for seed in range(SEEDS)]
    rates = [block.rate for block in assembly_rates(model, LENGTH, DIM).values]
    np.testing.assert_allclose(np.mean(measured, 0), rates, rtol=0.15)


@pytest.mark.parametrize(
    "switches", [{}, {"keep_mark": 1.0}, {"biases": 0.0}, {"key_size": 64}], ids=str
)
def test_the_logit_moves_at_the_rate_of_queries_and_keys(switches):
    """The logit is what the indicator adds to a score, for a query of position and biases."""
    model = WIDE.replace(**switches)
    place = model.positions * sinusoids(LENGTH, model.width)[-1]

    def logit(params):
        stream = place + model.biases * params.embed.bias
        query = stream @ params.query.weight + model.biases * params.query.bias
        return query @ (params.embed.weight[0] @ params.key) / np.sqrt(model.size)

    measured = []
    for seed in range(3 * SEEDS):  # one indicator each, whose squared norm spreads by 6%
        gradient = jax.grad(logit)(model.init(jax.random.key(seed), SPEC))
        measured.append(squared(gradient, ("query", "key", "embed")).sum())
    rate = rate_of_logit(assembly_rates(model, LENGTH, DIM))
    np.testing.assert_allclose(np.mean(measured), rate, rtol=0.15)


@pytest.mark.parametrize(
    ("switches", "blocks"),
    [
        ({}, ("value", "out", "readout", "query", "key")),
        ({"skip": 0.0}, ("value", "out", "readout", "query", "key")),
        ({"maps": 1.0}, ("query", "key")),
        ({"positions": 0.0}, ("value", "out", "readout")),
    ],
    ids=str,
)
def test_the_noise_of_a_block_is_that_of_gradients_of_single_samples(switches, blocks):
    """On the plateau the error of the output is the target.

    Left out is where docs/theory.md says that the formula fails: queries and keys without
    positions, and a readout that sees the attended stream through no other map.
    """
    model = Assembly(width=64, mlp=False, **switches)
    measured = np.mean([noise_of(model, seed) for seed in range(SEEDS)], 0)
    measured = dict(zip(("value", "out", "readout", "query", "key"), measured, strict=True))
    rates = assembly_rates(model, LENGTH, 8)
    values = ("value", "out", "readout")[-int(model.maps) :]
    derived = dict(zip(values, (block.noise for block in rates.values), strict=False))
    derived |= {"query": rates.query[0].noise, "key": rates.key[0].noise}
    for name in blocks:
        # Width 64 is not large, and the relevant token is counted like any other.
        assert measured[name] == pytest.approx(derived[name], rel=0.5), name


def rows_of(model, seed):
    """Return the mean variance in each row of four weights that read the stream."""
    variances = variances_of(model, seed)
    return [np.mean(variances[i], 1) for i in (0, 2, 3, 4)]


def noise_of(model, seed):
    """Return the mean variance of entries of five weights, over the gradients of samples."""
    return [np.mean(variance) for variance in variances_of(model, seed)]


@jax.jit
def variances_of(model, seed):
    """Return the variance of each entry of five weights, over the gradients of samples."""
    task = TASK.replace(length=LENGTH, dim=8)
    key = jax.random.key(seed)
    params = model.init(key, task.spec)
    batch = task.batch(jax.random.fold_in(key, 1), 128, task.truth(key))

    def gradient(x, target):
        return jax.grad(lambda p: -jnp.sum(model.apply(p, x[None]).value[0] * target))(params)

    g = jax.vmap(gradient)(batch.inputs, batch.target)
    weights = (g.value.weight, g.out.weight, g.readout.weight, g.query.weight, g.key)
    return [jnp.var(weight, 0) for weight in weights]


def test_rows_of_the_stream_have_noise_of_their_own():
    """Sinusoids of low frequency leave half of the rows nearly without noise.

    As above, but for each row; rows with the least and the most noise differ by more than 3.
    """
    model = Assembly(width=64, mlp=False)
    measured = np.mean([rows_of(model, seed) for seed in range(SEEDS)], 0)
    rates = assembly_rates(model, LENGTH, 8)
    derived = [rates.values[0], rates.values[2], rates.query[0], rates.key[0]]
    for name, rows, block in zip(
        ("value", "readout", "query", "key"), measured, derived, strict=True
    ):
        assert block.by_row is not None, name
        assert np.mean(block.by_row) == pytest.approx(block.noise), name
        assert np.ptp(np.log(block.by_row)) > np.log(3), name
        logs = np.log(rows), np.log(block.by_row)
        assert np.corrcoef(*logs)[0, 1] > 0.9, name
        assert np.mean(np.abs(logs[0] - logs[1])) < np.log(1.7), name


def test_directions_of_the_map_have_different_rates():
    """Each of the three other maps adds d/D to the relative variance of the rates of a block.

    A block moves the map M by A G B for a gradient G, so that rates are products of eigenvalues.
    """
    spreads = []
    for seed in range(SEEDS):
        p = WIDE.init(jax.random.key(seed), SPEC)
        maps = [p.embed.weight[1:], p.value.weight, p.out.weight, p.readout.weight]
        maps = [np.asarray(one, np.float64) for one in maps]
        for i in range(len(maps)):
            before = functools.reduce(np.matmul, maps[:i], np.eye(DIM))
            after = functools.reduce(np.matmul, maps[i + 1 :], np.eye(maps[i].shape[1]))
            left = np.linalg.svd(before)[1] ** 2
            right = np.linalg.svd(after)[1][:DIM] ** 2
            rates = np.outer(left, right)
            spreads.append(np.var(rates) / np.mean(rates) ** 2)
    np.testing.assert_allclose(np.mean(spreads), 3 * DIM / WIDE.width, rtol=0.2)


def test_without_components_it_is_the_flow_of_the_toy_model():
    for length, dim in ((8, 4), (32, 16), (1000, 64)):
        steps = assembly_plateau(TOKENS, length, dim, 0.2)
        assert steps * 0.2 == pytest.approx(float(plateau(cells(length, dim)).time), rel=1e-3)


@pytest.mark.parametrize("switches", [{}, {"maps": 3.0}], ids=str)
def test_rates_stretch_the_closed_form(switches):
    """√(π/2) √d T over the root of both rates. The next orders are 1/√d and √d/T, 6% and 0.2%."""
    length, dim = 10_000, 256
    model = TOKENS.replace(**switches)
    rates = assembly_rates(model, length, dim)
    derived = np.sqrt(np.pi / 2 * dim / (rate_of_map(rates) * rate_of_logit(rates))) * length
    assert assembly_plateau(model, length, dim, 1.0) == pytest.approx(derived, rel=0.06)


@pytest.mark.parametrize("switches", [{"queries": 0.0}, {"positions": 0.0}, {}], ids=str)
def test_growing_queries_and_keys_end_the_plateau_sooner(switches):
    """The plateau is an integral over attention time, in which the logit is a hyperbolic sine."""
    length, dim = 10_000, 64
    model = WIDE.replace(**switches)
    r = assembly_rates(model, length, dim)
    x, e = (sum(block.rate for block in blocks) for blocks in (r.query, r.key))
    m = np.sqrt(x * e)

    def not_yet(s):
        signal = rate_of_map(r) * s**2 / (2 * dim * np.sqrt(r.size))
        product = (
            m / 2 * (r.query_norm / x + r.key_norm / e) * np.sinh(np.minimum(2 * m * signal, 50))
        )
        return np.exp(-product / np.sqrt(r.size))

    derived = length * quad(not_yet, 0, 6 * np.sqrt(dim / rate_of_map(r) / rate_of_logit(r)))[0]
    closed = np.sqrt(np.pi / 2 * dim / (rate_of_map(r) * rate_of_logit(r))) * length
    steps = assembly_plateau(model, length, dim, 1.0)
    assert steps == pytest.approx(derived, rel=0.1)  # and the next order in 1/√d
    assert steps < 0.9 * closed


def test_a_product_of_queries_and_keys_grows_as_derived():
    """q' = sk and k' = sq with rates x, e: the product from 0 is (m/2)(q²/x + k²/e) sinh 2mτ."""
    x, e, q0, k0 = 3.0, 0.2, 1.5, 0.4
    m = np.sqrt(x * e)

    def velocity(_, state):
        query, key, product = state
        return [2 * x * product, 2 * e * product, x * key + e * query]

    end = 2.0
    product = solve_ivp(velocity, (0, end), [q0, k0, 0.0], rtol=1e-9, atol=1e-12).y[2, -1]
    assert product == pytest.approx(m / 2 * (q0 / x + k0 / e) * np.sinh(2 * m * end), rel=1e-6)


def test_the_plateau_does_not_depend_on_the_unit_of_the_rate():
    """Under both optimizers half of the rate takes twice the steps."""
    model = Assembly(width=32)
    for optimizer in ("sgd", "adam"):
        fast, slow = (assembly_plateau(model, 16, 8, rate, optimizer) for rate in (2e-3, 1e-3))
        assert slow == pytest.approx(2 * fast, rel=1e-3)


def test_scaled_tokens_and_indicators_scale_every_rate():
    """The map from tokens times s, and what an indicator times s adds to a score, have derivatives
    s times as large."""
    plain = assembly_rates(WIDE, LENGTH, DIM)
    tokens = assembly_rates(WIDE, LENGTH, DIM, tokens=2.0)
    marks = assembly_rates(WIDE, LENGTH, DIM, marks=2.0)
    for block, other in zip(plain.values, tokens.values, strict=True):
        assert other.rate == pytest.approx(4 * block.rate)
    assert rate_of_logit(marks) == pytest.approx(4 * rate_of_logit(plain))
    assert rate_of_map(marks) == rate_of_map(plain)


def test_larger_targets_shorten_the_plateau_of_sgd_only():
    """In the flow limit gradients are larger by the factor of targets; Adam divides by it."""
    model = TOKENS.replace(width=300)
    once, twice = (assembly_plateau(model, 10_000, 256, 1.0, targets=k) for k in (1.0, 2.0))
    assert once == pytest.approx(2 * twice, rel=0.02)
    adam = [assembly_plateau(WIDE, 64, 16, 1e-4, "adam", targets=k) for k in (1.0, 2.0)]
    assert adam[0] < adam[1] < 2 * adam[0]


def test_a_large_epsilon_turns_adam_into_sgd():
    sgd = assembly_plateau(WIDE, 32, 16, 1e-3)
    assert assembly_plateau(WIDE, 32, 16, 1e-1, "adam", epsilon=1e2) == pytest.approx(sgd, rel=1e-2)


def test_the_published_sizes():
    """Predicted before the comparison: 17,300 steps of SGD and 576 of Adam in Fig. 15, 390 at a
    fixed position in Fig. 14, all at d = 16 and T = 32."""
    model = Assembly(width=256)
    assert assembly_plateau(model, 32, 16, 5e-3) == pytest.approx(17_300, rel=0.01)
    assert assembly_plateau(model, 32, 16, 1e-4, "adam") == pytest.approx(576, rel=0.01)
    fixed = assembly_plateau(model, 32, 16, 1e-4, "adam", fixed=True)
    assert fixed == pytest.approx(390, rel=0.01)


def test_several_heads_are_refused():
    with pytest.raises(InputError, match="one head, got 2"):
        assembly_rates(Assembly(width=32, heads=2), 16, 8)
