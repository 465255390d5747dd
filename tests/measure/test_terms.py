"""Terms of a law, and the columns of a table that it reads."""

import numpy as np
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.measure._terms import Term, censored_rows, column


@pytest.mark.parametrize(
    ("text", "powers"),
    [
        ("dim", {"dim": 1}),
        ("length/burst", {"length": 1, "burst": -1}),
        ("dim^0.5 * length / repeat_factor", {"dim": 0.5, "length": 1, "repeat_factor": -1}),
        ("a^-2/b^1.5", {"a": -2, "b": -1.5}),
        ("model.dim^0.5/optimizer.lr", {"model.dim": 0.5, "optimizer.lr": -1}),
    ],
)
def test_terms_are_read(text, powers):
    term = Term.parse(text)
    assert dict(term.powers) == powers
    assert dict(Term.parse(str(term)).powers) == powers


@pytest.mark.parametrize(
    "text", ["", "model..dim", "dim+length", "2*dim", "dim length", "/dim", "dim^", "dim^x"]
)
def test_invalid_terms_are_rejected(text):
    with pytest.raises(InputError, match="term"):
        Term.parse(text)


def test_log_of_a_term():
    table = pd.DataFrame({"length": [4.0, 9.0], "burst": [2.0, 3.0]})
    np.testing.assert_allclose(Term.parse("length^2/burst").log(table), np.log([8, 27]))


def test_a_missing_repeat_factor_is_computed():
    table = pd.DataFrame({"repeat": [0.0, 0.5], "dim": [16, 16]})
    np.testing.assert_allclose(column(table, "repeat_factor"), [1, np.sqrt(0.25 * 16 + 0.25)])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"dm": [1]}, "unknown column 'dim'; did you mean dm"),
        ({"dim": ["a"]}, "column 'dim' is not numeric"),
        ({"dim": [1, 0]}, r"must be positive for a power law, but has 0 \(1 of 2 rows\)"),
        ({"dim": [1, np.nan]}, "has nan"),
    ],
)
def test_wrong_columns_are_named(table, message):
    with pytest.raises(InputError, match=message):
        Term.parse("dim").log(pd.DataFrame(table))


@pytest.mark.parametrize(
    "values", [[True, False], [1, 0], [1.0, 0.0], ["True", "false"], ["TRUE", "0"]]
)
def test_censored_flags(values):
    assert censored_rows(pd.DataFrame({"censored": values})).tolist() == [True, False]


def test_invalid_censored_flags_are_rejected():
    assert not censored_rows(pd.DataFrame({"x": [1]})).any()
    with pytest.raises(InputError, match="must be true or false"):
        censored_rows(pd.DataFrame({"censored": ["maybe"]}))
