"""Figures of the stages of trained chains, and of the attention in the same runs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from ...measure import division
from ...study import Study
from .._figure import Check, Figure, Outcome, Preset, RunSource, Studies
from .._source import distinct
from ._chains import (
    NOTHING,
    ChainRun,
    ChainRuns,
    Printed,
    by_part,
    comparison_checks,
    head_checks,
    ladder_checks,
    named,
    owner_check,
    part_of,
)
from ._maps import kept_maps
from ._plots import animate, map_plot, stage_plot

Checks = Callable[[ChainRuns], list[Check]]
Timed = Mapping[Preset, tuple[Study | Studies, float]]
"""A study, or several, and the seconds of each preset."""


def stage_figure(
    number: int,
    title: str,
    presets: Timed,
    printed: Printed = NOTHING,
    more: Checks = lambda runs: [],
    own_heads: bool = True,
    task: bool = False,
) -> Figure:
    """Build a figure of the stages of one or several settings.

    **Arguments:**

    - `presets`: the studies and the seconds of each preset. The name of a study starts with its
      setting, up to a comma; the studies of one setting differ in their teachers and probes.
    - `printed`: published numbers, compared with runs on the published teacher.
    - `more`: further checks of the runs on drawn teachers.
    - `own_heads`: check which groups the heads attend to. With several layers a head may attend to
      positions where an earlier one has gathered information.
    - `task`: draw the task as well, and query against key.
    """

    def make(studies: Studies, source: RunSource) -> Outcome:
        parts = by_part(source.runs(studies, curves=True))
        checks = []
        for name, runs in parts.items():
            own = runs.on("drawn")
            heads = head_checks(own) if own_heads else []
            theirs = printed if printed.part == name else NOTHING
            own_checks = ladder_checks(own) + heads + more(own) + comparison_checks(runs, theirs)
            checks += named(name, own_checks) if len(parts) > 1 else own_checks
        tables = {
            name.replace(" ", "_") if len(parts) > 1 else "curves": runs.table
            for name, runs in parts.items()
        }
        return Outcome(tables, stage_plot(parts, task), checks=checks)

    return Figure(
        f"yuksel2026/fig{number}",
        title,
        {p: {"runs": s} if isinstance(s, Study) else s for p, (s, _) in presets.items()},
        make,
        {p: seconds for p, (_, seconds) in presets.items()},
        curves=True,
    )


def map_figure(
    number: int,
    title: str,
    partner: Figure,
    more: Checks = lambda runs: [],
    which: int = 0,
    own_heads: bool = True,
    steps: Sequence[int] = (),
) -> Figure:
    """Build a figure, with an animation, of the attention in the runs of another figure.

    The attention is drawn for the first seed. The paper's query-key maps are drawn as well if they
    were kept.

    **Arguments:**

    - `partner`: the figure whose runs are shown.
    - `more`: further checks of the runs on drawn teachers.
    - `which`: the number of the partner's part to show.
    - `own_heads`: check that each group ends with a different head.
    - `steps`: the three steps of the paper's maps, at which the heads are compared with them.
    """

    def make(studies: Studies, source: RunSource) -> Outcome:
        (runs,) = by_part(source.runs(studies, curves=True)).values()
        own = runs.on("drawn")
        mapped = mapped_run(runs)
        checks = map_checks(own, own_heads) + more(own)
        if steps:
            checks += moment_checks(runs.on("published"), steps)
        maps = {} if mapped is None else {"maps": map_table(mapped)}
        plot = map_plot(own[0], mapped, apart=not own_heads)
        return Outcome(
            {"curves": runs.table} | maps, plot, checks=checks, animation=animate(own[0])
        )

    presets = {}
    seconds = {}
    for preset, studies in partner.presets.items():
        part = list(dict.fromkeys(map(part_of, studies)))[which]
        shown = {name: study for name, study in studies.items() if part_of(name) == part}
        presets[preset] = shown
        share = len(distinct(shown)) / len(distinct(studies))
        seconds[preset] = partner.seconds[preset] * share
    return Figure(f"yuksel2026/fig{number}", title, presets, make, seconds, curves=True)


def map_checks(runs: ChainRuns, own_heads: bool) -> list[Check]:
    """Check the attention at the start and at the end."""
    uneven = max((run.attention[0].max(-1) / run.attention[0].mean(-1)).max() for run in runs)
    inside = min(run.attention[-1].sum(-1).min() for run in runs)
    checks = [
        Check(
            "at step 0, the most that a head looks at one lag over its mean, largest over seeds",
            uneven,
            "at t = 0 the attention is uniform",
            uneven < 2,
        ),
        Check(
            "at the end, attention within the window of the chain, least over heads and seeds",
            inside,
            None,
            inside > 0.8,
            "above 0.8: positions that tell nothing are left out",
        ),
    ]
    if own_heads:
        sizes = np.array(runs.groups.spans, float)
        start, end = runs.mean(
            lambda run: division(run.group_attention[[0, -1]], sizes).cooperation
        )
        words = "each head specializes in a different pattern"
        name = (
            "cooperation (0: all heads look alike, 1: each at a group of its own) at the "
            "start and the end, mean over seeds"
        )
        checks += [owner_check(runs, words), Check(name, [start, end], words, end > start + 0.3)]
    return checks


MOMENTS = "1 1 1, 1 1 2, 1 2 3"
"""The groups that the heads attend to most in the paper's maps at three steps; 1 is the
strongest."""


def moment_checks(runs: ChainRuns, steps: Sequence[int]) -> list[Check]:
    """Compare the heads' groups at the steps of the paper's maps."""
    by_seed = []
    for run in runs:
        rank = np.argsort(run.groups.ranking) + 1
        nearest = [run.group_attention[run.row(step)].argmax(-1) for step in steps]
        by_seed.append(", ".join(" ".join(map(str, np.sort(rank[one]))) for one in nearest))
    when = ", ".join(map(str, steps))
    name = f"groups that heads look at most at steps {when}, 1 the strongest, by seed"
    checks = [Check(name, by_seed, MOMENTS, all(each == MOMENTS for each in by_seed))]
    return named("published teacher", checks) if runs[0].maps == "published" else checks


def mapped_run(runs: ChainRuns) -> ChainRun | None:
    """Return the first run whose maps were kept, preferably on the published teacher."""
    every = (*runs.on("published"), *runs)
    return next((run for run in every if "attention_map" in run.curves), None)


def map_table(run: ChainRun) -> pd.DataFrame:
    """Return the maps that were kept, one row per step, head and query."""
    tables = []
    for step, maps in kept_maps(run).items():
        heads, queries, keys = maps.shape
        head, query = np.divmod(np.arange(heads * queries), queries)
        table = pd.DataFrame(maps.reshape(-1, keys)).add_prefix("key_")
        tables.append(pd.DataFrame({"step": step, "head": head, "query": query}).join(table))
    return pd.concat(tables, ignore_index=True)
