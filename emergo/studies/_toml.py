"""Study files: read with the standard library, written by the few lines below."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder, not a study file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not a TOML file that can be read ({error})") from None


def toml_text(data: Mapping[str, Any], table: str = "") -> str:
    """Plain data as TOML: values first, then a table for each mapping."""
    lines = [f"{_key(name)} = {_value(value)}" for name, value in data.items() if not isinstance(value, Mapping)]
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
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise InputError(f"{value!r} cannot be written to a study file")
