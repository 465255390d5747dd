"""Data that JSON can hold, and JSON with a checksum."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

DEEPEST = 50  # the most levels of lists and tables
_MOST: dict[type, float] = {int: 2**63, float: math.inf}
_HUGE = re.compile(rb"[\s:,\[]-?\d{19}|\d[eE]\+?\d{3,}[\s,}\]]")  # a number that may be too large
_SEAL = re.compile(rb'\{"checksum": "([0-9a-f]{64})",')


def to_jsonable(value: Any) -> Any:
    """Numbers, text, lists and dictionaries only; a number that is not finite becomes null, anything else its text."""
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    text = str(value)
    return None if text in ("NaT", "<NA>") else text


def digest(data: Any, digits: int = 16) -> str:
    """Hexadecimal digits of a hash of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:digits]


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A table as JSON whose first entry is the checksum of all that follows it, byte for byte."""
    body = json.dumps(content, indent=indent, allow_nan=False)[1:] + "\n"
    return f'{{"checksum": "{hashlib.sha256(body.encode()).hexdigest()}",{body}'.encode()


def parse_json(data: bytes) -> Any:
    """The content of a JSON text, with or without a checksum; a `ValueError` where it is none, where the checksum is not that
    of the rest, where a number is not finite or has more than 64 bits, or where it is nested too deeply."""
    sealed = _SEAL.match(data)
    if sealed and hashlib.sha256(data[sealed.end() :]).hexdigest() != sealed[1].decode():
        raise ValueError("its checksum is not that of its content: it was damaged or changed")
    try:
        content = json.loads(data.decode(), parse_constant=_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not sealed and isinstance(content, dict) and "checksum" in content:
        raise ValueError("its checksum was damaged or changed")
    huge = _HUGE.search(data) is not None
    if huge or data.count(b"{") + data.count(b"[") > DEEPEST:  # else there is nothing to look for
        check_plain([content], huge)
    return content


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


def check_plain(value: Any, numbers: bool = True, levels: int = DEEPEST) -> None:
    """A `ValueError` for data that is nested too deeply, or (`numbers`) has a number that is infinite or of over 64 bits."""
    if levels < 0:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    members = value.values() if isinstance(value, dict) else value
    kinds = set(map(type, members))
    if dict in kinds or list in kinds:
        for inner in members:
            if type(inner) is dict or type(inner) is list:
                check_plain(inner, numbers, levels - 1)
    if numbers and any(type(n) in _MOST and not abs(n) < _MOST[type(n)] for n in members):
        raise ValueError("a number is not finite, or has more than 64 bits")
