"""Validation and broadcasting of cells."""

import numpy as np
import pytest

from emergo import theory
from emergo.core.errors import InputError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length": 1, "dim": 4}, "length must be a whole number of at least 2 .*, got 1"),
        ({"length": 8.5, "dim": 4}, "got 8.5"),
        ({"length": np.nan, "dim": 4}, "got nan"),
        ({"length": np.inf, "dim": 4}, "got inf"),
        ({"length": 1e16, "dim": 4}, r"at most 1e15, got 1e\+16"),
        ({"length": 10**400, "dim": 4}, "length must be a whole number"),
        ({"length": "eight", "dim": 4}, "length must be a whole number"),
        ({"length": 8, "dim": [4, 2.5]}, "dim must be a whole number of at least 1 .*, got 2.5"),
        ({"length": 8, "dim": 4, "burst": 0}, "burst must be a whole number of at least 1"),
        (
            {"length": 8, "dim": 4, "burst": 8},
            "burst must be smaller than length, got burst 8 with length 8",
        ),
        ({"length": [8, 16], "dim": 4, "burst": [1, 20]}, "got burst 20 with length 16"),
        ({"length": 8, "dim": 4, "repeat": -0.1}, r"repeat must be in \[0, 1\], got -0.1"),
        ({"length": 8, "dim": 4, "repeat": 1.1}, "got 1.1"),
        ({"length": 8, "dim": 4, "repeat": np.nan}, "got nan"),
        ({"length": 8, "dim": 4, "repeat": "often"}, r"repeat must be in \[0, 1\], got \'often\'"),
    ],
)
def test_wrong_values_are_named_in_one_line(values, message):
    with pytest.raises(InputError, match=message) as caught:
        theory.cells(**values)
    assert "\n" not in str(caught.value)


def test_values_broadcast_and_keep_their_shape():
    cell = theory.cells([[64], [128]], [16, 32, 64], burst=2, repeat=0.1)
    assert all(a.shape == (2, 3) and a.dtype == np.float64 for a in cell)
    assert cell.length[1, 0] == 128
    assert cell.dim[0, 2] == 64


def test_grid_is_the_full_product_with_the_last_axis_fastest():
    cell = theory.grid(length=[64, 128], dim=[16, 32, 64])
    assert cell.length.tolist() == [64, 64, 64, 128, 128, 128]
    assert cell.dim.tolist() == [16, 32, 64, 16, 32, 64]
    assert set(cell.burst) == {1}
