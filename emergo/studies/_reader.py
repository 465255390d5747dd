"""The one way in: every JSON file and every listing of a folder is read here and held against the form it should have. What is
raised for a file is an `OSError`, or a `ValueError` that says in one line what does not fit."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._errors import InputError

IDENTITY = re.compile("[0-9a-f]{16}")  # the name of a run
UNIT = re.compile("[0-9a-f]{12}")
FAILURE = re.compile(r"([0-9a-f]{16})\.\d+\.json")
JSON = re.compile(r"[^.].*\.json")  # a plan or a claim
_KINDS: dict[Any, Any] = {dict: dict, list: list, tuple: list, re.Pattern: str}  # of a value, by the kind of its form


def read_json(path: str | Path, form: Any, upgrade: Callable[[Any], Any] = lambda content: content) -> Any:
    """The content of a file that has this form (see `check_form`), or has it once it is upgraded from an older one."""
    with open(path, "rb") as file:
        content = json.loads(file.read())
    try:
        content = upgrade(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    check_form(content, form)
    return content


def check_form(value: Any, form: Any, where: str = "the content") -> None:
    """A `ValueError` for a value that has not this form: a type, a pattern for texts, a table with forms for its keys, a list
    with the form of all its members, or a tuple with the forms of its first members."""
    if not isinstance(value, _KINDS.get(type(form), form)):
        raise ValueError(f"{where} is of another kind: {value!r:.60}")
    if isinstance(form, re.Pattern):
        if not form.fullmatch(value):
            raise ValueError(f"{where} is not of the form {form.pattern}: {value!r:.60}")
    elif isinstance(form, dict):
        for name, inner in form.items():
            if name not in value:
                raise ValueError(f"{where} lacks {name}")
            check_form(value[name], inner, name)
    elif isinstance(form, list):
        for member in value:
            check_form(member, form[0], where)
    elif isinstance(form, tuple):
        if len(value) < len(form):
            raise ValueError(f"{where} is too short: {value!r:.60}")
        for member, inner in zip(value, form, strict=False):
            check_form(member, inner, where)


def list_names(folder: Path, pattern: re.Pattern[str], folders: bool = False) -> list[str]:
    """The names of this form of the files in a folder, or of the folders in it, sorted; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if pattern.fullmatch(entry.name) and entry.is_dir() == folders)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); it should be a folder that you may read") from None
