"""Columns from the names of logs: `d(?P<dim>\\d+)_s(?P<seed>\\d+)` finds dim and seed in `d8_s0.csv`."""

import contextlib
import re
from pathlib import Path
from typing import Any

from ..._errors import InputError

LONGEST = 1000  # characters of a path in which a pattern is searched; the time that some patterns take grows quickly with it


def compile_columns(pattern: str) -> re.Pattern[str]:
    """The regular expression; an `InputError` where it is none, or has no named group."""
    form = "write a regular expression with named groups, e.g. d(?P<dim>\\d+)_s(?P<seed>\\d+)"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"columns '{pattern[:100]}': {error}; {form}") from None
    if not compiled.groupindex:
        raise InputError(f"columns '{pattern[:100]}' has no named group; {form}")
    return compiled


def columns_of(pattern: re.Pattern[str], name: str, path: Path) -> dict[str, Any]:
    """What the groups hold in the name of a run or, where the pattern is not found there, in the path of its log: in the name
    of the file, else with that of its folder before it, and so on."""
    ends = ("/".join(path.parts[-n:])[-LONGEST:] for n in range(1, len(path.parts) + 1))
    found = next(filter(None, map(pattern.search, (name[-LONGEST:], *ends))), None)
    if found is None:
        raise InputError(f"{path}: columns '{pattern.pattern[:100]}' is not found in the name of run '{name}' or the path")
    return {group: number_or_text(text) for group, text in found.groupdict().items() if text is not None}


def number_or_text(text: str) -> int | float | str:
    """A number where it looks like one."""
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
            return int(text)
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
            return float(text)
    return text
