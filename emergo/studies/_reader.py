"""The one way in: every JSON file and every listing of a folder is read here and held against the form it should have. What is
raised for a file is an `OSError`, or a `ValueError` that says in one line what does not fit."""

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
_KINDS: dict[Any, Any] = {dict: dict, list: list, tuple: list, re.Pattern: str}  # of a value, by the kind of its form


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


def read_json(path: str | Path, form: Any, upgrade: Callable[[Any], Any] = lambda content: content, most: int = SMALL) -> Any:
    """The content of a file that has this form (see `check_form`), or has it once it is upgraded from an older one."""
    return formed_json(read_regular(path, most), form, upgrade)


def formed_json(data: bytes, form: Any, upgrade: Callable[[Any], Any] = lambda content: content) -> Any:
    """As `read_json`, of the bytes of a file."""
    content = parse_json(data)
    try:
        content = upgrade(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    check_form(content, form)
    return content


def check_form(value: Any, form: Any, where: str = "the content") -> None:
    """A `ValueError` for a value that has not this form: a type, a pattern for texts, a function that is true of it, a table
    with forms for its keys (a key that ends in ? may be missing), a list with the form of all its members, or a tuple with the
    forms of its first members."""
    kind = type(form)
    if kind is FunctionType:
        if not form(value):
            raise ValueError(f"{where} is not of the form {form.__name__.replace('_', ' ')}: {value!r:.60}")
        return
    if not isinstance(value, _KINDS.get(kind, form)):
        raise ValueError(f"{where} is of another kind: {value!r:.60}")
    if kind is re.Pattern:
        if not form.fullmatch(value):
            raise ValueError(f"{where} is not of the form {form.pattern}: {value!r:.60}")
    elif kind is dict:
        for name, inner in form.items():
            key = name if name[-1] != "?" else name[:-1]
            if key in value:
                if not _fits(value[key], inner):
                    check_form(value[key], inner, key)
            elif key is name:
                raise ValueError(f"{where} lacks {name}")
    elif kind is list:
        for member in value:
            check_form(member, form[0], where)
    elif kind is tuple:
        if len(value) < len(form):
            raise ValueError(f"{where} is too short: {value!r:.60}")
        for member, inner in zip(value, form, strict=False):
            if not _fits(member, inner):
                check_form(member, inner, where)


def _fits(value: Any, form: Any) -> bool:
    """Whether it plainly does: what most values are, without the way through all kinds of forms."""
    return type(value) is form or (type(form) is FunctionType and form(value))


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
