"""The `emergo` command: which commands there are, how the command line is read and what becomes of errors."""

import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from .._errors import InputError, StorageError, WorkerError, unknown
from .._terminal import fail, say, show
from ._bench import Bench
from ._doctor import Completion, Doctor
from ._figures import Demo, Figure, Figures, Records, Report
from ._forecast import Forecast
from ._measure import Fit, Measure, Theory
from ._study import StudyCommand
from ._view import View


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a grid of runs at once; `emergo train --help` lists its options, which depend on the task and the model."""

    def run(self) -> None: ...


Study = Annotated[StudyCommand, tyro.conf.subcommand("study")]
Command = (
    Demo
    | Report
    | Figures
    | Figure
    | Train
    | Study
    | View
    | Records
    | Theory
    | Measure
    | Fit
    | Forecast
    | Bench
    | Doctor
    | Completion
)
DESCRIPTION = "When does attention become sparse? Figures, training, theory and measuring. `emergo --version`: which this is."
PARSER: dict[str, Any] = {"f": Command, "prog": "emergo", "description": DESCRIPTION}
REWORDED = {
    r"invalid literal for int\(\) with base 10: ('.*?')": r"expected a whole number, got \1",
    r"could not convert string to float: ('.*?')": r"expected a number, got \1",
    r"no type matching .* (expected a .*?, got '.*?')": r"\1",
    r"Could not find valid parse for arguments: \[(.*)\]": r"cannot be read from \1",
    r"^Error parsing ": "",
}
"""What tyro and Python say of a value, and what a user understands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments == ["--version"]:
            from .. import __version__

            return show(f"emergo {__version__}")
        names = [word.partition("=")[0] for word in arguments if word.startswith("--")]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise InputError(f"{twice} was given more than once; an option that takes several values takes them in a row")
        _check_words(arguments)
        if arguments[:1] == ["train"]:
            from ._train import train

            train(arguments[1:])
        else:
            _parse(arguments).run()
        sys.stdout.flush()
    except InputError as error:
        fail(2, str(error))
    except (StorageError, WorkerError) as error:
        fail(1, str(error))
    except KeyboardInterrupt as stop:
        what = "; ".join(getattr(stop, "__notes__", ())) or "nothing was left half-written"
        say(f"interrupted; {what}")
        os._exit(130)  # compiled programs may still be running; taking the interpreter down under them can crash
    except BrokenPipeError:  # the reader of our output has gone
        _give_up_output()
    except Exception as error:
        if os.environ.get("EMERGO_TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:  # files of ours are named
            _give_up_output()
            fail(1, f"standard output cannot be written ({error.strerror})")
        fail(1, f"{type(error).__name__}: {error} (set EMERGO_TRACEBACK=1 for the traceback)")


def _give_up_output() -> None:
    """What is left in the buffers goes nowhere, so that Python does not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_words(arguments: Sequence[str]) -> None:
    """An `InputError` for what is no value of any option: nothing at all, or what cannot be part of a file's name."""
    before = "the command"
    for word in arguments:
        name, equals, value = word.partition("=")
        if word == "" or (equals and not value and name.startswith("--")):
            raise InputError(f"{name if equals else before} was given an empty text; write a value, for the current folder .")
        if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(f"{before} was given a text that is not UTF-8, or has a zero byte: {word!r:.60}")
        before = name if word.startswith("--") else before


def _parse(arguments: Sequence[str]) -> Any:
    """Reads the command line. What tyro prints in a box becomes one line."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(**PARSER, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(errors.getvalue())) from None


def _one_line(box: str) -> str:
    """The sense of a boxed message: its first sections, without the rules and the pointer to the help. tyro has a hook for
    parse errors (`tyro._errors.on_parse_error`), but it is private, may change in any release, is missing from the older
    versions that we allow, and each of its events would need words of its own. The text of the box is stabler."""
    sections: list[list[str]] = [[]]
    box = re.sub(r"\x1b\[[\d;]*m", "", box)  # colours, on a terminal
    for raw in box.splitlines():
        line = raw.strip().strip("│").strip()
        if set(line) <= set("─╭╮╰╯- ") or raw.lstrip().startswith("╭"):
            sections.append([])
        else:
            sections[-1].append(line)
    if "╭" not in box:  # without Unicode the title is a section like the others
        sections = [s for s in sections if s][1:]
    words = [" ".join(s) for s in sections if s and not s[0].startswith(("For full helptext", "Argument helptext"))]
    text = re.sub(r"\s+", " ", "; ".join(words)).strip()
    choice = re.fullmatch(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)\s*\.", text)
    if choice:
        given, name, known = choice.groups()
        return str(unknown(name.lstrip("-").lower(), given, re.findall(r"'(.*?)'", known)))
    command = re.match(r"Unrecognized .*?options: ([^-\s,;][^\s,;]*).*?; Available subcommands: ([^;]*)", text)
    if command:
        return str(unknown("command", command[1], command[2].split(", ")))
    for pattern, replacement in REWORDED.items():
        text = re.sub(pattern, replacement, text)
    return text or "the command line could not be read; try emergo --help"
