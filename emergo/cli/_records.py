"""`emergo records`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from .._terminal import print_json


@dataclasses.dataclass(frozen=True)
class Records:
    """Add the finished runs of a folder that belong to figures to the records that come with the package."""

    what: Positional[Literal["add"]]
    """What to do."""
    folder: Positional[Path]
    """Folder of studies, e.g. the OUT of `emergo figure`."""
    name: str | None = None
    """Name of the records to add to; by default that of the paper."""
    every: Annotated[bool, arg(name="all")] = False
    """Add all runs of the folder, also those of no figure; needs a name."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..papers._make import add_figure_records

        added = add_figure_records(self.folder, self.name, self.every)
        if self.json:
            return print_json({"added": added})
        words = ", ".join(f"{count} runs to {name}" for name, count in added.items())
        print(f"added {words}" if words else "nothing to add: what is finished here is recorded already, or of no figure")
