"""Figures 6 to 10: the reduced flow on its landscape, its early and late phase, and repetition.

Figure 9 compares the flow with SGD on the toy model.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator

from ... import theory
from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    QUANTITIES,
    RED,
    WIDTH,
    level,
    step_curve,
)
from ...measure import emergence
from ...tasks import SingleLocation
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, legend, lines_by, panels
from .._plateaus import Points, curve_table, follow, toy_probe
from .._toy_sgd import train_toy

LENGTH_6 = 256
DIM_6 = 64
LENGTHS_7 = (64, 256, 1024)
DIM_7 = 512
LENGTHS_8 = (16, 64, 256, 1024)
LENGTH = 512
DIM = 64
"""The sizes of Figures 8 and 10."""
REPEATS = (0.0, 0.05, 0.1, 0.2, 0.4)


def make_6(settings: Points, source: RunSource) -> Outcome:
    cell = theory.cells(LENGTH_6, DIM_6)
    # The transition takes a small share of the time but most of the path. After it, w falls to its
    # optimum over about 40 plateaus.
    spans = (np.linspace(0, 0.9, 100), np.linspace(0.9, 1.4, 400), np.geomspace(1.4, 40, 100))
    path = theory.trajectory(
        cell, theory.predicted_plateau(cell) * np.unique(np.concatenate(spans))
    )
    w = np.linspace(-1.5, 1.6 * np.sqrt(DIM_6), settings.points)
    logit = np.linspace(-1.5, np.log(LENGTH_6) + 5.5, settings.points)
    with theory.float64():
        states = jnp.stack(jnp.meshgrid(jnp.asarray(w), jnp.asarray(logit)), -1)
        surface = np.asarray(jax.jit(theory.loss)(states, cell))
    landscape = pd.DataFrame(
        {"w": np.tile(w, len(logit)), "logit": np.repeat(logit, len(w)), "loss": surface.ravel()}
    )
    peak = path.alignment.max()
    last = path.alignment[-1]
    falls = (np.diff(path.loss) < 0).all()
    late = path.loss[-1]
    overshoots = "w overshoots its optimum and comes back (A.3.3)"
    end = "loss at the end of the path over the loss at its start"
    checks = [
        Check(
            overshoots,
            [peak, last],
            "w decreases after the transition",
            peak > last > np.sqrt(DIM_6),
        ),
        Check("the loss falls all along the path", falls, True, falls),
        Check(end, late / 0.5, None, late < 1e-3, "below 0.002"),
    ]
    tables = {"path": curve_table(cell, path), "landscape": landscape}
    return Outcome(tables, draw_6(w, logit, surface, path), checks=checks)


def draw_6(w: np.ndarray, logit: np.ndarray, surface: np.ndarray, path: theory.Trajectory) -> Plot:
    title = f"Loss of the reduced model, $T$ = {LENGTH_6}, $d$ = {DIM_6}"
    plot, (axes,) = panels(3.3, title, width=0.62 * WIDTH)
    levels = np.geomspace(1e-4, surface.max(), 25)
    filled = axes.contourf(w, logit, np.maximum(surface, 1e-4), levels=levels, norm=LogNorm())
    axes.plot(path.alignment, path.logit, "o-", color=RED, markevery=[0, -1])
    axes.axvline(np.sqrt(DIM_6), color=BLACK, ls=":", lw=1)
    axes.set(xlabel=r"weight $w$ (dotted: $\sqrt{d}$)", ylabel=r"attention logit $\Delta a$")
    plot.colorbar(filled, ax=axes, label="loss", ticks=LogLocator())
    return plot


FIGURE_6 = Figure(
    "zucchet2025/fig6",
    "loss landscape of the reduced model in (w, Δa) with the path of the gradient flow",
    {"paper": Points(201), "smoke": Points(31)},
    make_6,
    {"paper": 9, "smoke": 5},
)


def make_7(settings: Points, source: RunSource) -> Outcome:
    cell = theory.cells(LENGTHS_7, DIM_7)
    limit = 1.1 * (theory.predicted_plateau(cell) + 1.5 * cell.dim)
    times = np.stack([np.geomspace(e / 300, e, settings.points) for e in limit])
    path, end = follow(cell, times)
    linear = theory.linear_solution(cell, times)
    curves = curve_table(cell, path)
    for name in linear._fields:
        curves[f"linear_{name}"] = getattr(linear, name).ravel()
    curves = curves[curves["time"] <= np.repeat(end, settings.points)]
    # The share of the plateau during which the linear solution stays within 10% of the flow.
    checks = []
    for name, flow, line in (
        ("w", path.alignment, linear.weight),
        ("Δa", path.logit, linear.logit),
    ):
        off = np.abs(line / flow - 1) > 0.1
        first = np.where(off.any(1), off.argmax(1), settings.points - 1)
        share = times[np.arange(len(end)), first] / end
        name = f"share of the plateau over which the linear {name} is within 10%"
        checks.append(Check(name, share, None, min(share) > 0.2, "over 0.2 for every length"))
    return Outcome({"curves": curves}, draw_7(curves), checks=checks)


def draw_7(curves: pd.DataFrame) -> Plot:
    columns = {
        f"a  $d$ = {DIM_7}": ("alignment", "linear_weight", "weight $w$"),
        "b  dashed: linearised": ("logit", "linear_logit", r"attention logit $\Delta a$"),
        "c": ("loss", "linear_loss", "loss so far removed, $0.5 - L$"),
    }
    plot, row = panels(2.5, *columns)
    removed = curves.assign(loss=0.5 - curves["loss"], linear_loss=0.5 - curves["linear_loss"])
    colours = colours_of(LENGTHS_7)
    for axes, (flow, linear, label) in zip(row, columns.values(), strict=True):
        lines_by(axes, removed, "length", "time", flow, colours)
        lines_by(axes, removed, "length", "time", linear, colours, ls="--", lw=1.2)
        axes.set(xscale="log", yscale="log", xlabel="flow time $t$", ylabel=label)
    legend(row[2], "$T$", colours)
    return plot


FIGURE_7 = Figure(
    "zucchet2025/fig7",
    "early flow (w, Δa, loss) beside its linear approximation around the start",
    {"paper": Points(200), "smoke": Points(40)},
    make_7,
    {"paper": 10, "smoke": 7},
)


def make_8(settings: Points, source: RunSource) -> Outcome:
    cell = theory.cells(LENGTH, DIM)
    times = np.linspace(0, 4 * float(theory.predicted_plateau(cell)), settings.points)
    path, crossing = follow(cell, times)
    end = float(crossing)
    alpha = np.geomspace(1e-4, 1, settings.points)
    with theory.float64():
        left = pd.concat(
            pd.DataFrame(
                {
                    "length": length,
                    "attention": alpha,
                    "equilibrium": np.asarray(
                        theory.equilibrium(jnp.asarray(alpha), theory.cells(length, DIM))
                    ),
                }
            )
            for length in LENGTHS_8
        )
        following = np.asarray(theory.equilibrium(jnp.asarray(path.attention), cell))
        states = jnp.stack([jnp.asarray(path.alignment), jnp.asarray(path.logit)], -1)
        hessians = jax.jit(theory.hessian)(states, cell)
        eigenvalues = np.linalg.eigvalsh(np.asarray(hessians))
    along = pd.DataFrame(
        {"time": times, "w": path.alignment, "equilibrium": following, "attention": path.attention}
    )
    along[["smallest", "largest"]] = eigenvalues
    late = along[along["time"] > 2 * end]
    gap = np.max(np.abs(late["w"] / late["equilibrium"] - 1))
    first = eigenvalues[0, 0] * (np.sqrt(DIM) * LENGTH)
    last = eigenvalues[-1, 1] * DIM
    sharpest = times[eigenvalues[:, 1].argmax()] / end
    start = "smallest eigenvalue at the start, times √d·T (A.3.2: -1)"
    when = "when the loss is sharpest, in plateaus (A.3.3: at the transition)"
    checks = [
        Check("largest |w / w∞ - 1| after twice the plateau", gap, 0.0, gap < 0.01),
        Check(start, first, -1.0, abs(first + 1) < 0.1),
        Check("largest eigenvalue at the end, times d (A.3.3: 1)", last, 1.0, abs(last - 1) < 0.1),
        Check(when, sharpest, 1.0, 0.8 < sharpest < 1.25),
    ]
    plot = draw_8(left, along.assign(time=times / end), float(theory.growth_rate(cell)))
    return Outcome({"along": along, "equilibria": left}, plot, checks=checks)


def draw_8(left: pd.DataFrame, along: pd.DataFrame, rate: float) -> Plot:
    plot, (a, b, c) = panels(
        2.6,
        r"left  $w^\infty(\alpha)$",
        f"middle  $T$ = {LENGTH}, $d$ = {DIM}",
        "right  Hessian",
    )
    colours = colours_of(LENGTHS_8)
    lines_by(a, left, "length", "attention", "equilibrium", colours)
    a.set(
        xscale="log", yscale="log", xlabel=r"attention $\alpha$", ylabel=r"equilibrium $w^\infty$"
    )
    a.legend(colours, title="$T$", loc="lower center", ncols=2)
    level(a, np.sqrt(DIM), r"$\sqrt{d}$")
    lines = {"equilibrium": BLACK, "w": BLUE}, {"largest": GREEN, "smallest": PINK}
    for axes, names in zip((b, c), lines, strict=True):
        for name, colour in names.items():
            axes.plot(along["time"], along[name], color=colour, label=name)
        axes.set_xlabel("time / plateau")
        axes.legend(loc="lower right")
    b.set(ylabel="$w$", yscale="log", ylim=(0.1, None))
    c.set_ylabel("Hessian eigenvalue")
    c.set_yscale("symlog", linthresh=1e-4)
    level(c, 1 / DIM, "$1/d$")
    level(c, -rate, r"$-\lambda$")
    return plot


FIGURE_8 = Figure(
    "zucchet2025/fig8",
    "equilibrium weight, how the flow follows it, and the eigenvalues of the Hessian along the "
    "flow",
    {"paper": Points(600), "smoke": Points(80)},
    make_8,
    {"paper": 10, "smoke": 6},
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Training of the toy model, at a learning rate of 1: a step is a unit of flow time."""

    length: int = 256
    dim: int = 256
    seeds: int = 5
    steps: int = 9000
    every: int = 30


