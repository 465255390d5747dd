"""The figures that show the stages of one setting: KLs from the references over training, and where the heads look."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, over
from ...studies import Study, provenance_of
from ...tasks import Groups
from .._figure import Check, Figure, Outcome, Preset, Studies
from .._source import RunSource
from ._chains import ChainRuns, line_of_seed, sizes_of
from ._stage_checks import NOTHING, Printed, stage_checks

COLOURS = (BLUE, ORANGE, GREEN, PINK)
ELSEWHERE = "#dddddd"
"""Behind the attention on the groups: what is on no group."""
Checks = Callable[[ChainRuns], list[Check]]


def stage_figure(
    id: str,
    title: str,
    presets: Mapping[Preset, Study | Studies],
    seconds: Mapping[Preset, float],
    printed: Printed = NOTHING,
    more: Checks = lambda runs: [],
    laptop: str = "",
    one_layer: bool = True,
) -> Figure:
    """A figure of the stages of one setting.

    **Arguments:**

    - `presets`: the study of each preset, or studies of which one has probes that the other has not.
    - `printed`: the published numbers that are known.
    - `more`: checks of this figure alone.
    - `laptop`: how that preset differs from the paper's setting besides its sizes.
    - `one_layer`: whether heads are to be held against the groups; of more layers, one may look at what another gathered.
    """

    def make(studies: Studies, source: RunSource) -> Outcome:
        runs, device = read_runs(source, studies)
        checks = stage_checks(runs, printed, one_layer) + more(runs)
        return Outcome({"curves": runs.table}, draw(runs), checks=checks, precision="fp32", device=device)

    named: dict[Preset, Studies] = {p: {"runs": s} if isinstance(s, Study) else s for p, s in presets.items()}
    caveat = caveats(next(iter(named["laptop"].values())), next(iter(named["smoke"].values())), laptop)
    return Figure(id, title, named, make, seconds, caveat, studies=lambda studies: studies, curves=True)


def read_runs(source: RunSource, studies: Studies) -> tuple[ChainRuns, str]:
    """The runs of all these studies, and where they were trained."""
    parts = source.runs(studies, curves=True)
    return ChainRuns(result for runs in parts.values() for result in runs), provenance_of(parts)


def caveats(laptop: Study, smoke: Study, words: str = "") -> dict[Preset, str]:
    """How the presets differ from the paper's setting: in words, and by their sizes."""
    return {"laptop": ", ".join(filter(None, [words, sizes_of(laptop)])), "smoke": sizes_of(smoke)}


def draw(runs: ChainRuns) -> Plot:
    """Above: KLs over training, and each head's attention by group; below: attention by head and lag at four moments."""
    heads, contexts = runs.attention(runs.curves[0]).shape[1], runs.contexts
    plot = Plot(figsize=(WIDTH, 4.4 if heads <= 4 else 5.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.6, 0.9 + 0.12 * heads))
    top, bottom = parts
    left, right = top.subfigures(1, 2, width_ratios=(1.8, 1) if contexts else (1, 1))
    panels = left.subplots(1, 2 if contexts else 1, sharey=True, squeeze=False)[0]
    draw_references(panels[0], runs, narrow=bool(contexts))
    if contexts:
        draw_contexts(panels[1], runs)
    names = head_names(runs)
    draw_heads(right.subplots(heads, 1, sharex=True, squeeze=False)[:, 0], runs, names, "c" if contexts else "b")
    draw_snapshots(bottom, runs, names, "d" if contexts else "c")
    return plot


def head_names(runs: ChainRuns) -> dict[int, str]:
    """The heads by layer, then by the group that each looks at most in the end, with the names they are drawn under."""
    _, layers, heads, _ = runs.curves[0]["attention_by_lag"].shape
    layer, number = np.divmod(np.arange(layers * heads), heads)
    order = np.lexsort((runs.group_attention(runs.curves[0])[-1].argmax(-1), layer)).tolist()
    return {k: f"{k + 1}" if layers == 1 else f"{layer[k] + 1}.{number[k] + 1}" for k in order}


