"""Attention per group, similarity, competition and cooperation in cases with known answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.measure import division, group_mass, head_similarity
from emergo.tasks import Groups


def test_mass_of_groups():
    weights = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]])
    np.testing.assert_allclose(group_mass(weights, Groups((1, 2)).members), [[0.1, 0.5]])
    np.testing.assert_allclose(
        group_mass(weights, Groups((2, 2), stride=1).members), [[0.3, 0.5]]
    )  # a shared position
    with pytest.raises(InputError, match="groups reach over 6 positions, attention over 5"):
        group_mass(weights, Groups().members)


def test_similarity():
    same = np.tile([0.2, 0.5, 0.3], (3, 1))
    assert head_similarity(same) == pytest.approx(1)
    assert head_similarity(np.eye(3)) == pytest.approx(0)
    two_of_three = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert head_similarity(two_of_three) == pytest.approx(1 / 3)
    assert head_similarity(np.stack([same, np.eye(3)])).shape == (2,)
    with pytest.raises(InputError, match="at least 2"):
        head_similarity(same[:1])


def test_division_in_extreme_cases():
    corners = {
        "competition": np.tile([1.0, 0.0, 0.0], (3, 1)),
        "cooperation": np.eye(3),
        "indecision": np.full((3, 3), 1 / 3),
    }
    for name, mass in corners.items():
        shares = division(mass)
        for part in shares._fields:
            assert float(getattr(shares, part)) == pytest.approx(float(part == name), abs=1e-12)
    # Uniform attention over groups of different sizes favours no group per position.
    assert division(
        np.tile([0.25, 0.75], (2, 1)), np.array([1.0, 3.0])
    ).indecision == pytest.approx(1)
    with pytest.raises(InputError, match="every head must look at some group"):
        division(np.zeros((2, 2)))
    with pytest.raises(InputError, match="at least 2 groups"):
        division(np.ones((2, 1)))


@given(st.lists(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3), min_size=2, max_size=5))
def test_shares_sum_to_1_and_ignore_the_order(rows):
    mass = np.array(rows)
    shares = division(mass)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= -1e-12
    np.testing.assert_allclose(division(mass[::-1]), shares, atol=1e-12)
    np.testing.assert_allclose(division(mass[:, ::-1]), shares, atol=1e-12)