def make_9(settings: Settings, source: RunSource) -> Outcome:
    task = SingleLocation(settings.length, settings.dim)
    curves = train_toy(
        task,
        toy_probe(task.burst),
        seeds=settings.seeds,
        steps=settings.steps,
        every=settings.every,
        progress=lambda step: source.report("SGD", step / settings.steps),
    )
    cell = theory.cells(settings.length, settings.dim)
    path = theory.trajectory(cell, curves.step)
    expected = float(theory.plateau(cell).time)
    ends = [
        emergence(curves.step, loss, theory.THRESHOLD * loss[0]) for loss in curves.values["loss"]
    ]
    plateaus = pd.DataFrame(ends).assign(seed=range(settings.seeds), flow=expected)
    index = pd.MultiIndex.from_product(
        [range(settings.seeds), curves.step.tolist()], names=["seed", "step"]
    )
    values = {name: measured.ravel() for name, measured in curves.values.items()}
    runs = pd.DataFrame(values, index).reset_index()
    reached = plateaus[plateaus["state"] == "reached"]
    ratio = (reached["time"] / expected).mean()
    end = runs.groupby("seed")["attention"].last().min() / path.attention[-1]
    mean = "mean plateau of the seeds over the plateau of the flow"
    last = "attention at the end, least of the seeds, over that of the flow"
    count = len(reached)
    checks = [
        Check(mean, ratio, 1.0, abs(ratio - 1) < 0.2),
        Check("seeds that passed the threshold", count, settings.seeds, count == settings.seeds),
        Check(last, end, 1.0, abs(end - 1) < 0.05),
    ]
    tables = {"runs": runs, "plateaus": plateaus, "flow": curve_table(cell, path)}
    plot = draw_9(runs, path, settings)
    return Outcome(tables, plot, checks=checks, precision="float64 flow, fp32 training")


