"""The parser of the command line: tyro, with errors of one line."""

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from ..core.errors import InputError, unknown
from ..core.terminal import show_help

# Wording of tyro and Python, and what a user understands.
_REWORDED = {
    r"invalid literal for int\(\) with base 10: ('.*?')": r"expected a whole number, got \1",
    r"could not convert string to float: ('.*?')": r"expected a number, got \1",
    r"no type matching .* (expected a .*?, got '.*?')": r"\1",
    r"Could not find valid parse for arguments: \[(.*)\]": r"cannot be read from \1",
    r"^Error parsing ": "",
}


def parse(
    kind: Any, arguments: Sequence[str], *, hint: str = "--help lists them", **options: Any
) -> Any:
    """Read command-line arguments into an object.

    **Arguments:**

    - `kind`: a dataclass whose fields are the options, or a union of such classes, one per
        subcommand.
    - `arguments`: the words after `emergo`.
    - `hint`: says where options are listed, in the error about an unknown one.
    - `options`: further arguments of `tyro.cli`.

    **Returns:** an instance of `kind`. Raises `InputError` with one line for invalid arguments.
    """
    names = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise InputError(
            f"{repeated} is repeated; write all values of an option after one another, as in "
            f"{repeated} 1 2"
        )
    errors = io.StringIO()
    printed = _Printed()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed):
            return tyro.cli(kind, args=arguments, config=(tyro.conf.FlagCreatePairsOff,), **options)
    except SystemExit as stop:
        if not stop.code:  # --help, of which tyro does not wrap the usage and the description
            show_help(printed.getvalue())
            raise
        raise _parse_error(errors.getvalue(), hint) from None


class _Printed(io.StringIO):
    """Text that tyro formats as for the standard output, with colours in a terminal."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def _parse_error(box: str, hint: str) -> InputError:
    """Convert the box that tyro prints for an error into an error of one line.

    tyro has a hook for parse errors (`tyro._errors.on_parse_error`), but it is private, documented
    as unstable, and absent from older versions that we support. The text of the box changes less.
    """
    sections = _sections(box)
    text = re.sub(r"\s+", " ", "; ".join(" ".join(lines) for lines in sections)).strip()
    choice = re.search(
        r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)\s*\.", text
    )
    if choice:
        given, name, known = choice.groups()
        return unknown(name.lstrip("-").lower(), given, re.findall(r"'(.*?)'", known))
    command = re.match(
        r"Unrecognized .*?options: ([^-\s,;][^\s,;]*).*?; Available subcommands: ([^;]*)", text
    )
    if command:
        return unknown("command", command[1], command[2].split(", "))
    # An option of another command, whose similar options belong to other commands as well.
    foreign = re.search(r"Unrecognized or misplaced options: (\S+) \(applied to (.*?)\)", text)
    if foreign:
        return InputError(f"unknown option '{foreign[1]}'; `{foreign[2]} --help` lists them")
    stray = re.search(r"Unrecognized options: (.*?),?(?:$|[\s;])", text)
    if stray:
        suggested = re.search(r"Perhaps you meant: (--\S+)", text)
        hint = f"did you mean {suggested[1].rstrip(',')}?" if suggested else hint
        return InputError(f"unknown option '{stray[1]}'; {hint}")
    for pattern, replacement in _REWORDED.items():
        text = re.sub(pattern, replacement, text)
    return InputError(text or "the command line could not be read; try emergo --help")


def _sections(box: str) -> list[list[str]]:
    """Split a boxed message at its rules into sections of lines.

    The frame, the title and the pointer to the help are left out.
    """
    sections: list[list[str]] = [[]]
    box = re.sub(r"\x1b\[[\d;]*m", "", box)  # colours, on a terminal
    for raw in box.splitlines():
        line = raw.strip().strip("│").strip()
        is_rule = set(line) <= set("─╭╮╰╯- ")
        if is_rule or raw.lstrip().startswith("╭"):
            sections.append([])
        else:
            sections[-1].append(line)
    sections = [lines for lines in sections if lines]
    if "╭" not in box:  # Without Unicode the title is a section like the others.
        sections = sections[1:]
    footers = ("For full helptext", "Argument helptext")
    return [lines for lines in sections if not lines[0].startswith(footers)]
