"""Errors caused by what a user gave, or by the environment: disk, permissions, memory."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class InputError(ValueError):
    """Something the user gave is wrong. The message is one line: what is wrong and what would be right.

    The command line prints it and exits with status 2; from Python it is an ordinary `ValueError`.

    >>> em.SingleLocation(length=32, dim=0)
    Traceback (most recent call last):
    emergo._errors.InputError: SingleLocation.dim must be a whole number of at least 1, got 0
    """


class StorageError(Exception):
    """A disk or folder does not do its part: full, read-only, gone. The message is one line that names it.

    The command line prints it and exits with status 1; what was finished before is kept.
    """

    @classmethod
    def of(cls, where: object, error: OSError) -> "StorageError":
        advice = "nothing that was finished is lost; the same command then goes on"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space; the same command then goes on"
        elif error.errno in (errno.EROFS, errno.EACCES):
            advice = "it can be read, not worked in; copy it to a folder that can be written"
        return cls(f"{where}: cannot be written ({error.strerror or error}); {advice}")


class WorkerError(Exception):
    """A process that was started to train has failed or was killed. The message is one line that says why.

    The command line prints it and exits with status 1; what was finished before is kept.
    """


def unknown(what: str, given: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that does not exist, with the nearest ones that do."""
    bare, word = {name.lstrip("-"): name for name in known}, given.lstrip("-")  # dashes make all options look alike
    near = difflib.get_close_matches(word, bare, n=3, cutoff=0.6 if len(word) > 3 else 0.5)
    hint = f"did you mean {' or '.join(bare[name] for name in near)}?" if near else f"known: {', '.join(bare.values())}"
    return InputError(f"unknown {what} '{given}'; {hint}")


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """An error of a user's code inside the block becomes one line that names the class and the method."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, NotImplementedError) and not lines:
            raise InputError(f"{where} is missing: a subclass must define it") from None
        hint = "; numbers of a run are traced, choose with jnp.where" if "BoolConversion" in type(error).__name__ else ""
        raise InputError(f"{where} failed: {type(error).__name__}: {lines[0] if lines else 'no message'}{hint}") from error


def check_table(where: str, given: Any) -> None:
    """An `InputError` for what should be a table of a file and is not."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} must be a table, got {given!r}")
