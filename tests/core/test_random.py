"""Random numbers by position: the generator, the distributions, and independence of the shape."""

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from emergo.core.random import fold_in, normals, raw, threefry, uniform

KEY = raw(jax.random.key(12))
BLOCKS = 64
ROWS = 16
COLUMNS = 64


@pytest.fixture(scope="module")
def drawn():
    """65,536 normals: means and correlations have a standard error of 0.4%."""
    return np.asarray(normals(KEY, BLOCKS, ROWS, COLUMNS), np.float64)


@pytest.mark.parametrize("number", [0, 1, 77, 2**31, 2**32 - 1])
def test_fold_in_agrees_with_jax(number):
    expected = jax.random.key_data(jax.random.fold_in(jax.random.key(12), np.uint32(number)))
    np.testing.assert_array_equal(fold_in(KEY, jnp.uint32(number)), expected)


def test_threefry_agrees_with_jax():
    """The counters include numbers near 2^32, where sums wrap around."""
    high = jnp.array([0, 1, 2**31, 2**32 - 1, 5, 123_456_789], jnp.uint32)
    low = jnp.array([0, 2**32 - 1, 7, 2**32 - 1, 2**30, 987_654_321], jnp.uint32)
    expected = jax.extend.random.threefry_2x32(KEY, jnp.concatenate([high, low]))
    np.testing.assert_array_equal(jnp.concatenate(threefry(KEY, high, low)), expected)


def test_normals_are_standard_normal(drawn):
    """Test the first four moments within four standard errors, and the whole distribution by
    Kolmogorov and Smirnov."""
    flat = drawn.ravel()
    n = drawn.size
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(flat**power) - moment) < 4 * np.sqrt(variance / n)
    assert stats.kstest(flat, "norm").pvalue > 1e-3
    # Test both numbers of a pair, in all four quadrants of the angle.
    for part in (drawn[: BLOCKS // 2], drawn[BLOCKS // 2 :]):
        assert stats.kstest(part.ravel(), "norm").pvalue > 1e-3


def test_the_two_normals_of_a_hash_are_independent(drawn):
    """They share a radius and an angle. A flaw of either would correlate them, or their squares."""
    one = drawn[: BLOCKS // 2].ravel()
    two = drawn[BLOCKS // 2 :].ravel()
    for f in (lambda x: x, np.square, np.abs):
        assert abs(np.corrcoef(f(one), f(two))[0, 1]) < 4 / np.sqrt(one.size)
    angle = (np.arctan2(two, one) / (2 * np.pi)) % 1
    assert stats.kstest(angle, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbouring_positions_are_independent(drawn, axis):
    ahead = np.delete(drawn, 0, axis).ravel()
    behind = np.delete(drawn, -1, axis).ravel()
    for f in (lambda x: x, np.square):
        assert abs(np.corrcoef(f(ahead), f(behind))[0, 1]) < 4 / np.sqrt(ahead.size)


@pytest.mark.parametrize("columns", [1, 5])
def test_a_wider_array_begins_with_a_narrow_one(drawn, columns):
    """Equal up to the last bits, which depend on how the compiler vectorises the logarithm."""
    np.testing.assert_allclose(
        normals(KEY, BLOCKS, ROWS, columns), drawn[:, :, :columns], rtol=1e-6, atol=1e-6
    )
    wide = uniform(KEY, ROWS, COLUMNS)
    np.testing.assert_array_equal(uniform(KEY, ROWS, columns), wide[:, :columns])
    np.testing.assert_array_equal(
        uniform(KEY, ROWS, 4, first_column=columns), wide[:, columns : columns + 4]
    )


def test_an_odd_number_of_blocks_drops_the_last_number_of_a_pair():
    even, odd = (normals(KEY, blocks, 3, 4) for blocks in (6, 5))
    assert odd.shape == (5, 3, 4)
    np.testing.assert_allclose(odd, even[:5], rtol=1e-6, atol=1e-6)
    assert normals(KEY, 1, 3, 4).shape == (1, 3, 4)


def test_vmap_gives_the_same_numbers():
    keys = jnp.stack([fold_in(KEY, i) for i in range(3)])
    alone = [normals(k, 4, 3, 5) for k in keys]
    np.testing.assert_allclose(
        jax.vmap(lambda k: normals(k, 4, 3, 5))(keys), jnp.stack(alone), rtol=1e-6, atol=1e-6
    )
    folded = jnp.stack([fold_in(k, 9) for k in keys])
    np.testing.assert_array_equal(jax.vmap(lambda k: fold_in(k, jnp.uint32(9)))(keys), folded)


def test_uniform_on_the_open_interval():
    drawn = np.asarray(uniform(KEY, 256, 256), np.float64)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3
