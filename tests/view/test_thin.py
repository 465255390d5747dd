"""Test that thinned curves keep their ends, peaks and drops, and smoothed ones their means."""

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from emergo.view._runset import smooth, thin
from emergo.view._server import pack

values = st.floats(-1e6, 1e6, width=32)
curves = arrays.arrays(np.float64, st.integers(1, 400), elements=values)


@given(curves, st.integers(8, 128))
def test_ends_and_extremes_are_kept(y, points):
    x = np.arange(len(y), dtype=np.float64)
    few_x, few_y = thin(x, y, points)
    assert len(few_x) <= points
    assert (few_x[0], few_x[-1]) == (x[0], x[-1])
    assert (few_y.min(), few_y.max()) == (y.min(), y.max())
    np.testing.assert_array_equal(few_y, y[few_x.astype(int)])  # points of the curve, in order


def test_short_curves_lose_only_points_that_are_not_finite():
    x = np.arange(5.0)
    y = np.array([1.0, np.nan, 3.0, np.inf, 5.0])
    np.testing.assert_array_equal(thin(x, y, 8), [[0, 2, 4], [1, 3, 5]])
    assert thin(x[:0], y[:0], 8)[0].size == 0


def test_early_and_late_evaluations_are_kept():
    """On a logarithmic axis the first evaluations take as much room as all others."""
    x = np.arange(10_000.0)
    kept, _ = thin(x, np.sin(x), 128)
    assert (kept < 10).sum() >= 4
    assert (kept > 5000).sum() >= 20


def test_packed_curves_are_lengths_then_numbers():
    packed = pack([(np.array([1.0, 2.0]), np.array([3.0, 4.0])), (np.zeros(0), np.zeros(0))])
    assert np.frombuffer(packed[:12], "<u4").tolist() == [2, 2, 0]
    assert np.frombuffer(packed[12:], "<f4").tolist() == [1, 2, 3, 4]


@given(curves, st.integers(2, 60))
def test_a_smoothed_curve_keeps_its_ends_and_straight_lines(y, width):
    x = np.arange(len(y), dtype=np.float64)
    smooth_x, smooth_y = smooth(x, y, width)
    np.testing.assert_array_equal(smooth_x, x)
    # Sums over the whole curve lose some of its digits.
    slack = 1e-12 * (1 + np.abs(y).sum())
    np.testing.assert_allclose(smooth_y[[0, -1]], y[[0, -1]], atol=slack)
    middle = len(y) // 2
    half = min(middle, len(y) - 1 - middle, (width - 1) // 2)
    mean = y[middle - half : middle + half + 1].mean()
    np.testing.assert_allclose(smooth_y[middle], mean, atol=slack)
    np.testing.assert_allclose(smooth(x, 2 * x + 1, width)[1], 2 * x + 1, rtol=1e-9)


def test_smoothing_leaves_out_points_that_are_not_finite():
    x, y = smooth(np.arange(4.0), np.array([1.0, np.nan, 3.0, 8.0]), 3)
    np.testing.assert_array_equal([x, y], [[0, 2, 3], [1, 4, 8]])
