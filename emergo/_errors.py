"""The one kind of error that is the user's to mend."""

import difflib
from collections.abc import Iterable


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
