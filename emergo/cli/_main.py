"""The subcommands of `emergo`, and how errors become exit statuses."""

import dataclasses
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import tyro

from ..core.errors import FastPathError, InputError, StorageError, WorkerError
from ..core.terminal import bound_width, fail, say, show
from ._doctor import Doctor
from ._figures import Demo, Figure, Figures
from ._measure import Fit, Forecast, Measure, Theory
from ._parse import parse
from ._sample import Sample
from ._study import StudyCommand
from ._view import View


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a grid of runs. `emergo train --help` lists the options of a task and a model."""

    def run(self) -> None: ...


Study = Annotated[StudyCommand, tyro.conf.subcommand("study")]
Command = (
    Demo
    | Figures
    | Figure
    | Train
    | Study
    | View
    | Sample
    | Theory
    | Measure
    | Fit
    | Forecast
    | Doctor
)
MAY_BE_EMPTY = ("--prompt",)
DESCRIPTION = (
    "When does attention become sparse, and what makes it happen sooner? "
    "`emergo --version` prints the version."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    bound_width()
    try:
        _run(arguments)
        sys.stdout.flush()
    except InputError as error:
        fail(2, str(error))
    except (StorageError, WorkerError, FastPathError) as error:
        fail(1, str(error))
    except KeyboardInterrupt as stop:
        kept = "; ".join(getattr(stop, "__notes__", ())) or "nothing was left half-written"
        say(f"interrupted; {kept}")
        # Compiled programs may still be running, and shutting down the interpreter under them can
        # crash.
        os._exit(130)
    except BrokenPipeError:  # the reader of our output has gone
        _discard_output()
    except Exception as error:
        if os.environ.get("EMERGO_TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            # Errors of files carry a file name, so this one comes from standard output.
            _discard_output()
            fail(1, f"standard output cannot be written ({error.strerror})")
        fail(1, f"{type(error).__name__}: {error} (set EMERGO_TRACEBACK=1 for the traceback)")


def _run(arguments: Sequence[str]) -> None:
    if arguments == ["--version"]:
        from .. import __version__

        return show(f"emergo {__version__}")
    _check_words(arguments)
    if arguments[:1] == ["train"]:
        from ._train import train

        train(arguments[1:])
    else:
        parse(Command, arguments, prog="emergo", description=DESCRIPTION).run()


def _discard_output() -> None:
    """Send buffered output to the null device, so that Python does not report it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_words(arguments: Sequence[str]) -> None:
    """Raise `InputError` for empty words, and for words that cannot be part of a file name."""
    before = "the command"
    for word in arguments:
        name, equals, value = word.partition("=")
        given = name if equals else before
        empty = word == "" or (equals and not value and name.startswith("--"))
        if empty and given not in MAY_BE_EMPTY:
            raise InputError(
                f"{given}: a text is empty; write a value, or . for the current folder"
            )
        if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(f"{before}: a text is not UTF-8, or has a zero byte: {word!r:.60}")
        before = name if word.startswith("--") else before