def draw_9(runs: pd.DataFrame, path: theory.Trajectory, settings: Settings) -> Plot:
    plot, row = panels(
        2.5,
        "a  SGD, one line per seed",
        "b  dashed: reduced flow",
        f"c  $T$ = {settings.length}, $d$ = {settings.dim}",
    )
    columns = (
        ("loss", path.test_loss, "loss"),
        ("attention", path.attention, r"attention $\alpha$"),
        ("alignment", path.alignment, "projection $w$ of $W$ on $W^*$"),
    )
    colours = QUANTITIES.values()
    for axes, (name, flow, label), colour in zip(row, columns, colours, strict=True):
        for _, rows in runs.groupby("seed"):
            step = rows["step"].to_numpy()
            step_curve(axes, step, rows[name].to_numpy(), color=colour, lw=0.9, alpha=0.8)
        step_curve(axes, path.time, flow, color=ORANGE, ls="--", lw=1.4)
        axes.set(xlabel="step", ylabel=label, xlim=(settings.steps / 20, settings.steps))
    level(row[2], np.sqrt(settings.dim), r"$\sqrt{d}$")
    return plot


FIGURE_9 = Figure(
    "zucchet2025/fig9",
    "SGD on the toy model (loss, attention, projection; 5 seeds) against the reduced flow",
    {
        "paper": Settings(),
        "laptop": Settings(length=64, dim=64, steps=1500, every=5),
        "smoke": Settings(length=16, dim=16, steps=200, every=10, seeds=2),
    },
    make_9,
    {"paper": 52, "laptop": 31, "smoke": 7},
)


