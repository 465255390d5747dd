"""Write the index of figures: `python -m emergo.papers.build_index`.

Run it after a change to figures, their presets or the records.
"""

import dataclasses
import json
import pkgutil
import re
from pathlib import Path

from ._figure import Figure, source_for
from .index import INDEX, Entry, figures_in, read_index

PACKAGES = ("zucchet2025", "yuksel2026", "experiments")
FORECAST = "emergo.forecasting.experiment.figure"
"""Imported by name, because this package does not depend on tools such as forecasting."""


def figure_modules() -> list[str]:
    """List the modules that may define figures: all whose names have no underscore in front."""
    folder = Path(__file__).parent
    modules = []
    for package in PACKAGES:
        found = pkgutil.iter_modules([str(folder / package)])
        modules += [f"{__package__}.{package}.{each.name}" for each in found if each.name[0] != "_"]
    return [*modules, FORECAST]


def build_index(count: bool = True) -> list[Entry]:
    """Return the entries of all figures, by paper, then by number or name.

    Without `count`, the runs are not counted, which works without an existing index.
    """
    figures: dict[str, Figure] = {}
    module_of: dict[str, str] = {}
    for module in figure_modules():
        for figure in figures_in(module):
            figures.setdefault(figure.id, figure)
            module_of.setdefault(figure.id, module)  # later modules may import it from there
    papers = list(dict.fromkeys(id.partition("/")[0] for id in figures))

    def position(id: str) -> tuple[int, int, str]:
        paper, _, name = id.partition("/")
        number = re.fullmatch(r"fig(\d+)", name)
        return papers.index(paper), int(number[1]) if number else 0, name

    entries = []
    for id in sorted(figures, key=position):
        figure = figures[id]
        runs: dict[str, int] = {}
        unrecorded: dict[str, list[str]] = {}
        for preset in (
            [preset for preset in figure.presets if preset not in figure.local] if count else ()
        ):
            needed, missing = figure.progress(preset, source_for(figure))
            runs[preset] = len(needed)
            unrecorded[preset] = [run.identity for run in missing]
        seconds = {str(preset): each for preset, each in figure.seconds.items()}
        entries.append(Entry(id, module_of[id], figure.title, seconds, runs, unrecorded))
    return entries


def write_index(entries: list[Entry]) -> None:
    """Write `index.json`, one line per figure."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(entry)) for entry in entries)
    INDEX.write_text(f'{{"figures": [\n{lines}\n]}}\n')
    read_index.cache_clear()


if __name__ == "__main__":
    write_index(build_index(count=False))  # figures may refer to other figures by their ids
    write_index(build_index())
