"""Write the index of figures: `python -m emergo.papers.build_index`.

Run it after a change to figures, their presets or the records, and after adding a module to
`MODULES`.
"""

import dataclasses
import json
import re

from ._figure import Figure, source_for
from ._source import distinct
from .index import INDEX, Entry, figures_in, read_index

MODULES = (
    "emergo.papers.zucchet2025.fig1_2",
    "emergo.papers.zucchet2025.fig3",
    "emergo.papers.zucchet2025.fig4",
    "emergo.papers.zucchet2025.fig5_16_17",
    "emergo.papers.zucchet2025.fig6_10",
    "emergo.papers.zucchet2025.fig11_12",
    "emergo.papers.zucchet2025.fig13_15",
    "emergo.papers.yuksel2026.stages_and_maps",
    "emergo.papers.yuksel2026.fig4",
    "emergo.papers.yuksel2026.fig5",
    "emergo.papers.yuksel2026.fig10",
    "emergo.papers.experiments.plateaus",
    "emergo.papers.experiments.offset",
    "emergo.papers.experiments.precision",
    "emergo.papers.experiments.escape",
    "emergo.papers.experiments.reading",
    "emergo.papers.experiments.stages",
    "emergo.papers.experiments.rounding",
    "emergo.papers.experiments.dropout",
    "emergo.papers.experiments.second_plateau",
    "emergo.papers.experiments.schedule",
    "emergo.papers.experiments.capacity",
    "emergo.papers.experiments.coupled",
    "emergo.papers.experiments.attention",
    "emergo.forecasting.experiment.figure",
)
"""The modules with figures, in the order in which figures are listed. They are imported by name:
this package does not depend on tools such as forecasting."""


def build_index(count: bool = True) -> list[Entry]:
    """Return the entries of all figures, in the order of the papers.

    Without `count`, the runs are not counted, which works without an existing index.
    """
    figures: dict[str, Figure] = {}
    module_of: dict[str, str] = {}
    for module in MODULES:
        for figure in figures_in(module):
            figures.setdefault(figure.id, figure)
            module_of.setdefault(figure.id, module)  # later modules may import it from there
    papers = list(dict.fromkeys(id.partition("/")[0] for id in figures))

    def position(id: str) -> tuple[int, int]:
        """Sort by paper, then by the number of the figure; other names keep their order."""
        paper, _, name = id.partition("/")
        number = re.fullmatch(r"fig(\d+)", name)
        return papers.index(paper), int(number[1]) if number else 0

    entries = []
    for id in sorted(figures, key=position):
        figure = figures[id]
        runs: dict[str, int] = {}
        unrecorded: dict[str, list[str]] = {}
        for preset in figure.presets if count else ():
            source = source_for(figure)
            studies = figure.wanted(preset, source)
            runs[preset] = len(distinct(studies))
            unrecorded[preset] = [run.identity for run in figure.missing(studies, source)]
        entries.append(
            Entry(id, module_of[id], figure.title, dict(figure.seconds), runs, unrecorded)
        )
    return entries


def write_index(entries: list[Entry]) -> None:
    """Write `index.json`, one line per figure."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(entry)) for entry in entries)
    INDEX.write_text(f'{{"figures": [\n{lines}\n]}}\n')
    read_index.cache_clear()


if __name__ == "__main__":
    write_index(build_index(count=False))  # figures may refer to other figures by their ids
    write_index(build_index())