def make_10(settings: Points, source: RunSource) -> Outcome:
    cell = theory.cells(LENGTH, DIM, repeat=REPEATS)
    end = 1.45 * float(theory.predicted_plateau(cell).max())
    path = theory.trajectory(cell, np.linspace(0, end, settings.points))
    curves = curve_table(cell, path)
    rows = dict(list(curves.groupby("repeat")))
    half = {"repeated": 0.5, "others": 0.5 * np.sqrt(DIM - 1), "attention": 0.5}
    times = {
        p: {name: some["time"][some[name] >= level].min() for name, level in half.items()}
        for p, some in rows.items()
    }
    led = all(times[p]["repeated"] < times[p]["others"] for p in REPEATS if p > 0)
    # The duration of the drop from 0.9 to 0.1 of the initial test loss.
    drop = {
        p: np.ptp([some["time"][some["test_loss"] <= 0.5 * s].min() for s in (0.9, 0.1)])
        for p, some in rows.items()
    }
    first = REPEATS[0]
    last = REPEATS[-1]
    over = f"p = {last:g} over p = {first:g}"
    ratios = {
        f"time to half attention, p = {first:g} over p = {last:g}": (
            times[first]["attention"] / times[last]["attention"]
        ),
        f"duration of the drop itself, {over} (2.3: slower after the plateau)": (
            drop[last] / drop[first]
        ),
        f"test loss at the end, {over} (2.3: larger in the long run)": (
            rows[last]["test_loss"].iloc[-1] / rows[first]["test_loss"].iloc[-1]
        ),
    }
    name = "the repeated direction is half learned before the others, for every p > 0"
    checks = [Check(name, led, True, led)]
    checks += [Check(name, ratio, "> 1", ratio > 1) for name, ratio in ratios.items()]
    return Outcome({"curves": curves}, draw_10(curves), checks=checks)


def draw_10(curves: pd.DataFrame) -> Plot:
    titles = ("left", "middle  dashed: repeated", f"right  $T$ = {LENGTH}, $d$ = {DIM}")
    plot, (a, b, c) = panels(2.5, *titles)
    colours = colours_of(REPEATS, "repeat")
    shares = curves.assign(others=curves["others"] / np.sqrt(DIM - 1))
    lines_by(a, shares, "repeat", "time", "test_loss", colours)
    lines_by(b, shares, "repeat", "time", "others", colours)
    lines_by(b, shares, "repeat", "time", "repeated", colours, ls="--", lw=1.2)
    lines_by(c, shares, "repeat", "time", "attention", colours)
    a.set(xlabel="flow time $t$", ylabel="test loss (no repetition)", ylim=(-0.01, 0.52))
    b.set(xlabel="flow time $t$", ylabel="weight / its optimum")
    c.set(xlabel="flow time $t$", ylabel=r"attention $\alpha$")
    legend(c, "$p$", colours)
    return plot


FIGURE_10 = Figure(
    "zucchet2025/fig10",
    "cross-sample repetition: test loss, repeated and other weights, attention",
    {"paper": Points(600), "smoke": Points(80)},
    make_10,
    {"paper": 11, "smoke": 6},
)
