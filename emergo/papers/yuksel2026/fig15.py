"""Figure 15: groups that overlap, learned by three and by four heads: what groups share, heads share."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...measure import head_similarity
from ...models import MinimalAttention
from ...studies import Study, provenance_of
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome, Studies
from .._source import RunSource
from ._chains import ChainRuns, laptop, paper, smoke
from ._stage_checks import NOTHING, Printed, ladder_checks
from ._stage_figure import caveats, draw_heads, draw_references

OVERLAP = Groups((4, 4, 4), stride=2)
PRINTED = {"4 heads": Printed(boundaries=(150, 700))}


def sharing_check(runs: ChainRuns) -> list[Check]:
    """How much the head that looks second most at a group looks at it, over the one that does most: 0 where each group has a
    head of its own. And how alike heads are."""
    sorted_heads = [np.sort(runs.group_attention(curve)[-1], 0)[::-1] for curve in runs.curves]
    second = float(np.mean([mass[1] / mass[0] for mass in sorted_heads]))
    alike = float(np.mean([head_similarity(runs.attention(curve)[-1]) for curve in runs.curves]))
    name = "at the end, second most over most attention of heads on a group, and similarity of heads, mean over seeds"
    return [Check(name, [second, alike], "patterns are shared between heads", second > 0.4 and alike < 0.7)]


def make(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    by_heads = {name: ChainRuns(part) for name, part in parts.items()}
    checks = []
    for name, runs in by_heads.items():
        own = [*ladder_checks(runs, PRINTED.get(name, NOTHING)), *sharing_check(runs)]
        checks += [dataclasses.replace(check, name=f"{name}: {check.name}") for check in own]
    return Outcome(
        tables={name.replace(" ", "_"): runs.table for name, runs in by_heads.items()},
        plot=draw(by_heads),
        checks=checks,
        precision="fp32",
        device=provenance_of(parts),
    )


def draw(by_heads: Mapping[str, ChainRuns]) -> Plot:
    counts = [runs.attention(runs.curves[0]).shape[1] for runs in by_heads.values()]
    height = 0.42 * max(counts)
    plot = Plot(figsize=(WIDTH, 3.0 + height), layout="constrained")
    columns: Any = np.ravel(plot.subfigures(1, len(by_heads), squeeze=False))
    for i, (column, heads, (name, runs)) in enumerate(zip(columns, counts, by_heads.items(), strict=True)):
        above, below = column.subfigures(2, 1, height_ratios=(2.4, 0.4 + height))
        draw_references(above.subplots(), runs, "ab"[i], f"{name}: ")
        panels = below.subplots(heads, 1, sharex=True, squeeze=False)[:, 0]
        draw_heads(panels, runs, {k: f"{k + 1}" for k in range(heads)}, "cd"[i], "attention of each head on each group")
    return plot


def by_number_of_heads(study: Study, *numbers: int) -> dict[str, Study]:
    return {f"{heads} heads": study.replace(model__heads=heads) for heads in numbers}


SMALL, TINY = laptop(MinimalAttention(), OVERLAP, seeds=1, steps=2000), smoke(groups=Groups((2, 2), stride=1))
FIGURE = Figure(
    id="yuksel2026/fig15",
    title="groups that overlap, learned by three and by four heads: what groups share, heads share",
    presets={
        "paper": by_number_of_heads(paper(MinimalAttention(start="xavier"), MarkovChain(OVERLAP)), 3, 4),
        "laptop": by_number_of_heads(SMALL, 3, 4),
        "smoke": by_number_of_heads(TINY, 2, 3),
    },
    make=make,
    seconds={"paper": 20000, "laptop": 62, "smoke": 12},
    caveat=caveats(SMALL, TINY, "initial scale 1e-9"),
    studies=lambda studies: studies,
    curves=True,
)
