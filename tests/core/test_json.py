"""JSON with checksums and bounds."""

import contextlib
import datetime
import json
import math

import numpy as np
import pandas as pd
import pytest

from emergo.core.json import parse_json, seal, to_jsonable


def test_numbers_that_are_not_finite_become_null():
    assert to_jsonable({"a": [math.nan, math.inf, 1.5, True, 3], "b": None}) == {
        "a": [None, None, 1.5, True, 3],
        "b": None,
    }


def test_other_types_become_text():
    given = {
        1: np.arange(2),
        "t": datetime.date(2026, 1, 2),
        "na": pd.NA,
        "nat": pd.NaT,
        "s": np.str_("x"),
        "f": np.float32(0.5),
    }
    assert to_jsonable(given) == {
        "1": [0, 1],
        "t": "2026-01-02",
        "na": None,
        "nat": None,
        "s": "x",
        "f": 0.5,
    }


def test_every_bit_of_a_sealed_text_counts():
    """Every flipped bit is detected, unless it changes the name of the checksum, which is then
    missing from the result."""
    content = {"plateau": 12.5, "state": "reached", "columns": {"dim": 4}, "none": None}
    data = seal(content, indent=1)
    assert {k: v for k, v in parse_json(data).items() if k != "checksum"} == content
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            read = parse_json(bytes(changed))
            assert "checksum" not in read
            assert {name: read[name] for name in content} == content


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\xff",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": [1, 1e400]}',
        f'{{"a": {10**19}}}',
        f"[{'9' * 5000}]",
        "[" * 100_000 + "]" * 100_000,
        "[" * 60 + "]" * 60,
        '{"a":' * 60 + "1" + "}" * 60,
    ],
)
def test_invalid_data_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text.encode("latin-1"))


def test_64_bit_numbers_and_text_like_numbers_are_valid():
    content = {
        "a": 2**63 - 1,
        "b": -(2**63) + 1,
        "c": 1e300,
        "d": 0.00015790000000000002,
        "e": "1e999",
        "f": "9" * 5000,
    }
    assert parse_json(json.dumps(content).encode()) == content
