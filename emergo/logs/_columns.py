"""Columns from the names of logs: `d(?P<dim>\\d+)_s(?P<seed>\\d+)` finds dim and seed in
`d8_s0.csv`."""

import re
from pathlib import Path
from typing import Any

from ..core.errors import InputError

# Characters of a path that are searched. Some patterns take time that grows fast with the length.
LONGEST = 1000
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def compile_columns(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; raise an `InputError` if it is invalid or lacks a named group."""
    form = "write a regular expression with named groups, e.g. d(?P<dim>\\d+)_s(?P<seed>\\d+)"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"columns '{pattern[:100]}': {error}; {form}") from None
    if not compiled.groupindex:
        raise InputError(f"columns '{pattern[:100]}' has no named group; {form}")
    return compiled


def columns_of(pattern: re.Pattern[str], name: str, path: Path) -> dict[str, Any]:
    """Search the name of a run, then the last part of its path, the last two parts, and so on."""
    ends = ["/".join(path.parts[-n:]) for n in range(1, len(path.parts) + 1)]
    for text in (name, *ends):
        found = pattern.search(text[-LONGEST:])
        if found:
            groups = found.groupdict().items()
            return {group: number_or_text(text) for group, text in groups if text is not None}
    raise InputError(
        f"{path}: columns '{pattern.pattern[:100]}' is not found in the name of run '{name}' "
        f"or the path"
    )


def number_or_text(text: str) -> int | float | str:
    """Convert text that looks like a number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
