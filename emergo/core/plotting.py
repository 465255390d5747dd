"""The style of all plots: safe for colour-blind readers, readable in print, without a display."""

import contextlib
import io
import textwrap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

# Okabe and Ito's palette, which stays distinct under the common colour-vision deficiencies.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
RED = "#D55E00"
PINK = "#CC79A7"
GREY = "#777777"

# The same quantity has the same colour in every figure.
QUANTITIES = {"loss": BLACK, "attention": RED, "values": BLUE}
# Ordered parameters: a colour map, and the part of it that is used, from dark to light.
PALETTES = {
    "length": ("viridis", 0.0, 0.82),
    "dim": ("GnBu", 1.0, 0.45),
    "burst": ("YlOrBr", 1.0, 0.4),
    "repeat": ("RdPu", 1.0, 0.4),
}

WIDTH = 7.2  # inches, the text width of a page
_RC: dict[Any, Any] = {
    "font.size": 8,
    "svg.hashsalt": "emergo",
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.markersize": 4.5,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "savefig.dpi": 200,
}
# The entry of a legend for censored values, which are drawn as hollow triangles.
CENSORED: tuple[str, dict[str, Any]] = (
    "censored:\nat least",
    {"marker": "^", "mfc": "none", "ms": 5, "ls": ""},
)


def style() -> contextlib.AbstractContextManager[None]:
    """Return a context with the rc settings of all plots; draw and save inside it."""
    return mpl.rc_context(_RC)


class Picture(Figure):
    """A figure that notebooks display even if `matplotlib.pyplot` was never imported."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    image = io.BytesIO()
    with style():
        figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    return image.getvalue()


def shades(count: int, parameter: str = "length") -> Sequence[Any]:
    """Return colours for an ordered parameter, from dark to light, without the palest ones.

    Length, dim, burst and repeat each have their own palette, other parameters that of length.
    """
    name, dark, light = PALETTES.get(parameter, PALETTES["length"])
    return [mpl.colormaps[name](x) for x in np.linspace(dark, light, max(count, 2))[:count]]


def hues(count: int) -> Sequence[Any]:
    """Return colours for close curves: up to five, more distinct than `shades`."""
    return (BLACK, BLUE, GREEN, ORANGE, RED)[:count] if count <= 5 else shades(count)


def panel(axes: Axes, letter: str, title: str = "") -> None:
    """Set the title of a panel, with its letter."""
    axes.set_title(f"{letter}  {title}".strip())


def subtitle(axes: Axes, words: str) -> None:
    """Add one or two lines of small grey text between a panel and its title.

    Put the title at y = 1.1, or at 1.13 above two lines.
    """
    axes.text(0.0, 1.01, words, transform=axes.transAxes, va="bottom", fontsize=6.5, color=GREY)


def key(axes: Axes, entries: Sequence[tuple[str, dict[str, Any]]], **options: Any) -> None:
    """Add a legend with the given entries: (label, line properties)."""
    usual: dict[str, Any] = {"color": GREY}
    handles = [Line2D([], [], **(usual | properties)) for _, properties in entries]
    before = axes.get_legend()
    axes.legend(handles, [label for label, _ in entries], **options)
    if before is not None:  # A new legend replaces the old one, unless that becomes an artist.
        axes.add_artist(before)


def outside(axes: Axes, title: str, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Add a legend to the right of a panel, where it covers no data."""
    key(axes, entries, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.3)