def draw_references(axes: Axes, runs: ChainRuns, letter: str = "a", what: str = "", narrow: bool = False) -> None:
    """KL from the references, one line per seed; a reference has the colour of the group that it adds."""
    count, ranking = runs.groups.count, runs.groups.ranking
    colours = [COLOURS[group % len(COLOURS)] for group in ranking]
    for i, curve in enumerate(runs.curves):
        for j, colour in enumerate(colours):
            axes.plot(curve["step"][1:], curve["kl_references"][1:, j], color=colour, **line_of_seed(i))
    mark_departures(axes, runs)
    axes.set(xscale="log", ylabel="KL(reference ‖ student)", ylim=(0, None))
    axes.set_xlabel("step (dotted: seed 0 leaves a reference)" if first_departures(runs) and not narrow else "step")
    words = ["teacher" if k == count else ("$A_1$" if k == 1 else f"$A_{{1:{k}}}$") for k in range(1, count + 1)]
    if not narrow:
        lags = [lag_words(runs.groups)[group] for group in ranking]
        words = [f"{word}: {'+ ' if k else 'lags '}{lags[k]}" for k, word in enumerate(words)]
    over(axes, [(word, {"color": colour}) for word, colour in zip(words, colours, strict=True)])
    seeds = f"{runs.seeds} seed{'s' if runs.seeds > 1 else ''}"
    axes.set_title(f"{letter}  {what}{'references' if narrow else 'KL from references'}, {seeds}", pad=17)


def draw_contexts(axes: Axes, runs: ChainRuns) -> None:
    """KL from the trained predictors of restricted context."""
    colours = dict(zip(runs.contexts, COLOURS, strict=False))
    for i, curve in enumerate(c for c in runs.curves if "kl_contexts" in c):
        for j, colour in enumerate(colours.values()):
            axes.plot(curve["step"][1:], curve["kl_contexts"][1:, j], color=colour, **line_of_seed(i))
    mark_departures(axes, runs)
    axes.set(xscale="log", xlabel="step")
    over(axes, [(f"$c$ = {c}", {"color": colour}) for c, colour in colours.items()])
    axes.set_title("b  students that see $c$ tokens", pad=17)


def lag_words(groups: Groups) -> list[str]:
    """The lags of each group in words."""
    ends = [(start, start + span - 1) for start, span in zip(groups.starts, groups.spans, strict=True)]
    return [f"{first}" if first == last else f"{first}–{last}" for first, last in ends]


def draw_heads(
    panels: np.ndarray, runs: ChainRuns, names: Mapping[int, str], letter: str, title: str = "attention on each group"
) -> None:
    """What the heads of the first seed look at over training, one panel per head; above the first, what the colours are."""
    for axes, (k, name) in zip(panels, names.items(), strict=True):
        _draw_head(axes, runs, k, f"head {name}")
    disjoint = runs.groups.disjoint
    thick = {"lw": 4.5, "solid_capstyle": "butt"} if disjoint else {"lw": 1.2}
    words = [f"{'' if j else 'lags '}{lags}" for j, lags in enumerate(lag_words(runs.groups))]
    entries = [(word, {"color": COLOURS[j % len(COLOURS)]} | thick) for j, word in enumerate(words)]
    over(panels[0], [*entries, ("other", {"color": ELSEWHERE} | thick)] if disjoint else entries)
    panels[0].set_title(f"{letter}  {title}", pad=17)
    panels[-1].set_xlabel("step")


def _draw_head(axes: Axes, runs: ChainRuns, k: int, name: str) -> None:
    curve = runs.curves[0]
    step, mass = curve["step"][1:], runs.group_attention(curve)[1:, k]
    axes.set_facecolor(ELSEWHERE if runs.groups.disjoint else "white")
    if runs.groups.disjoint:
        axes.stackplot(step, mass.T, colors=COLOURS[: mass.shape[1]], lw=0)
    else:  # a position may count for two groups
        for one, colour in zip(mass.T, COLOURS, strict=False):
            axes.plot(step, one, color=colour, lw=1.2)
    mark_departures(axes, runs)
    axes.set(xscale="log", ylim=(0, 1), yticks=[0, 1], xlim=(step[0], step[-1]))
    axes.tick_params(axis="y", labelsize=6, length=2)
    axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=1, fontsize=7)
    axes.grid(visible=False)


