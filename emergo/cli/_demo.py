"""`emergo demo`."""

import dataclasses
from pathlib import Path

from .._terminal import print_json, print_law, progress_bar


@dataclasses.dataclass(frozen=True)
class Demo:
    """The whole idea at laptop scale; writes report.html."""

    out: Path = Path(".")
    """Folder for report.html."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..report import run_demo

        with progress_bar() as show:
            found = run_demo(self.out, advance=lambda stage, done, of: show(stage, done / of))
        if self.json:
            return print_json(found)
        print_law(found["law"])
        print(f"{found['runs']} runs, {found['seconds']:.0f} s; open {found['files'][0]}")
