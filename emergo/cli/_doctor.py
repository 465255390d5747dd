"""`emergo doctor` and `emergo completion`."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from .._errors import InputError
from .._terminal import print_json


@dataclasses.dataclass(frozen=True)
class Doctor:
    """What is installed here, which devices there are, whether JAX's known faults apply, and what is slow and why."""

    folder: Path = Path(".")  # Folder in which the speed of the disk is tried.
    timing: bool = True  # Also train for a moment, to see how fast that is.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from .._doctor import examine, lines, report

        if not os.path.isdir(self.folder):
            raise InputError(f"{self.folder}: {'a file, not a folder' if os.path.lexists(self.folder) else 'no such folder'}")
        findings = []
        for finding, words in lines(examine(self.folder, self.timing)):
            findings.append(finding)
            if not self.json:
                print(words, flush=True)
        if self.json:
            print_json(report(findings))
        if any(finding.state == "fault" for finding in findings):
            sys.exit(1)


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print what makes a shell complete the words of `emergo`; e.g. `eval "$(emergo completion bash)"` in ~/.bashrc."""

    shell: Positional[Literal["bash", "zsh"]]  # Which shell.

    def run(self) -> None:
        import tyro

        from ._main import PARSER

        tyro.cli(**PARSER, args=["--tyro-print-completion", self.shell])
