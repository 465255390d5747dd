"""Data that JSON can hold, and JSON with a checksum."""

import collections
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

DEEPEST = 50  # the most levels of lists and tables
_MOST: dict[type, float] = {int: 2**63, float: math.inf}
_SEAL = re.compile(rb'\{"checksum": "([0-9a-f]{64})",')
_NOT_PLAIN = "a number is not finite, or has more than 64 bits"
_CANONICAL = json.JSONEncoder(sort_keys=True)


def to_jsonable(value: Any) -> Any:
    """Numbers, text, lists and dictionaries only; a number that is not finite becomes null,
    anything else its text."""
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(
        value, "tolist"
    ):  # arrays and numbers of NumPy, which is not imported here: `status` does not need it
        return to_jsonable(value.tolist())
    text = str(value)
    return None if text in ("NaT", "<NA>") else text


def as_cell(value: Any) -> Any:
    """Return a value that a table cell can hold: scalars unchanged, anything else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def digest(data: Any, digits: int = 16) -> str:
    """Hexadecimal digits of a hash of plain data."""
    return hashlib.sha256(_CANONICAL.encode(data).encode()).hexdigest()[:digits]


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A table as JSON whose first entry is the checksum of all that follows it, byte for byte."""
    body = json.dumps(content, indent=indent, allow_nan=False)[1:] + "\n"
    return f'{{"checksum": "{hashlib.sha256(body.encode()).hexdigest()}",{body}'.encode()


def parse_json(data: bytes) -> Any:
    """The content of a JSON text, with or without a checksum; a `ValueError` where it is none,
    where the checksum is not that of the rest, where a number is not finite or has more than 64
    bits, or where it is nested too deeply."""
    sealed = _SEAL.match(data)
    if (
        sealed
        and hashlib.sha256(memoryview(data)[sealed.end() :]).hexdigest() != sealed[1].decode()
    ):
        raise ValueError("its checksum is not that of its content: it was damaged or changed")
    if not data.strip():
        raise ValueError("it is empty")
    try:
        content = _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not sealed and isinstance(content, dict) and "checksum" in content:
        raise ValueError("its checksum was damaged or changed")
    if data.count(b"{") + data.count(b"[") > DEEPEST:  # else it cannot be too deep
        collections.deque(_levels([content]), maxlen=0)
    return content


def _whole(word: str) -> int:
    if len(word) > 18 and not (len(word) <= 20 and abs(int(word)) < 2**63):
        raise ValueError(_NOT_PLAIN)
    return int(word)


def _fraction(word: str) -> float:
    value = float(word)
    if value - value:  # NaN where it is infinite
        raise ValueError(_NOT_PLAIN)
    return value


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_constant)


def check_plain(value: Any, numbers: bool = True) -> None:
    """A `ValueError` for data that is nested too deeply, or (`numbers`) has a number that is
    infinite or of over 64 bits."""
    for members in _levels(value):
        if numbers and any(type(n) in _MOST and not abs(n) < _MOST[type(n)] for n in members):
            raise ValueError(_NOT_PLAIN)


def _levels(value: Any) -> Iterator[list[Any]]:
    """The members of lists and tables, one level after the other; a `ValueError` where there are
    too many levels."""
    outer = [value]
    for _ in range(DEEPEST + 1):
        members = [
            member for one in outer for member in (one.values() if type(one) is dict else one)
        ]
        yield members
        outer = [member for member in members if type(member) is dict or type(member) is list]
        if not outer:
            return
    raise ValueError(f"nested deeper than {DEEPEST} levels")
