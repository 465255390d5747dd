"""The law of the data."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from emergo._errors import InputError
from emergo.tasks import SingleLocation
from emergo.tasks._single_location import Position


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.sampled_from([(2, 4, 1), (6, 4, 3)]),
    st.sampled_from(get_args(Position)),
    st.booleans(),
    st.integers(0, 1000),
)
def test_shapes_repeats_and_target(sizes, position, indicator, seed):
    """Exactly `burst` positions hold one and the same token, whose image is the target; all others are different."""
    length, dim, burst = sizes
    task = SingleLocation(length, dim, burst, position=position, indicator=indicator)
    key_truth, key_data = jax.random.split(jax.random.key(seed))
    truth = task.truth(key_truth)
    data = task.sample(key_data, 3, truth)
    tokens, relevant = np.asarray(data.tokens), np.asarray(data.relevant)
    assert tokens.shape == (3, length, dim)
    assert (relevant.sum(-1) == burst).all()
    for sequence, places, target in zip(tokens, relevant, np.asarray(data.target), strict=True):
        assert (sequence[places] == sequence[places][:1]).all()
        # A product of up to four numbers in fp32.
        np.testing.assert_allclose(target, np.asarray(truth.weights) @ sequence[places][0], rtol=1e-5, atol=1e-6)
    others = tokens[~relevant]
    assert len({o.tobytes() for o in others}) == len(others) == 3 * (length - burst)
    if position == "last":
        assert relevant[:, length - burst :].all()
    if position == "random":
        assert not np.asarray(truth.relevant).any()
    else:
        assert (relevant == np.asarray(truth.relevant)).all()
    if indicator:
        np.testing.assert_array_equal(data.marks, relevant.astype(np.float32))
    else:
        assert data.marks is None


@pytest.mark.parametrize("burst", [1, 2, 3])
@pytest.mark.parametrize("position", ["random", "fixed"])
def test_all_sets_of_positions_are_equally_likely(burst, position):
    """Chi-square over the subsets of five positions: drawn for each of 4,000 sequences, or once for each of 4,000 runs."""
    task, n = SingleLocation(5, 1, burst, position=position, indicator=True), 4000
    if position == "random":
        found = task.sample(jax.random.key(1), n, task.truth(jax.random.key(0))).relevant
    else:
        found = jax.jit(jax.vmap(lambda key: task.truth(key).relevant))(jax.random.split(jax.random.key(1), n))
    places = [tuple(np.flatnonzero(row)) for row in np.asarray(found)]
    counts = [places.count(subset) for subset in itertools.combinations(range(5), burst)]
    assert sum(counts) == n
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("repeat", [0.0, 0.3, 1.0])
def test_covariance_and_frequency_of_the_special_token(repeat):
    """40,000 samples: standard errors of entries of a covariance are about sqrt(2/40000)/dim = 0.7% of 1/dim."""
    task, n = SingleLocation(3, 4, repeat=repeat), 40_000
    truth = task.truth(jax.random.key(0))
    tokens = np.asarray(task.sample(jax.random.key(1), n, truth).tokens)
    special = (tokens[:, -1] == np.asarray(truth.special)).all(-1)
    assert abs(special.mean() - repeat) <= 4 * np.sqrt(repeat * (1 - repeat) / n)
    fresh = np.eye(4) / 4
    expected = repeat * np.outer(truth.special, truth.special) + (1 - repeat) * fresh
    np.testing.assert_allclose(tokens[:, -1].T @ tokens[:, -1] / n, expected, atol=0.012)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, 0] / n, fresh, atol=0.008)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, -1] / n, np.zeros((4, 4)), atol=0.01)
    np.testing.assert_allclose(tokens[:, 0].mean(0), np.zeros(4), atol=0.012)


@pytest.mark.parametrize("position", ["fixed", "random"])
def test_covariance_and_frequency_where_positions_are_drawn(position):
    """The same law away from the last position; the special token, here a draw, stands at all relevant places or none."""
    task, n = SingleLocation(4, 3, 2, 0.3, position, True, "draw"), 40_000
    truth = task.truth(jax.random.key(3))
    data = task.sample(jax.random.key(4), n, truth)
    tokens, relevant = np.asarray(data.tokens), np.asarray(data.relevant)
    at = (tokens == np.asarray(truth.special)).all(-1)
    special = (at & relevant).any(-1)
    assert (at == relevant & special[:, None]).all()
    assert abs(special.mean() - 0.3) <= 4 * np.sqrt(0.3 * 0.7 / n)
    # Whether a sequence is special says nothing about where its relevant tokens stand.
    if position == "random":
        assert np.abs(relevant[special].mean(0) - 0.5).max() <= 4 * np.sqrt(0.25 / special.sum())
    # Standard errors of entries are at most sqrt(2/40000)/3 = 0.24%.
    np.testing.assert_allclose(tokens[~relevant].T @ tokens[~relevant] / (2 * n), np.eye(3) / 3, atol=0.01)
    fresh = tokens[relevant & ~special[:, None]][::2]
    np.testing.assert_allclose(fresh.T @ fresh / len(fresh), np.eye(3) / 3, atol=0.012)


def test_the_special_token():
    """The first basis vector, or a draw of the law of the tokens: 100 entries of variance 1/100, another one in each run."""
    basis = SingleLocation(2, 100).truth(jax.random.key(0)).special
    np.testing.assert_array_equal(basis, np.eye(100)[0])
    drawn = [np.asarray(SingleLocation(2, 100, special="draw").truth(jax.random.key(i)).special) for i in range(2)]
    for special in drawn:
        # The norm of a normal vector of 100 entries is within 1 ± 0.07 two times out of three.
        assert np.linalg.norm(special) == pytest.approx(1, abs=0.25)
        assert abs(special.mean()) < 0.04
    assert abs(drawn[0] @ drawn[1]) < 0.4


def test_fixed_positions_differ_between_runs_only():
    task = SingleLocation(16, 2, 2, position="fixed")
    truths = [task.truth(jax.random.key(i)) for i in range(4)]
    assert len({np.asarray(t.relevant).tobytes() for t in truths}) > 1
    for key in (7, 8):
        assert (np.asarray(task.sample(jax.random.key(key), 5, truths[0]).relevant) == np.asarray(truths[0].relevant)).all()


def test_without_repetition():
    task = SingleLocation(6, 3, 2, 0.5, "random", True, "draw")
    assert task.without_repetition() == SingleLocation(6, 3, 2, 0.0, "random", True, "draw")
    assert task.without_repetition(burst=1) == SingleLocation(6, 3, 1, 0.0, "random", True, "draw")


@pytest.mark.parametrize("position", get_args(Position))
def test_a_hull_draws_what_a_smaller_task_draws_alone(position):
    """The promise behind batching: numbers depend on the run, not on the runs beside it. Padded sums may round differently."""
    hull = SingleLocation(6, 8, 3, 1.0, position, True, "draw")
    small = SingleLocation(6, 5, 2, 0.4, position, True, "draw")
    truth, padded = small.truth(jax.random.key(0)), hull.truth(jax.random.key(0), small.traits)
    alone, inside = small.sample(jax.random.key(1), 32, truth), hull.sample(jax.random.key(1), 32, padded, small.traits)

    def same(one, two, axes):
        two = np.asarray(two)
        for axis in axes:
            kept, spare = np.split(two, [5], axis)
            assert not spare.any()
            two = kept
        np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-6)

    same(truth.weights, padded.weights, (0, 1))
    same(truth.special, padded.special, (0,))
    np.testing.assert_array_equal(padded.relevant, truth.relevant)
    same(alone.tokens, inside.tokens, (2,))
    same(alone.target, inside.target, (1,))
    np.testing.assert_array_equal(inside.relevant, alone.relevant)
    np.testing.assert_array_equal(np.asarray(inside.marks), np.asarray(alone.marks))
    special = (np.asarray(alone.tokens) == np.asarray(truth.special)).all(-1).any(-1)
    assert 0 < special.sum() < 32


def test_the_truth_has_entries_of_variance_one_over_dim():
    weights = np.asarray(SingleLocation(2, 100).truth(jax.random.key(0)).weights)
    assert weights.var() == pytest.approx(0.01, rel=0.06)
    assert weights.dtype == np.float32


def test_a_key_gives_the_same_data_alone_and_mapped():
    task = SingleLocation(5, 3, 2, 0.4)
    truth = task.truth(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    mapped = jax.vmap(lambda k: task.sample(k, 6, truth).tokens)(keys)
    alone = jnp.stack([task.sample(k, 6, truth).tokens for k in keys])
    # Which places hold which numbers is the same; a logarithm's last bit may depend on the loop it is computed in.
    np.testing.assert_allclose(mapped, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 4), "length must be a whole number of at least 2"),
        ((8, 0), "dim must be a whole number of at least 1"),
        ((8, 4, 0), "burst must be a whole number of at least 1"),
        ((8, 4, 8), "burst must be smaller than length"),
        ((8, 4, 1, 1.5), r"repeat must be in \[0, 1\]"),
        ((8, 4, 1, float("nan")), r"repeat must be in \[0, 1\]"),
        ((True, 4), "length must be a whole number"),
    ],
)
def test_wrong_sizes_are_named(values, message):
    with pytest.raises(InputError, match=message):
        SingleLocation(*values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position": "randm"}, "unknown position 'randm'; did you mean random"),
        ({"position": "nowhere"}, "unknown position 'nowhere'; known: last, fixed, random"),
        ({"special": "base"}, "unknown special 'base'; did you mean basis"),
        ({"dim": 1 << 30}, "dim below"),
        ({"length": (1 << 20) + 1}, "length must be at most"),
        ({"repeat": "often"}, "repeat must be a number"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_names_and_sizes_are_named(values, message):
    with pytest.raises(InputError, match=message):
        SingleLocation(**({"length": 8, "dim": 4} | values))
