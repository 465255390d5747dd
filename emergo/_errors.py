"""The errors that are not ours to mend: the user's, and the disk's."""

import dataclasses
import difflib
import errno
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Something the user gave is wrong. The message is one line: what is wrong and what would be right.

    The command line prints it and exits with status 2; from Python it is an ordinary `ValueError`.
    """


class StorageError(Exception):
    """A disk or folder does not do its part: full, read-only, gone. The message is one line that names it.

    The command line prints it and exits with status 1; what was finished before is kept.
    """

    @classmethod
    def of(cls, where: object, error: OSError) -> "StorageError":
        advice = {
            errno.ENOSPC: "free some space; the same command then goes on",
            errno.EDQUOT: "free some space; the same command then goes on",
            errno.EROFS: "it can be read, not worked in; copy it to a folder that can be written",
            errno.EACCES: "it can be read, not worked in; copy it to a folder that can be written",
        }
        said = advice.get(error.errno or 0, "nothing that was finished is lost; the same command then goes on")
        return cls(f"{where}: cannot be written ({error.strerror or error}); {said}")


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
