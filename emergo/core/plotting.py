"""The style of all plots: safe for colour-blind readers, readable in print, without a display."""

import contextlib
import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    image = io.BytesIO()
    with style():
        figure.savefig(image, format="png", dpi=dpi, metadata={"Software": None})
    return image.getvalue()


def shades(count: int) -> Sequence[Any]:
    """Return colours for an ordered parameter, from dark to light, without the palest ones."""
    return [mpl.colormaps["viridis"](x) for x in np.linspace(0.0, 0.82, max(count, 2))[:count]]


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


def curve_plot(
    lines: Sequence[tuple[Any, np.ndarray, np.ndarray]], y: str, by: str | None, x: str = "step"
) -> Picture:
    """Plot curves over a logarithmic axis of steps, one colour per label.

    **Arguments:**

    - `lines`: one (label, x, y) per curve.
    - `by`: the title of the legend; None for no legend.
    """
    plot = Picture(figsize=(0.62 * WIDTH, 2.9), layout="constrained")
    axes = plot.subplots()
    labels = sorted({label for label, _, _ in lines}, key=lambda one: (isinstance(one, str), one))
    colours = dict(zip(labels, shades(len(labels)), strict=True))
    for label, steps, values in lines:
        axes.plot(steps, values, color=colours[label], lw=1.1, alpha=0.85)
    largest = max(float(steps[-1]) for _, steps, _ in lines)
    axes.set(xlabel=x, ylabel=y.replace("_", " "))
    if largest > 1000:
        axes.set_xscale("symlog", linthresh=max(10.0, largest / 300))
    if by is not None:
        entries = []
        for label, colour in colours.items():
            number = isinstance(label, int | float)
            words = f"{label:g}" if number else textwrap.fill(str(label), 22)
            entries.append((words, {"color": colour}))
        outside(axes, by, entries)
    return plot


def head_plot(steps: np.ndarray, values: np.ndarray, name: str) -> Picture:
    """Plot a curve of every head, with one panel per layer.

    **Arguments:**

    - `values`: numbers by evaluation, layer and head.
    """
    layers, heads = values.shape[1:]
    plot = Picture(figsize=(min(2.6 * layers + 0.8, WIDTH), 2.4), layout="constrained")
    panels = plot.subplots(1, layers, sharey=True, squeeze=False)[0]
    for layer, axes in enumerate(panels):
        for head, colour in enumerate(hues(heads)):
            axes.plot(steps, values[:, layer, head], color=colour, lw=1.1)
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
    for row, column in np.ndindex(panels.shape):
        axes = panels[row, column]
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
