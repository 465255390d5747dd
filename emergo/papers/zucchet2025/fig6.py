"""Figure 6: the loss landscape of the reduced model and the path of the flow on it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Plot
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator

from ... import theory
from ..._style import BLACK, WIDTH, panel
from .._figure import Check, Figure, Outcome
from .._plateaus import curve_table
from .._source import RunSource


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 256
    dim: int = 64
    resolution: int = 201
    until: float = 40.0
    """In plateaus: long enough to see w fall back towards its optimum."""


def make(settings: Settings, source: RunSource) -> Outcome:
    cell = theory.cells(settings.length, settings.dim)
    # The transition takes a small share of the time but most of the path.
    spans = (np.linspace(0, 0.9, 100), np.linspace(0.9, 1.4, 400), np.geomspace(1.4, settings.until, 100))
    path = theory.trajectory(cell, theory.predicted_plateau(cell) * np.unique(np.concatenate(spans)))
    w = np.linspace(-1.5, 1.6 * np.sqrt(settings.dim), settings.resolution)
    logit = np.linspace(-1.5, np.log(settings.length) + 5.5, settings.resolution)
    with theory.float64():
        states = jnp.stack(jnp.meshgrid(jnp.asarray(w), jnp.asarray(logit)), -1)
        surface = np.asarray(jax.jit(theory.loss)(states, cell))
        turn = jnp.array([path.alignment[-1], path.logit[-1]])
        late = float(theory.loss(turn, cell))
    landscape = pd.DataFrame({"w": np.tile(w, len(logit)), "logit": np.repeat(logit, len(w)), "loss": surface.ravel()})
    peak, last = float(path.alignment.max()), float(path.alignment[-1])
    checks = [
        Check(
            "w overshoots its optimum and comes back (A.3.3)",
            [peak, last],
            "w decreases after the transition",
            bool(peak > last > np.sqrt(settings.dim)),
        ),
        Check(
            "the loss falls all along the path",
            bool((np.diff(path.loss) < 0).all()),
            True,
            bool((np.diff(path.loss) < 0).all()),
        ),
        Check("loss at the end of the path over the loss at its start", late / 0.5, None, bool(late < 1e-3), "below 0.002"),
    ]
    return Outcome(
        tables={"path": curve_table(cell, path), "landscape": landscape},
        plot=draw(w, logit, surface, path, settings),
        checks=checks,
    )


def draw(w: np.ndarray, logit: np.ndarray, surface: np.ndarray, path: theory.Trajectory, settings: Settings) -> Plot:
    plot = Plot(figsize=(0.62 * WIDTH, 3.3), layout="constrained")
    axes = plot.subplots()
    levels = np.geomspace(1e-4, surface.max(), 25)
    filled = axes.contourf(w, logit, np.maximum(surface, 1e-4), levels=levels, norm=LogNorm(), cmap="viridis")
    axes.contour(w, logit, surface, levels=levels[::3], colors="black", linewidths=0.25, alpha=0.5)
    edge = [withStroke(linewidth=2.8, foreground=BLACK)]  # the landscape is pale where the path begins
    axes.plot(path.alignment, path.logit, color="white", lw=1.8, path_effects=edge)
    for at, marker, word, colour in ((0, "o", "start", BLACK), (-1, "s", "end", "white")):
        place = float(path.alignment[at]), float(path.logit[at])
        axes.plot(*place, marker, color="white", mec=BLACK, mew=0.8, ms=5.5, zorder=4)
        axes.annotate(word, place, (6, -2.5), textcoords="offset points", va="top" if at == 0 else "bottom", color=colour)
    axes.axvline(np.sqrt(settings.dim), color=BLACK, ls=":", lw=1)
    axes.text(np.sqrt(settings.dim) - 0.15, logit[0] + 0.3, r"$w = \sqrt{d}$", color=BLACK, fontsize=7.5, ha="right")
    axes.set(xlabel="weight $w$", ylabel=r"attention logit $\Delta a$", xlim=(w[0], w[-1]), ylim=(logit[0], logit[-1]))
    axes.grid(visible=False)
    bar = plot.colorbar(filled, ax=axes, label="loss", ticks=LogLocator())
    bar.ax.minorticks_off()
    panel(axes, "", f"Loss of the reduced model, $T$ = {settings.length}, $d$ = {settings.dim}")
    return plot


FULL = Settings()
FIGURE = Figure(
    id="zucchet2025/fig6",
    title="loss landscape of the reduced model in (w, Δa) with the path of the gradient flow",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(resolution=31)},
    make=make,
    seconds={"paper": 9, "laptop": 9, "smoke": 5},
    caveat={"smoke": "a coarser landscape"},
)
