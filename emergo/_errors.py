"""The one kind of error that is the user's to mend."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Something the user gave is wrong. The message is one line: what is wrong and what would be right.

    The command line prints it and exits with status 2; from Python it is an ordinary `ValueError`.
    """


def unknown(what: str, given: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that does not exist, with the nearest ones that do."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {what} '{given}'; {hint}")


def check_numbers(config: Any) -> None:
    """An `InputError` for a field of a dataclass that is declared as a number or a flag and holds something else."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type is float and type(value) not in (float, int):
            raise InputError(f"{field.name} must be a number, got {value!r}")
        if field.type is bool and not isinstance(value, bool):
            raise InputError(f"{field.name} must be True or False, got {value!r}")
