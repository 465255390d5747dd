"""The one way in: every JSON file and every listing of a folder is read here and held against the form it should have. What is
raised for a file is an `OSError`, or a `ValueError` that says in one line what does not fit."""

import functools
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from .._errors import InputError
from .._files import is_folder, read_regular
from .._json import parse_json

IDENTITY = re.compile("[0-9a-f]{16}")  # the name of a run
UNIT = re.compile("[0-9a-f]{12}")
CHECKSUM = re.compile("[0-9a-f]{64}")
FAILURE = re.compile(r"([0-9a-f]{16})\.(\d{1,9})\.json")
CHECKPOINT = re.compile(r"([0-9a-f]{12})\.\d{1,9}")  # the folder of a unit in training
PLAN = re.compile(r"[\w-][\w.-]*\.json")
CLAIM = re.compile(r"[\w-]+\.json")
SMALL, LARGE = 2**23, 2**29  # the most bytes of a file about one run or unit, and of one about all
_SCALARS = frozenset((str, int, float, bool, type(None)))
Check = Callable[[Any, str], None]  # of a value, with the words for where it is


def whole(value: Any) -> bool:
    """Whether it is a whole number that a table can hold."""
    return type(value) is int and -(2**63) <= value < 2**63


def count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or whole(value)


def number_or_none(value: Any) -> bool:
    return value is None or number(value)


def count_or_none(value: Any) -> bool:
    return value is None or count(value)


def scalar(value: Any) -> bool:
    """Whether a cell of a table can hold it; `parse_json` lets no number pass that is too large."""
    return type(value) in _SCALARS


def read_json(
    path: str | Path, check: Check, upgrade: Callable[[Any], Any] = lambda content: content, most: int = SMALL
) -> Any:
    """The content of a file that passes a check of its form, or does once it is upgraded from an older one."""
    return formed_json(read_regular(path, most), check, upgrade)


def formed_json(data: bytes, check: Check, upgrade: Callable[[Any], Any] = lambda content: content) -> Any:
    """As `read_json`, of the bytes of a file."""
    content = parse_json(data)
    try:
        content = upgrade(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    check(content, "the content")
    return content


def checker(form: Any) -> Check:
    """A function that raises a `ValueError` for a value that has not this form: a type, a pattern for texts, a function that is
    true of it, a table with forms for its keys (a key that ends in ? may be missing), a list with the form of all its members,
    or a tuple with the forms of its first members. It is made once for all files of a kind."""
    kind = type(form)
    if kind is FunctionType:
        return functools.partial(_check_true, form, form.__name__.replace("_", " "))
    if kind is re.Pattern:
        return functools.partial(_check_text, form)
    if kind is dict:
        keys = [(name.removesuffix("?"), name[-1] != "?", inner, checker(inner)) for name, inner in form.items()]
        return functools.partial(_check_table, keys)
    if kind is list:
        return functools.partial(_check_members, checker(form[0]))
    if kind is tuple:
        return functools.partial(_check_first, [checker(inner) for inner in form])
    return functools.partial(_check_kind, form)


def _check_kind(kind: Any, value: Any, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is of another kind: {value!r:.60}")


def _check_true(test: Callable[[Any], bool], name: str, value: Any, where: str) -> None:
    if not test(value):
        raise ValueError(f"{where} is not of the form {name}: {value!r:.60}")


def _check_text(pattern: re.Pattern[str], value: Any, where: str) -> None:
    _check_kind(str, value, where)
    if not pattern.fullmatch(value):
        raise ValueError(f"{where} is not of the form {pattern.pattern}: {value!r:.60}")


def _check_table(keys: list[tuple[str, bool, Any, Check]], value: Any, where: str) -> None:
    _check_kind(dict, value, where)
    for key, needed, form, check in keys:
        if key in value:
            if type(value[key]) is not form:  # else it plainly fits
                check(value[key], key)
        elif needed:
            raise ValueError(f"{where} lacks {key}")


def _check_members(check: Check, value: Any, where: str) -> None:
    _check_kind(list, value, where)
    for member in value:
        check(member, where)


def _check_first(checks: list[Check], value: Any, where: str) -> None:
    _check_kind(list, value, where)
    if len(value) < len(checks):
        raise ValueError(f"{where} is too short: {value!r:.60}")
    for check, member in zip(checks, value, strict=False):
        check(member, where)


def list_names(folder: Path, pattern: re.Pattern[str], broken: dict[str, str] | None = None) -> dict[str, bool]:
    """The names of this form in a folder, sorted, and whether each is a folder (a link to one is not); none where there is no
    folder. What is no folder itself, a link included, is noted in `broken`."""
    if os.path.lexists(folder) and not is_folder(folder):
        if broken is not None:
            broken[str(folder)] = "it should be a folder"
        return {}
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries if pattern.fullmatch(entry.name)}
        return dict(sorted(found.items()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); it should be a folder that you may read") from None


def why(error: OSError | ValueError) -> str:
    """What is wrong with a file, in a few words."""
    if isinstance(error, FileNotFoundError):
        return f"{os.path.basename(str(error.filename))} is missing"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def scalars(value: Any) -> bool:
    """Whether it is a table that has only such values."""
    return isinstance(value, dict) and _SCALARS.issuperset(map(type, value.values()))


def counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(count, value.values()))


def numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(number, value.values()))
