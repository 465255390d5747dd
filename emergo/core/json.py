"""Plain data, and JSON with a checksum."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 50  # largest accepted depth of nested lists and tables
_MOST: dict[type, float] = {int: 2**63, float: math.inf}
_SEAL = re.compile(rb'\{"checksum": "([0-9a-f]{64})",')
_CANONICAL = json.JSONEncoder(sort_keys=True)


def to_jsonable(value: Any) -> Any:
    """Convert a value to numbers, text, lists and dictionaries.

    Numbers that are not finite become None. Objects of other types become their text.
    """
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    # Arrays and numbers of NumPy; NumPy itself is not imported, because `emergo study status` does
    # not need it.
    if hasattr(value, "tolist"):
        return to_jsonable(value.tolist())
    text = str(value)
    return None if text in ("NaT", "<NA>") else text


def as_cell(value: Any) -> Any:
    """Return a value that a table cell can hold: scalars unchanged, anything else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def digest(data: Any, digits: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 hash of plain data."""
    return hashlib.sha256(_CANONICAL.encode(data).encode()).hexdigest()[:digits]


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Encode a table as JSON whose first entry is the checksum of all bytes that follow it."""
    body = json.dumps(content, indent=indent, allow_nan=False)[1:] + "\n"
    return f'{{"checksum": "{hashlib.sha256(body.encode()).hexdigest()}",{body}'.encode()


def parse_json(data: bytes) -> Any:
    """Decode JSON with or without a checksum.

    Raises `ValueError` for invalid JSON, a wrong checksum, numbers that are not finite or have more
    than 64 bits, and deep nesting.
    """
    sealed = _SEAL.match(data)
    if sealed:
        actual = hashlib.sha256(memoryview(data)[sealed.end() :]).hexdigest()
        if actual != sealed[1].decode():
            raise ValueError("its checksum is not that of its content: it was damaged or changed")
    if not data.strip():
        raise ValueError("it is empty")
    try:
        content = json.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not sealed and isinstance(content, dict) and "checksum" in content:
        raise ValueError("its checksum was damaged or changed")
    check_plain([content])
    return content


def check_plain(value: Any, numbers: bool = True, level: int = 0) -> None:
    """Raise `ValueError` for lists and tables that are nested too deeply.

    **Arguments:**

    - `numbers`: also refuse infinite numbers, NaN, and integers of more than 64 bits.
    - `level`: the number of lists and tables around this one.
    """
    if level > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    for member in value.values() if type(value) is dict else value:
        kind = type(member)
        if kind is dict or kind is list:
            check_plain(member, numbers, level + 1)
        elif numbers and kind in _MOST and not abs(member) < _MOST[kind]:
            raise ValueError("a number is not finite, or has more than 64 bits")
