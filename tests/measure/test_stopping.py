"""Early stopping on curves with known answers."""

import numpy as np
import pytest

from emergo._errors import InputError
from emergo.measure import best_so_far, early_stop

# References 1, 2, 3 at mutual divergences as in the paper's setting.
APART = np.array([[0.0, 2.5, 2.9], [1.9, 0.0, 0.7], [2.3, 0.65, 0.0]])


def test_the_best_so_far():
    loss = np.array([[3.0, 1.0, 2.0, np.nan, 0.5], [2.0, 2.0, 3.0, 1.0, 4.0]])
    np.testing.assert_array_equal(best_so_far(loss), [[3, 1, 1, 1, 0.5], [2, 2, 2, 1, 1]])


def test_stopped_while_the_student_is_a_truncated_predictor():
    """The loss is best at step 20, where the student is A*_{1:2}; it turns into something else afterwards."""
    step, loss = [10, 20, 30, 40], [1.0, 0.8, 0.8, 1.5]
    divergences = np.array([[0.5, 1.6, 2.0, 2.5], [1.5, 0.1, 0.5, 2.0], [1.9, 0.6, 0.7, 3.0]])
    stop = early_stop(step, loss, divergences, APART)
    assert stop == (20, 0.8, 2, 0.1, 2)
    # Early on the student is far from all: something is nearest, but it equals none.
    early = early_stop(step, [0.1, 1, 1, 1], divergences + 2.0, APART)
    assert (early.nearest, early.equals) == (1, None)
    # Close to the first reference by its own measure, although another is nearer in absolute numbers: both are reported.
    both = early_stop(step, [0.1, 1, 1, 1], np.array([[0.45] * 4, [0.40] * 4, [1.0] * 4]), APART)
    assert (both.nearest, both.equals) == (2, 1)
    assert early_stop(step, [np.nan, np.inf, 0.9, 0.9], divergences, APART).step == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": [1.0, 2.0]}, "needs one loss"),
        ({"apart": np.zeros((2, 2))}, "needs one loss"),
        ({"loss": [np.nan] * 3}, "nowhere finite"),
    ],
)
def test_wrong_input_is_named(change, message):
    values = {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.0], "divergences": np.ones((3, 3)), "apart": APART} | change
    with pytest.raises(InputError, match=message):
        early_stop(**values)
