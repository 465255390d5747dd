"""The entropy of attention next to the value path: the checks, on made-up tables."""

import numpy as np
import pandas as pd
import pytest

from emergo.papers.experiments import entropy


def regression(when_aligned, sparse):
    return pd.DataFrame({"dim": [8, 8], "entropy_when_aligned": when_aligned, "sparse": sparse})


def test_values_first_and_a_late_fall_hold():
    checks = [*entropy.regression_checks(regression([0.95, 0.99], [0.9, 0.95]))]
    assert [check.holds for check in checks] == [True, True]


def test_attention_first_fails():
    checks = [*entropy.regression_checks(regression([0.1, 0.2], [0.4, 0.5]))]
    assert [check.holds for check in checks] == [False, False]


@pytest.mark.parametrize(("ratio", "holds"), [(1.0, True), (0.5, False), (np.nan, False)])
def test_recall_begins_when_the_first_layer_is_sparse(ratio, holds):
    (check,) = entropy.recall_checks(pd.DataFrame({"layer_1": [ratio]}))
    assert check.holds is holds


def test_toy_model_goes_from_uniform_to_one_position():
    alignment, relative = entropy.toy_path(64, 16)
    assert alignment[0] == 0
    assert relative[0] == pytest.approx(1, abs=1e-6)  # by definition
    assert relative[-1] < 0.5
    assert np.all(np.diff(relative) < 1e-9)
