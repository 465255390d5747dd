"""The error of a residual stream that is narrower than the tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo import theory
from emergo.core.errors import InputError


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
def test_the_floor_equals_the_singular_values_of_a_normal_matrix(share):
    """At 400 rows the limit of large dims has a relative error of order 1/400."""
    matrix = np.random.default_rng(0).standard_normal((400, 400))
    squares = np.linalg.svd(matrix, compute_uv=False) ** 2
    kept = int(400 * share)
    assert theory.rank_floor(kept, 400) == pytest.approx(
        squares[kept:].sum() / squares.sum(), abs=0.005
    )


@given(st.floats(0.01, 5), st.floats(1.001, 2))
def test_more_width_never_raises_the_floor(ratio, more):
    floor, lower = theory.rank_floor([ratio, ratio * more], 1.0)
    assert 1 >= floor >= lower >= 0


def test_floors_at_the_width_of_dim_and_at_the_threshold():
    np.testing.assert_allclose(theory.rank_floor([8, 16, 64], [8, 8, 64]), 0, atol=1e-12)
    # The threshold of the figures, 0.2 of the start, is the floor at a width of 0.39 of dim.
    assert theory.rank_floor(0.38, 1.0) > 0.2 > theory.rank_floor(0.40, 1.0)
    with pytest.raises(InputError, match="width must be a positive"):
        theory.rank_floor(0, 8)