def first_departures(runs: ChainRuns) -> list[float]:
    """When the first seed leaves the references."""
    return [step for step in runs.departures(runs.curves[0]) if np.isfinite(step)]


def mark_departures(axes: Axes, runs: ChainRuns) -> None:
    for step in first_departures(runs):
        axes.axvline(step, color=BLACK, lw=0.7, ls=":")


def moments_of(runs: ChainRuns) -> list[int]:
    """Evaluations: the start, where the first seed leaves each reference, the end; with fewer than two such, some between."""
    step, moments = runs.steps, first_departures(runs)
    if len(moments) < 2:
        moments += np.geomspace(moments[0] if moments else step[1], step[-1], 4 - len(moments))[1:-1].tolist()
    return sorted({0, *(int(np.searchsorted(step, moment)) for moment in moments), len(step) - 1})


def draw_snapshots(part: Any, runs: ChainRuns, names: Mapping[int, str], letter: str) -> None:
    """Attention by head and lag at a few moments."""
    moments = moments_of(runs)
    panels, order, image = part.subplots(1, len(moments)), list(names), None
    largest = max(0.3, float(runs.attention(runs.curves[0]).max()))
    for axes, at in zip(panels, moments, strict=True):
        image = draw_map(axes, runs, order, at, vmin=0, vmax=largest)
        mark_groups(axes, runs.groups, "above")
        axes.set(xlabel="lag", yticks=[], ylim=(len(order) - 0.5, -0.5))
        axes.set_title(f"step {runs.steps[at]:.0f}", fontsize=7.5, pad=8)
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10])
    bar = part.colorbar(image, ax=list(panels), label="attention", pad=0.01, aspect=10, ticks=ticks)
    bar.outline.set_linewidth(0.5)
    panels[0].set_ylabel("head")
    panels[0].set_yticks(range(len(order)), list(names.values()), fontsize=6)
    words = "attention by head and lag"
    if len(first_departures(runs)) == len(moments) - 2:  # else some moments are others
        words += ": at the start, where a reference is left (dotted above), at the end"
    part.suptitle(f"{letter}  {words}", x=0.01, ha="left", fontsize=8.5, fontweight="bold")


def draw_map(axes: Axes, runs: ChainRuns, order: Sequence[int], at: int, **shades: Any) -> AxesImage:
    """The attention of the first seed by head and lag at one evaluation."""
    maps = runs.attention(runs.curves[0])[at][list(order)]
    image = axes.imshow(maps, cmap="Greys", aspect="auto", interpolation="nearest", **shades)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spine in axes.spines.values():
        spine.set(color=GREY, visible=True)
    return image


def mark_groups(axes: Axes, groups: Groups, side: Literal["above", "below", "left"]) -> None:
    """The lags of each group, as a bar in its colour along one side of a panel; where groups overlap, bars lie side by side."""
    rows, along = 1 if groups.disjoint else 2, axes.get_yaxis_transform() if side == "left" else axes.get_xaxis_transform()
    figure: Any = axes.figure
    for j, (start, span) in enumerate(zip(groups.starts, groups.spans, strict=True)):
        away = (3 + 3 * (j % rows)) / 72  # points
        right, up = {"above": (0, away), "below": (0, -away), "left": (-away, 0)}[side]
        ends, edge = (start - 0.42, start + span - 0.58), [1.0 if side == "above" else 0.0] * 2
        x, y = (edge, ends) if side == "left" else (ends, edge)
        shifted = along + ScaledTranslation(right, up, figure.dpi_scale_trans)
        axes.plot(x, y, color=COLOURS[j % 4], lw=2.2, clip_on=False, transform=shifted, solid_capstyle="butt", zorder=5)
