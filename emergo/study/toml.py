"""Reading and writing study files in TOML. The standard library only reads TOML."""

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import read_regular
from ..core.json import check_plain

_MOST = 2**24  # bytes of a study file
# Control characters that TOML needs escaped; `json.dumps` escapes those below 32.
_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a study file; raise an `InputError` if that fails."""
    try:
        data = tomllib.loads(read_regular(os.path.realpath(path), _MOST).decode())
        check_plain(data)
        return data
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a TOML file that can be read ({error})") from None


def toml_text(data: Mapping[str, Any], table: str = "") -> str:
    """Format plain data as TOML: values first, then one table per mapping."""
    values = {name: value for name, value in data.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in values.items()]
    if table and (lines or not data):
        lines.insert(0, f"[{table}]")
    blocks = ["\n".join([*lines, ""])] if lines else []
    for name, value in data.items():
        if isinstance(value, Mapping):
            blocks.append(toml_text(value, f"{table}.{_key(name)}" if table else _key(name)))
    return "\n".join(blocks)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_value(v)}' for name, v in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str):
        text = json.dumps(value, ensure_ascii=False)
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    raise InputError(f"{value!r} cannot be written to a study file")
