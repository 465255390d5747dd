"""The distribution of the data of single-location regression."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from emergo.core.contract import Output, Spec
from emergo.core.errors import InputError
from emergo.tasks import SingleLocation
from emergo.tasks._single_location import alignment_probe

POSITIONS = ("last", "fixed", "random")


def features(batch, task):
    """Return tokens without the indicator."""
    return np.asarray(batch.inputs)[:, :, task.spec.marks :]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.sampled_from([(2, 4, 1), (6, 4, 3)]),
    st.sampled_from(POSITIONS),
    st.booleans(),
    st.integers(0, 1000),
)
def test_shapes_repeats_and_target(sizes, position, indicator, seed):
    """Exactly `burst` positions hold the same token, whose image is the target."""
    length, dim, burst = sizes
    indicator = indicator or position == "random"
    task = SingleLocation(length, dim, burst, position=position, indicator=indicator)
    key_truth, key_data = jax.random.split(jax.random.key(seed))
    truth = task.truth(key_truth)
    data = task.batch(key_data, 3, truth)
    tokens = features(data, task)
    relevant = np.asarray(data.relevant)
    assert tokens.shape == (3, length, dim)
    assert (relevant.sum(-1) == burst).all()
    for sequence, positions, target in zip(tokens, relevant, np.asarray(data.target), strict=True):
        assert (sequence[positions] == sequence[positions][:1]).all()
        # The product has up to four terms in fp32.
        np.testing.assert_allclose(
            target, np.asarray(truth.weights) @ sequence[positions][0], rtol=1e-5, atol=1e-6
        )
    others = tokens[~relevant]
    assert len({o.tobytes() for o in others}) == len(others) == 3 * (length - burst)
    if position == "last":
        assert relevant[:, length - burst :].all()
    if position == "random":
        assert not np.asarray(truth.relevant).any()
    else:
        assert (relevant == np.asarray(truth.relevant)).all()
    if indicator:
        np.testing.assert_array_equal(np.asarray(data.inputs)[:, :, 0], relevant.astype(np.float32))


@pytest.mark.parametrize("burst", [1, 2, 3])
@pytest.mark.parametrize("position", ["random", "fixed"])
def test_all_sets_of_positions_are_equally_likely(burst, position):
    """Chi-square test over the subsets of five positions, for 4,000 sequences or runs."""
    task = SingleLocation(5, 1, burst, position=position, indicator=True)
    n = 4000
    if position == "random":
        found = task.batch(jax.random.key(1), n, task.truth(jax.random.key(0))).relevant
    else:
        found = jax.jit(jax.vmap(lambda key: task.truth(key).relevant))(
            jax.random.split(jax.random.key(1), n)
        )
    positions = [tuple(np.flatnonzero(row)) for row in np.asarray(found)]
    counts = [positions.count(subset) for subset in itertools.combinations(range(5), burst)]
    assert sum(counts) == n
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("repeat", [0.0, 0.3, 1.0])
def test_covariance_and_frequency_of_the_special_token(repeat):
    """With 40,000 samples, entries of a covariance have standard errors of 0.7% of 1/dim."""
    task = SingleLocation(3, 4, repeat=repeat)
    n = 40_000
    truth = task.truth(jax.random.key(0))
    tokens = features(task.batch(jax.random.key(1), n, truth), task)
    special = (tokens[:, -1] == np.asarray(truth.special)).all(-1)
    assert abs(special.mean() - repeat) <= 4 * np.sqrt(repeat * (1 - repeat) / n)
    fresh = np.eye(4) / 4
    expected = repeat * np.outer(truth.special, truth.special) + (1 - repeat) * fresh
    np.testing.assert_allclose(tokens[:, -1].T @ tokens[:, -1] / n, expected, atol=0.012)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, 0] / n, fresh, atol=0.008)
    np.testing.assert_allclose(tokens[:, 0].T @ tokens[:, -1] / n, np.zeros((4, 4)), atol=0.01)
    np.testing.assert_allclose(tokens[:, 0].mean(0), np.zeros(4), atol=0.012)


def test_a_signed_special_token_has_mean_zero_and_the_same_second_moments():
    """Standard errors as above; half of the special tokens have each sign."""
    n = 40_000
    moments = {}
    for special in ("draw", "signed"):
        task = SingleLocation(3, 4, repeat=0.8, special=special)
        truth = task.truth(jax.random.key(5))
        tokens = features(task.batch(jax.random.key(1), n, truth), task)[:, -1]
        moments[special] = tokens.mean(0), tokens.T @ tokens / n
    np.testing.assert_allclose(moments["signed"][1], moments["draw"][1], atol=0.02)
    np.testing.assert_allclose(moments["draw"][0], 0.8 * np.asarray(truth.special), atol=0.02)
    np.testing.assert_allclose(moments["signed"][0], np.zeros(4), atol=0.02)
    signs = [(tokens == sign * np.asarray(truth.special)).all(-1).mean() for sign in (1, -1)]
    np.testing.assert_allclose(signs, 0.4, atol=0.01)


@pytest.mark.parametrize("position", ["fixed", "random"])
def test_covariance_and_frequency_at_drawn_positions(position):
    """A drawn special token is at all relevant positions or at none."""
    task = SingleLocation(4, 3, 2, 0.3, position, True, "draw")
    n = 40_000
    truth = task.truth(jax.random.key(3))
    data = task.batch(jax.random.key(4), n, truth)
    tokens = features(data, task)
    relevant = np.asarray(data.relevant)
    at = (tokens == np.asarray(truth.special)).all(-1)
    special = (at & relevant).any(-1)
    assert (at == relevant & special[:, None]).all()
    assert abs(special.mean() - 0.3) <= 4 * np.sqrt(0.3 * 0.7 / n)
    # The positions do not depend on the special token.
    if position == "random":
        assert np.abs(relevant[special].mean(0) - 0.5).max() <= 4 * np.sqrt(0.25 / special.sum())
    # Standard errors of entries are at most sqrt(2/40000)/3 = 0.24%.
    np.testing.assert_allclose(
        tokens[~relevant].T @ tokens[~relevant] / (2 * n), np.eye(3) / 3, atol=0.01
    )
    fresh = tokens[relevant & ~special[:, None]][::2]
    np.testing.assert_allclose(fresh.T @ fresh / len(fresh), np.eye(3) / 3, atol=0.012)


def test_the_special_token():
    """It is the first basis vector, or a draw with 100 entries of variance 1/100."""
    basis = SingleLocation(2, 100).truth(jax.random.key(0)).special
    np.testing.assert_array_equal(basis, np.eye(100)[0])
    drawn = [
        np.asarray(SingleLocation(2, 100, special="draw").truth(jax.random.key(i)).special)
        for i in range(2)
    ]
    for special in drawn:
        # The norm of a normal vector with 100 entries is 1 ± 0.07 (one standard deviation).
        assert np.linalg.norm(special) == pytest.approx(1, abs=0.25)
        assert abs(special.mean()) < 0.04
    assert abs(drawn[0] @ drawn[1]) < 0.4


def test_the_test_set_and_its_variant():
    task = SingleLocation(6, 3, 2, 0.5, "random", True, "draw")
    assert task.at_test() == SingleLocation(6, 3, 2, 0.0, "random", True, "draw")
    assert dict(task.variants()) == {
        "single": (SingleLocation(6, 3, 1, 0.0, "random", True, "draw"), 0)
    }
    assert task.replace(burst=1).variants() == task.replace(position="last").variants() == {}


@pytest.mark.parametrize("position", POSITIONS)
def test_a_padded_task_draws_the_same_numbers(position):
    """Numbers of a run do not depend on other runs of its program, except for rounding."""
    small = SingleLocation(6, 5, 2, 0.4, position, True, "draw")
    inside = small.padded({"dim": 8, "burst": 3})
    truth = small.truth(jax.random.key(0))
    padded = inside.truth(jax.random.key(0))
    alone = small.batch(jax.random.key(1), 32, truth)
    wide = inside.batch(jax.random.key(1), 32, padded)

    def same(one, two, axes):
        two = np.asarray(two)
        for axis in axes:
            two, spare = np.split(two, [one.shape[axis]], axis)
            assert not spare.any()
        np.testing.assert_array_equal(two, one)

    def nearly(one, two):
        np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-6)

    same(truth.weights, padded.weights, (0, 1))
    same(truth.special, padded.special, (0,))
    same(truth.relevant, padded.relevant, ())
    same(alone.inputs, wide.inputs, (2,))
    same(alone.relevant, wide.relevant, ())
    nearly(alone.target, wide.target[:, :5])
    assert not np.asarray(wide.target)[:, 5:].any()
    special = (features(alone, small) == np.asarray(truth.special)).all(-1).any(-1)
    assert 0 < special.sum() < 32
    # Also with traced sizes. A compiled program may round differently.
    traced = jax.jit(
        lambda task: (task.truth(jax.random.key(0)), task.batch(jax.random.key(1), 32, padded))
    )(inside)
    jax.tree.map(nearly, (padded, wide), traced)
    # The variant with a burst of 1 keeps the dim of the run.
    for task, batch in ((small, alone), (inside, wide)):
        if position == "random":
            single = task.variants()["single"].task
            assert isinstance(single, SingleLocation)
            assert single.real("dim") == 5
            at_one = single.batch(jax.random.key(1), 32, task.truth(jax.random.key(0)))
            assert (np.asarray(at_one.relevant).sum(1) == 1).all()
            assert at_one.inputs.shape == batch.inputs.shape


def test_the_spec_of_a_padded_task_has_the_used_sizes():
    task = SingleLocation(6, 5, position="random", indicator=True)
    assert task.spec == Spec(length=6, inputs=6, outputs=5, marks=1)
    assert task.padded({"dim": 8}).spec == Spec(6, 9, 8, marks=1, used=(6, 5))
    assert SingleLocation(6, 5).padded({"dim": 8}).spec == Spec(6, 8, 8, used=(5, 5))


def test_alignment_of_the_true_map_is_one():
    task = SingleLocation(4, 3, position="random", indicator=True)
    truth = task.truth(jax.random.key(0))
    batch = task.batch(jax.random.key(1), 2, truth)
    marks = jnp.full((1, 3), 100.0)
    for sign in (1, -1):
        path = jnp.concatenate([marks, sign * 2 * truth.weights.T])
        curves = alignment_probe(None, Output(batch.target, value_path=path), batch, truth, 0)
        assert float(curves["alignment"]) == pytest.approx(sign, abs=1e-6)
    assert alignment_probe(None, Output(batch.target), batch, truth, 0) == {}


def test_the_loss_is_half_the_squared_error():
    task = SingleLocation(4, 3)
    batch = task.batch(jax.random.key(1), 2, task.truth(jax.random.key(0)))
    off = jnp.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(task.loss(Output(batch.target + off), batch), [4.5, 0.0], rtol=1e-5)
    assert task.loss(Output(batch.target.astype(jnp.bfloat16)), batch).dtype == jnp.float32


def test_the_truth_has_entries_of_variance_one_over_dim():
    weights = np.asarray(SingleLocation(2, 100).truth(jax.random.key(0)).weights)
    assert weights.var() == pytest.approx(0.01, rel=0.06)
    assert weights.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"burst": 8},
            "SingleLocation.burst must be smaller than length, got burst 8 with length 8",
        ),
        (
            {"position": "random"},
            "SingleLocation.position 'random' cannot be learned without the indicator",
        ),
    ],
)
def test_wrong_input_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        SingleLocation(**({"length": 8, "dim": 4} | changes))
