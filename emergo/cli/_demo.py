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
            report = run_demo(self.out, show=show)
        if self.json:
            return print_json(report)
        print_law(report["law"])
        print(f"{report['runs']} runs, {report['seconds']:.0f} s; open {report['files'][0]}")
