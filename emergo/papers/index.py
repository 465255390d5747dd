"""The index of figures: id, module, title and cost of each, readable without JAX and pandas.

Importing all figures takes seconds and most of a gigabyte, so commands that list figures, or make
one, read `index.json` instead. `python -m emergo.papers.build_index` writes it.
"""

import dataclasses
import functools
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError, unknown
from ..store.folder import StudyFolder
from ..store.outcomes import is_finished

if TYPE_CHECKING:
    from ._figure import Figure

INDEX = Path(__file__).with_name("index.json")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One figure in the index.

    - `seconds`: the time that each preset takes on two CPU cores, compilation included.
    - `runs`: the number of runs of each preset; empty if they depend on this computer.
    - `unrecorded`: the identities of the runs of each preset that the package's records lack. Runs
      that depend on the results of others are counted once those results are recorded.
    """

    id: str
    module: str
    title: str
    seconds: Mapping[str, float]
    runs: Mapping[str, int]
    unrecorded: Mapping[str, list[str]]

    def seconds_needed(self, preset: str, out: Path | str) -> float:
        """Estimate the seconds that a preset takes, given the records and the runs in `out`."""
        if not self.runs.get(preset):
            return self.seconds[preset]
        finished = StudyFolder(out).runs
        missing = sum(not is_finished(finished, run) for run in self.unrecorded[preset])
        return self.seconds[preset] * missing / self.runs[preset]


@functools.cache
def read_index() -> dict[str, Entry]:
    """Read the index: entries by id, in the order of the papers."""
    entries = json.loads(INDEX.read_text())["figures"]
    return {entry["id"]: Entry(**entry) for entry in entries}


class FigureMapping(Mapping[str, "Figure"]):
    """All figures by id; each is imported on first access."""

    def __getitem__(self, id: str) -> "Figure":
        entry = read_index()[id]
        return next(f for f in figures_in(entry.module) if f.id == id)

    def __iter__(self) -> Iterator[str]:
        return iter(read_index())

    def __len__(self) -> int:
        return len(read_index())


def find_figure(id: str) -> "Figure":
    """Load a figure by its id, importing only its module.

    Raises `InputError` with similar ids for an unknown id.
    """
    id = str(id)
    known = read_index()
    if id not in known:
        same = [other for other in known if other.endswith(f"/{id}")]
        if same:
            raise InputError(f"unknown figure '{id}'; did you mean {' or '.join(same)}?")
        raise unknown("figure", id, known)
    return FigureMapping()[id]


def made_preset(id: str, out: Path | str) -> str | None:
    """Return the preset of the figure in the folder `out`, or None if it has not been made."""
    try:
        return json.loads((Path(out) / f"{id}.json").read_text())["preset"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def figures_in(module: str) -> "list[Figure]":
    """Import a module and return the figures that it defines."""
    from ._figure import Figure

    values = vars(importlib.import_module(module)).values()
    return [value for value in values if isinstance(value, Figure)]
