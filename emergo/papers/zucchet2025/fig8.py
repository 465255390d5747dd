"""Figure 8: the equilibrium of w, how the flow follows it, and the curvature of the loss along the way."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import BLUE, GREY, ORANGE, RED, WIDTH, panel, shades
from .._figure import Check, Figure, Outcome
from .._plateaus import follow
from .._source import RunSource


@dataclasses.dataclass(frozen=True)
class Settings:
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    length: int = 512
    dim: int = 64
    points: int = 600
    until: float = 4.0


def make(settings: Settings, source: RunSource) -> Outcome:
    cell = theory.cells(settings.length, settings.dim)
    times = np.linspace(0, settings.until * float(theory.predicted_plateau(cell)), settings.points)
    path, crossing = follow(cell, times)
    end = float(crossing)
    alpha = np.geomspace(1e-4, 1, settings.points)
    with theory.float64():
        equilibria = {
            length: np.asarray(theory.equilibrium(jnp.asarray(alpha), theory.cells(length, settings.dim)))
            for length in settings.lengths
        }
        following = np.asarray(theory.equilibrium(jnp.asarray(path.attention), cell))
        states = jnp.stack([jnp.asarray(path.alignment), jnp.asarray(path.logit)], -1)
        hessians = jax.jit(theory.hessian)(states, cell)
        eigenvalues = np.linalg.eigvalsh(np.asarray(hessians))
    along = pd.DataFrame(
        {
            "time": times,
            "w": path.alignment,
            "equilibrium": following,
            "attention": path.attention,
            "smallest": eigenvalues[:, 0],
            "largest": eigenvalues[:, 1],
        }
    )
    left = pd.concat([pd.DataFrame({"length": n, "attention": alpha, "equilibrium": w}) for n, w in equilibria.items()])
    rate = float(theory.growth_rate(cell))
    late = along[along["time"] > 2 * end]
    gap = float(np.max(np.abs(late["w"] / late["equilibrium"] - 1)))
    sharpest = float(times[along["largest"].to_numpy().argmax()] / end)
    checks = [
        Check("largest |w / w∞ - 1| after twice the plateau", gap, 0.0, gap < 0.01),
        Check(
            "smallest eigenvalue at the start, times √d·T (A.3.2: -1)",
            early := eigenvalues[0, 0] * scale(settings),
            -1.0,
            bool(abs(early + 1) < 0.1),
        ),
        Check(
            "largest eigenvalue at the end, times d (A.3.3: 1)",
            last := eigenvalues[-1, 1] * settings.dim,
            1.0,
            bool(abs(last - 1) < 0.1),
        ),
        Check("when the loss is sharpest, in plateaus (A.3.3: at the transition)", sharpest, 1.0, bool(0.8 < sharpest < 1.25)),
    ]
    return Outcome(tables={"along": along, "equilibria": left}, plot=draw(left, along, rate, end, settings), checks=checks)


def scale(settings: Settings) -> float:
    return float(np.sqrt(settings.dim) * settings.length)


def draw(left: pd.DataFrame, along: pd.DataFrame, rate: float, end: float, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.6), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    colours = shades(len(settings.lengths))
    for length, colour in zip(settings.lengths, colours, strict=True):
        rows = left[left["length"] == length]
        a.plot(rows["attention"], rows["equilibrium"], color=colour)
    a.axhline(np.sqrt(settings.dim), color=GREY, ls=":", lw=1)
    a.text(1.1e-4, np.sqrt(settings.dim) * 1.08, r"$\sqrt{d}$", fontsize=7, color=GREY)
    a.set(xscale="log", yscale="log", xlabel=r"attention $\alpha$", ylabel=r"equilibrium $w^\infty$")
    a.legend([f"{n}" for n in settings.lengths], title="$T$", loc="lower center", ncols=2)
    panel(a, "left", r"$w^\infty(\alpha)$")

    b.plot(along["time"] / end, along["equilibrium"], color=ORANGE, ls="--", label=r"equilibrium $w^\infty$")
    b.plot(along["time"] / end, along["w"], color=BLUE, label="flow $w$")
    b.set(xlabel="time / plateau", ylabel="$w$", yscale="log", ylim=(0.1, None))
    b.legend(loc="lower right")
    panel(b, "middle", f"$T$ = {settings.length}, $d$ = {settings.dim}")

    c.axhline(0, color="#bbbbbb", lw=0.8)
    for level, text in ((1 / settings.dim, "$1/d$"), (-rate, r"$-\lambda$")):
        c.axhline(level, color=GREY, ls=":", lw=1)
        c.text(along["time"].max() / end, level, " " + text, fontsize=7, color=GREY, va="center")
    c.plot(along["time"] / end, along["largest"], color=RED, label="largest")
    c.plot(along["time"] / end, along["smallest"], color=BLUE, label="smallest")
    c.set_yscale("symlog", linthresh=1e-4)
    c.set(xlabel="time / plateau", ylabel="Hessian eigenvalue", xlim=(0, along["time"].max() / end))
    c.legend(loc="lower right")
    panel(c, "right", "Hessian along the flow")
    return plot


FULL = Settings()
FIGURE = Figure(
    id="zucchet2025/fig8",
    title="equilibrium weight, how the flow follows it, and the eigenvalues of the Hessian along the flow",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(points=80)},
    make=make,
    seconds={"paper": 10, "laptop": 10, "smoke": 6},
    caveat={"smoke": "fewer points"},
)