def over(axes: Axes, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Add a legend in one row between a panel and its title, which needs a pad of 17 points."""
    key(
        axes,
        entries,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(entries),
        columnspacing=1.0,
        handlelength=1.2,
        borderpad=0.0,
    )


def plain_ticks(axis: Axis, numbers: str = "{x:g}") -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each decade, with plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(numbers)
    axis.set_minor_formatter(NullFormatter())


class _StepLocator(LogLocator):
    """Ticks at 1, 2 and 5 of each decade, or at powers of ten where these would overlap."""

    def __init__(self, axes: Axes):
        super().__init__()
        self._axes = axes

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        inches = self._axes.get_window_extent().width / self._axes.figure.dpi
        label = 0.062 * len(f"{vmax:.0f}") + 0.03  # inches, with a gap
        room = np.log10(2) * inches / np.log10(vmax / vmin)  # from a tick at 1 to one at 2
        self.set_params(subs=(1, 2, 5) if room > label else (1,))
        return super().tick_values(vmin, vmax)


def step_axis(axes: Axes) -> None:
    """Make an axis of steps logarithmic, with plain numbers."""
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.xaxis.set_major_locator(_StepLocator(axes))


def step_curve(axes: Axes, steps: np.ndarray, values: np.ndarray, **look: Any) -> None:
    """Draw values against the logarithm of the step, without step 0.

    **Arguments:**

    - `values`: one row per step, and one column per line if there are several.
    - `look`: properties of the lines.
    """
    later = steps > 0
    if later.any():
        steps = steps[later]
        values = values[later]
        step_axis(axes)
    axes.plot(steps, values, **look)


def doubling(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with powers of 2 as plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")


def level(axes: Axes, y: float, words: str, ls: str = ":") -> None:
    """Draw a grey line across a panel, with text at its left end."""
    axes.axhline(y, color=GREY, ls=ls, lw=0.8)
    axes.text(
        0.01,
        y,
        words,
        color=GREY,
        fontsize=6.5,
        transform=axes.get_yaxis_transform(),
        va="bottom",
    )


def save(figure: Figure, stem: Path) -> None:
    """Write `<stem>.svg` and `<stem>.png`; equal figures give equal bytes."""
    with style():
        figure.draw_without_rendering()  # compute the layout once, for both files
        figure.set_layout_engine("none")
        figure.savefig(stem.with_name(stem.name + ".svg"), metadata={"Date": None})
        figure.savefig(stem.with_name(stem.name + ".png"), metadata={"Software": None})


def save_animation(
    figure: Figure, frames: int, draw: Callable[[int], Sequence[Artist]], path: Path
) -> None:
    """Write an animation as a GIF with 8 frames per second.

    Only the artists that change are drawn again, several times as fast as whole frames.

    **Arguments:**

    - `draw`: updates the figure for a frame and returns the artists that change.
    """
    with style():
        canvas = FigureCanvasAgg(figure)
        images = []
        moving = draw(0)
        figure.draw_without_rendering()  # compute the layout once, so that the axes do not move
        figure.set_layout_engine("none")
        for artist in moving:
            artist.set_animated(True)
        canvas.draw()
        still = canvas.copy_from_bbox(figure.bbox)
        for i in range(frames):
            canvas.restore_region(still)
            for artist in draw(i):
                figure.draw_artist(artist)
            images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=125, loop=0, optimize=True
    )


class Line(NamedTuple):
    """A curve of a plot: its panel and label, and a band around it, if any."""

    panel: Any
    label: Any
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def after_step_0(line: Line) -> Line:
    """Leave out step 0 of a curve, unless it has no other step."""
    keep = line.x > 0
    if keep.all() or not keep.any():
        return line
    low, high = (None if band is None else band[keep] for band in (line.low, line.high))
    return line._replace(x=line.x[keep], y=line.y[keep], low=low, high=high)


def spread_lines(lines: Sequence[Line], share: float) -> list[Line]:
    """Replace the curves of each panel and label by their median.

    The band covers a share of the curves. After its end, a curve keeps its last value.
    """
    groups: dict[tuple[Any, Any], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.panel, line.label), []).append(line)
    medians = []
    for labels, members in groups.items():
        x = np.unique(np.concatenate([line.x for line in members]))
        values = [np.interp(x, line.x, line.y) for line in members]
        quantiles = (0.5, 0.5 - share / 2, 0.5 + share / 2)
        medians.append(Line(*labels, x, *(np.quantile(values, q, axis=0) for q in quantiles)))
    return medians


def _label_colours(labels: Sequence[Any], by: str | None) -> Sequence[Any]:
    """Return shades of a parameter for numbers, and distinct colours for other labels."""
    if by is None or all(isinstance(label, int | float) for label in labels):
        return shades(len(labels), by or "length")
    return hues(len(labels))


def curve_plot(
    lines: Sequence[Line],
    y: str,
    by: str | None,
    x: str = "step",
    panels: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Plot curves, one colour per label.

    The axis of steps is logarithmic and leaves out step 0. An untrained model often has several
    times the loss of the plateau, which would then be a thin strip at the bottom.

    **Arguments:**

    - `by`: the title of the legend; None for no legend.
    - `panels`: what the values of `panel` are, for the titles of panels.
    - `axes`: the axes to draw into; None for a new figure.
    """
    titles = _ordered([line.panel for line in lines])
    if axes is None:
        columns = min(3, len(titles))
        rows = -(-len(titles) // columns)
        width = WIDTH * (0.62 if columns == 1 else 1.0)
        plot: Figure = Picture(
            figsize=(width, 2.9 if rows == 1 else 2.3 * rows), layout="constrained"
        )
        grid = plot.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        cells = list(grid.flat)
        for unused in cells[len(titles) :]:
            unused.remove()
        outer = [*grid[:, 0]], cells[max(0, len(titles) - columns) : len(titles)]
    else:
        plot = axes.figure.figure  # type: ignore[union-attr]
        cells = [axes]
        outer = [axes], [axes]
    if x == "step":
        lines = [after_step_0(line) for line in lines]
    labels = _ordered([line.label for line in lines])
    colours = dict(zip(labels, _label_colours(labels, by), strict=True))
    for title, cell in zip(titles, cells, strict=False):
        for line in (line for line in lines if line.panel == title):
            colour = colours[line.label]
            if line.low is not None and line.high is not None:
                cell.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, lw=0)
            cell.plot(line.x, line.y, color=colour, lw=1.1, alpha=0.85)
        if panels is not None:
            cell.set_title(f"{panels} {_words(title)}")
    for cell in outer[0]:
        cell.set_ylabel(y)
    for cell in outer[1]:
        cell.set_xlabel(x)
        cell.tick_params(labelbottom=True)
    if x == "step" and any(line.x[-1] > 0 for line in lines):
        for cell in cells[: len(titles)]:
            step_axis(cell)
    if by is not None:
        entries = [
            (textwrap.fill(_words(label), 22, break_long_words=False), {"color": colour})
            for label, colour in colours.items()
        ]
        outside(cells[min(len(cells), len(titles), 3) - 1], by, entries)
    return plot


def head_plot(steps: np.ndarray, values: np.ndarray, name: str) -> Picture:
    """Plot a curve of every head against the logarithm of the step, with one panel per layer.

    **Arguments:**

    - `values`: numbers by evaluation, layer and head.
    """
    layers, heads = values.shape[1:]
    plot = Picture(figsize=(min(2.6 * layers + 0.8, WIDTH), 2.4), layout="constrained")
    panels = plot.subplots(1, layers, sharey=True, squeeze=False)[0]
    for layer, axes in enumerate(panels):
        for head, colour in enumerate(hues(heads)):
            step_curve(axes, steps, values[:, layer, head], color=colour, lw=1.1)
        axes.set_title(f"layer {layer}")
        axes.set_xlabel("step")
    panels[0].set_ylabel(name.replace("_", " "))
    outside(panels[-1], "head", [(f"{i}", {"color": c}) for i, c in enumerate(hues(heads))])
    return plot


def map_plot(steps: Sequence[int], maps: np.ndarray) -> Picture:
    """Plot attention maps: one row per head, one column per step.

    **Arguments:**

    - `maps`: attention by step, layer, head, query and key.
    """
    count, layers, heads = maps.shape[:3]
    plot = Picture(figsize=(1.15 * count + 0.6, 1.15 * layers * heads + 0.4), layout="constrained")
    panels = plot.subplots(layers * heads, count, squeeze=False)
    for (row, column), axes in np.ndenumerate(panels):
        layer, head = divmod(row, heads)
        shown = np.abs(maps[column, layer, head])
        axes.imshow(shown, cmap="viridis", vmin=0, vmax=max(1.0, shown.max()))
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
        if row == 0:
            axes.set_title(f"step {steps[column]:,}", fontsize=7)
        if column == 0:
            axes.set_ylabel(f"layer {layer}\nhead {head}", fontsize=7)
    return plot


def _ordered(labels: Collection[Any]) -> list[Any]:
    """Return the distinct labels, numbers before texts."""
    numbers = {label for label in set(labels) if isinstance(label, int | float)}
    return [*sorted(numbers), *sorted(set(labels) - numbers, key=str)]


def _words(label: Any) -> str:
    return f"{label:g}" if isinstance(label, int | float) else str(label)
