import datetime
import math

import numpy as np
import pandas as pd

from emergo._json import to_jsonable


def test_numbers_that_are_not_finite_become_null():
    assert to_jsonable({"a": [math.nan, math.inf, 1.5, True, 3], "b": None}) == {"a": [None, None, 1.5, True, 3], "b": None}


def test_what_json_does_not_know_becomes_text():
    given = {
        1: np.arange(2),
        "t": datetime.date(2026, 1, 2),
        "na": pd.NA,
        "nat": pd.NaT,
        "s": np.str_("x"),
        "f": np.float32(0.5),
    }
    assert to_jsonable(given) == {"1": [0, 1], "t": "2026-01-02", "na": None, "nat": None, "s": "x", "f": 0.5}
