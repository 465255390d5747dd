"""Errors caused by a user's input or by the environment: disk, permissions, memory."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_LISTED = 20  # names of which all are listed
MOST_SIMILAR = 12  # names in an error message about an unknown one


class InputError(ValueError):
    """Invalid input. The message is one line with the problem, the value, and what would be right.

    The command line prints it and exits with status 2; from Python it is an ordinary `ValueError`.

    >>> em.SingleLocation(length=32, dim=0)
    Traceback (most recent call last):
    emergo.core.errors.InputError: SingleLocation.dim must be a whole number of at least 1, got 0
    """


class StorageError(Exception):
    """A disk or folder that is full, read-only or gone. The message is one line that names it.

    The command line prints it and exits with status 1; finished work is kept.
    """

    @classmethod
    def of(cls, where: object, error: OSError) -> "StorageError":
        advice = "nothing that was finished is lost; the same command then continues"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space; the same command then continues"
        elif error.errno in (errno.EROFS, errno.EACCES):
            advice = "it is read-only; copy it to a folder that can be written"
        return cls(f"{where}: cannot be written ({error.strerror or error}); {advice}")


class FastPathError(Exception):
    """An optimised forward pass disagrees with the model's `apply`. Nothing was trained with it."""


class WorkerError(Exception):
    """A training process that failed or was killed. The message is one line with the reason.

    The command line prints it and exits with status 1; finished work is kept.
    """


def listed(names: Iterable[str]) -> str:
    """Join names by commas; of more than `MOST_LISTED`, the first ten and how many more."""
    names = [*names]
    if len(names) <= MOST_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:10])} and {len(names) - 10} more"


def unknown(what: str, given: str, known: Iterable[str]) -> InputError:
    """Return an `InputError` for an unknown name, with all similar names, nearest first."""
    # Compare without leading dashes, which make all options look alike.
    bare = {name.lstrip("-"): name for name in known}
    word = given.lstrip("-")
    cutoff = 0.6 if len(word) > 3 else 0.5
    near = difflib.get_close_matches(word, bare, n=MOST_SIMILAR, cutoff=cutoff)
    if len(word) > 3:  # `loss` may be a part of `validation/loss_of_answers`
        near += [name for name in bare if word.lower() in name.lower() and name not in near]
    hint = f"known: {listed(bare.values())}"
    if near:
        more = f" ({len(near) - MOST_SIMILAR} more)" if len(near) > MOST_SIMILAR else ""
        hint = f"did you mean {' or '.join(bare[name] for name in near[:MOST_SIMILAR])}?{more}"
    return InputError(f"unknown {what} '{given}'; {hint}")


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Turn errors of user code inside the block into one line that names the class and method."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, NotImplementedError) and not lines:
            raise InputError(f"{where} is missing: a subclass must define it") from None
        words = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        if "BoolConversion" in words:
            words += "; numbers of a run are traced, choose with jnp.where"
        raise InputError(f"{where} failed: {words}") from error


def check_table(where: str, given: Any) -> None:
    """Raise `InputError` if an entry of a file is not a table."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} must be a table, got {given!r}")
