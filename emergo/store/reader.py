"""Checked reading: every JSON file of a study's folder is read here and compared with its form.

An unreadable file raises `OSError`, or `ValueError` with the reason in one line.
"""

import functools
import hashlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from ..core.errors import InputError
from ..core.files import is_folder, read_regular
from ..core.json import parse_json

# Names of files and folders.
IDENTITY = re.compile("[0-9a-f]{16}")  # a run
UNIT = re.compile("[0-9a-f]{12}")
CHECKSUM = re.compile("[0-9a-f]{64}")
FAILURE = re.compile(r"([0-9a-f]{16})\.(\d{1,9})\.json")
CHECKPOINT = re.compile(r"([0-9a-f]{12})\.\d{1,9}")  # the folder of a unit in training
PLAN = re.compile(r"[\w-][\w.-]*\.json")
CLAIM = re.compile(r"[\w-]+\.json")
SMALL = 2**23  # largest file about one run or unit, in bytes
LARGE = 2**29  # largest file about all of them
_KIND_OF_VALUE = {re.Pattern: str, dict: dict, list: list, tuple: list}  # by kind of form
_SCALARS = frozenset((str, int, float, bool, type(None)))
Check = Callable[[Any, str], None]  # takes a value and its place in words; raises ValueError


def whole(value: Any) -> bool:
    """Return True for a 64-bit integer."""
    return type(value) is int and -(2**63) <= value < 2**63


def count(value: Any) -> bool:
    """Return True for a non-negative 64-bit integer."""
    return whole(value) and value >= 0


def number(value: Any) -> bool:
    """Return True for a finite number."""
    return (type(value) is float and math.isfinite(value)) or whole(value)


def number_or_none(value: Any) -> bool:
    return value is None or number(value)


def count_or_none(value: Any) -> bool:
    return value is None or count(value)


def scalar(value: Any) -> bool:
    """Return True for a value that fits into a cell of a table."""
    return type(value) in _SCALARS


def scalars(value: Any) -> bool:
    return isinstance(value, dict) and _SCALARS.issuperset(map(type, value.values()))


def numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(number, value.values()))


def read_json(path: str | Path, check: Check, most: int = SMALL) -> Any:
    """Return the content of a JSON file of at most `most` bytes that passes a check of its form."""
    content = parse_json(read_regular(path, most))
    check(content, "the content")
    return content


def checker(form: Any) -> Check:
    """Return a function that raises `ValueError` for values that do not have a form.

    A form is one of:

    - a type,
    - a pattern for strings,
    - a predicate,
    - a dict with forms by key; keys that end in ? are optional, and other keys are allowed,
    - a list with the form of all members,
    - a tuple with the forms of the first members of a list.
    """
    return functools.partial(_check, form)


def _check(form: Any, value: Any, where: str) -> None:
    kind = type(form)
    if kind is FunctionType:
        if not form(value):
            name = form.__name__.replace("_", " ")
            raise ValueError(f"{where} is not of the form {name}: {value!r:.60}")
        return
    if not isinstance(value, _KIND_OF_VALUE.get(kind, form)):
        raise ValueError(f"{where} is of another kind: {value!r:.60}")
    if kind is re.Pattern:
        if not form.fullmatch(value):
            raise ValueError(f"{where} is not of the form {form.pattern}: {value!r:.60}")
    elif kind is dict:
        for key, inner in form.items():
            name = key.removesuffix("?")
            if name in value:
                if type(value[name]) is not inner:  # a shortcut for plain types
                    _check(inner, value[name], name)
            elif name == key:
                raise ValueError(f"{where} lacks {name}")
    elif kind is list:
        for member in value:
            _check(form[0], member, where)
    elif kind is tuple:
        if len(value) < len(form):
            raise ValueError(f"{where} is too short: {value!r:.60}")
        for inner, member in zip(form, value, strict=False):
            _check(inner, member, where)


def list_names(
    folder: Path, pattern: re.Pattern[str], broken: dict[str, str] | None = None
) -> dict[str, bool]:
    """List the names in a folder that match a pattern, sorted, with True for folders.

    Symlinks do not count as folders. A missing folder is empty, and so is a file or symlink in its
    place, which is noted in `broken`.
    """
    if os.path.lexists(folder) and not is_folder(folder):
        if broken is not None:
            broken[str(folder)] = "it should be a folder"
        return {}
    try:
        with os.scandir(folder) as entries:
            found = {
                entry.name: entry.is_dir(follow_symlinks=False)
                for entry in entries
                if pattern.fullmatch(entry.name)
            }
        return dict(sorted(found.items()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read ({error.strerror}); see to its permissions"
        ) from None


def check_listed(path: Path, data: bytes) -> None:
    """Raise `ValueError` if `NAME.sha256` lists another checksum of the table `NAME.*.parquet`."""
    listed = path.with_name(f"{path.name.partition('.')[0]}.sha256")
    lines = read_regular(os.path.realpath(listed), SMALL).decode() if listed.exists() else ""
    checksum = hashlib.sha256(data).hexdigest()
    if path.name in lines and f"{checksum}  {path.name}" not in lines.splitlines():
        raise ValueError("it has another checksum: it was damaged or changed")


def why(error: OSError | ValueError) -> str:
    """Return the reason of an error in a few words."""
    if isinstance(error, FileNotFoundError):
        return f"{os.path.basename(str(error.filename))} is missing"
    words = error.strerror if isinstance(error, OSError) else None
    return words or str(error) or type(error).__name__
