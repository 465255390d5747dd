"""Figures 6 to 10: the reduced flow on its landscape, its early and late phase, and repetition.

Figure 9 compares the flow with SGD on the toy model.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator

from ... import theory
from ...core.plotting import BLACK, BLUE, GREY, ORANGE, RED, WIDTH, key
from ...measure import emergence
from ...tasks import SingleLocation
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
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
        turn = jnp.array([path.alignment[-1], path.logit[-1]])
        late = float(theory.loss(turn, cell))
    landscape = pd.DataFrame(
        {"w": np.tile(w, len(logit)), "logit": np.repeat(logit, len(w)), "loss": surface.ravel()}
    )
    peak = path.alignment.max()
    last = path.alignment[-1]
    falls = (np.diff(path.loss) < 0).all()
    name = "w overshoots its optimum and comes back (A.3.3)"
    words = "w decreases after the transition"
    checks = [
        Check(name, [peak, last], words, peak > last > np.sqrt(DIM_6)),
        Check("the loss falls all along the path", falls, True, falls),
        Check(
            "loss at the end of the path over the loss at its start",
            late / 0.5,
            None,
            late < 1e-3,
            "below 0.002",
        ),
    ]
    tables = {"path": curve_table(cell, path), "landscape": landscape}
    return Outcome(tables, draw_6(w, logit, surface, path), checks=checks)


def draw_6(w: np.ndarray, logit: np.ndarray, surface: np.ndarray, path: theory.Trajectory) -> Plot:
    title = f"Loss of the reduced model, $T$ = {LENGTH_6}, $d$ = {DIM_6}"
    plot, (axes,) = panels(3.3, title, width=0.62 * WIDTH)
    levels = np.geomspace(1e-4, surface.max(), 25)
    filled = axes.contourf(
        w, logit, np.maximum(surface, 1e-4), levels=levels, norm=LogNorm(), cmap="viridis"
    )
    axes.contour(w, logit, surface, levels=levels[::3], colors="black", linewidths=0.25, alpha=0.5)
    edge = [withStroke(linewidth=2.8, foreground=BLACK)]  # visible on the pale start
    axes.plot(path.alignment, path.logit, color="white", lw=1.8, path_effects=edge)
    for at, marker, word, colour in ((0, "o", "start", BLACK), (-1, "s", "end", "white")):
        place = float(path.alignment[at]), float(path.logit[at])
        axes.plot(*place, marker, color="white", mec=BLACK, mew=0.8, ms=5.5, zorder=4)
        axes.annotate(
            word,
            place,
            (6, -2.5),
            textcoords="offset points",
            va="top" if at == 0 else "bottom",
            color=colour,
        )
    axes.axvline(np.sqrt(DIM_6), color=BLACK, ls=":", lw=1)
    axes.text(
        np.sqrt(DIM_6) - 0.15,
        logit[0] + 0.3,
        r"$w = \sqrt{d}$",
        color=BLACK,
        fontsize=7.5,
        ha="right",
    )
    axes.set(
        xlabel="weight $w$",
        ylabel=r"attention logit $\Delta a$",
        xlim=(w[0], w[-1]),
        ylim=(logit[0], logit[-1]),
    )
    axes.grid(visible=False)
    bar = plot.colorbar(filled, ax=axes, label="loss", ticks=LogLocator())
    bar.ax.minorticks_off()
    return plot


TITLE_6 = "loss landscape of the reduced model in (w, Δa) with the path of the gradient flow"
FIGURE_6 = Figure(
    "zucchet2025/fig6",
    TITLE_6,
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
        "a  weight $w$": ("alignment", "linear_weight"),
        r"b  attention logit $\Delta a$": ("logit", "linear_logit"),
        "c  loss so far removed, $0.5 - L$": ("loss", "linear_loss"),
    }
    plot, row = panels(2.5, *columns)
    removed = curves.assign(loss=0.5 - curves["loss"], linear_loss=0.5 - curves["linear_loss"])
    colours = colours_of(LENGTHS_7)
    for axes, (flow, linear) in zip(row, columns.values(), strict=True):
        lines_by(axes, removed, "length", "time", flow, colours)
        lines_by(axes, removed, "length", "time", linear, colours, ls="--", lw=1.2)
        axes.set(xscale="log", yscale="log", xlabel="flow time $t$")
    key(row[0], [("flow", {}), ("linearised", {"ls": "--", "lw": 1.2})], loc="lower right")
    legend(row[2], "$T$", colours)
    row[2].text(0.97, 0.04, f"$d$ = {DIM_7}", transform=row[2].transAxes, ha="right", color=GREY)
    return plot


TITLE_7 = "early flow (w, Δa, loss) beside its linear approximation around the start"
FIGURE_7 = Figure(
    "zucchet2025/fig7",
    TITLE_7,
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
        cells = {length: theory.cells(length, DIM) for length in LENGTHS_8}
        equilibria = {
            length: np.asarray(theory.equilibrium(jnp.asarray(alpha), one))
            for length, one in cells.items()
        }
        following = np.asarray(theory.equilibrium(jnp.asarray(path.attention), cell))
        states = jnp.stack([jnp.asarray(path.alignment), jnp.asarray(path.logit)], -1)
        hessians = jax.jit(theory.hessian)(states, cell)
        eigenvalues = np.linalg.eigvalsh(np.asarray(hessians))
    along = pd.DataFrame(
        {"time": times, "w": path.alignment, "equilibrium": following, "attention": path.attention}
    )
    along[["smallest", "largest"]] = eigenvalues
    left = pd.concat(
        [
            pd.DataFrame({"length": n, "attention": alpha, "equilibrium": w})
            for n, w in equilibria.items()
        ]
    )
    rate = float(theory.growth_rate(cell))
    late = along[along["time"] > 2 * end]
    gap = np.max(np.abs(late["w"] / late["equilibrium"] - 1))
    first = eigenvalues[0, 0] * (np.sqrt(DIM) * LENGTH)
    last = eigenvalues[-1, 1] * DIM
    sharpest = times[eigenvalues[:, 1].argmax()] / end
    checks = [
        Check("largest |w / w∞ - 1| after twice the plateau", gap, 0.0, gap < 0.01),
        Check(
            "smallest eigenvalue at the start, times √d·T (A.3.2: -1)",
            first,
            -1.0,
            abs(first + 1) < 0.1,
        ),
        Check("largest eigenvalue at the end, times d (A.3.3: 1)", last, 1.0, abs(last - 1) < 0.1),
        Check(
            "when the loss is sharpest, in plateaus (A.3.3: at the transition)",
            sharpest,
            1.0,
            0.8 < sharpest < 1.25,
        ),
    ]
    return Outcome(
        {"along": along, "equilibria": left}, draw_8(left, along, rate, end), checks=checks
    )


def draw_8(left: pd.DataFrame, along: pd.DataFrame, rate: float, end: float) -> Plot:
    titles = (
        r"left  $w^\infty(\alpha)$",
        f"middle  $T$ = {LENGTH}, $d$ = {DIM}",
        "right  Hessian along the flow",
    )
    plot, (a, b, c) = panels(2.6, *titles)
    lines_by(a, left, "length", "attention", "equilibrium", colours_of(LENGTHS_8))
    a.axhline(np.sqrt(DIM), color=GREY, ls=":", lw=1)
    a.text(1.1e-4, np.sqrt(DIM) * 1.08, r"$\sqrt{d}$", fontsize=7, color=GREY)
    a.set(
        xscale="log", yscale="log", xlabel=r"attention $\alpha$", ylabel=r"equilibrium $w^\infty$"
    )
    a.legend([f"{n}" for n in LENGTHS_8], title="$T$", loc="lower center", ncols=2)
    b.plot(
        along["time"] / end,
        along["equilibrium"],
        color=ORANGE,
        ls="--",
        label=r"equilibrium $w^\infty$",
    )
    b.plot(along["time"] / end, along["w"], color=BLUE, label="flow $w$")
    b.set(xlabel="time / plateau", ylabel="$w$", yscale="log", ylim=(0.1, None))
    b.legend(loc="lower right")
    c.axhline(0, color="#bbbbbb", lw=0.8)
    for level, text in ((1 / DIM, "$1/d$"), (-rate, r"$-\lambda$")):
        c.axhline(level, color=GREY, ls=":", lw=1)
        c.text(along["time"].max() / end, level, " " + text, fontsize=7, color=GREY, va="center")
    c.plot(along["time"] / end, along["largest"], color=RED, label="largest")
    c.plot(along["time"] / end, along["smallest"], color=BLUE, label="smallest")
    c.set_yscale("symlog", linthresh=1e-4)
    c.set(xlabel="time / plateau", ylabel="Hessian eigenvalue", xlim=(0, along["time"].max() / end))
    c.legend(loc="lower right")
    return plot


TITLE_8 = (
    "equilibrium weight, how the flow follows it, and the eigenvalues of the Hessian along the flow"
)
FIGURE_8 = Figure(
    "zucchet2025/fig8",
    TITLE_8,
    {"paper": Points(600), "smoke": Points(80)},
    make_8,
    {"paper": 10, "smoke": 6},
)


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 256
    dim: int = 256
    batch: int = 32
    learning_rate: float = 1.0
    seeds: int = 5
    steps: int = 9000
    every: int = 30


def make_9(settings: Settings, source: RunSource) -> Outcome:
    task = SingleLocation(settings.length, settings.dim)
    options = {
        name: getattr(settings, name)
        for name in ("seeds", "steps", "every", "batch", "learning_rate")
    }

    def progress(step: int) -> None:
        source.report("SGD", step / settings.steps, f"step {step} of {settings.steps}")

    curves = train_toy(task, toy_probe(task.burst), **options, progress=progress)
    cell = theory.cells(settings.length, settings.dim)
    path = theory.trajectory(cell, settings.learning_rate * curves.step)
    expected = float(theory.plateau(cell).time) / settings.learning_rate
    rows = []
    for seed, loss in enumerate(curves.values["loss"]):
        end = emergence(curves.step, loss, theory.THRESHOLD * loss[0])
        rows.append(
            {
                "seed": seed,
                "length": settings.length,
                "dim": settings.dim,
                "plateau": end.time,
                "plateau_low": end.low,
                "plateau_high": end.high,
                "censored": end.censored,
                "state": end.state,
                "flow_plateau": expected,
            }
        )
    plateaus = pd.DataFrame(rows)
    seed = np.repeat(np.arange(settings.seeds), len(curves.step))
    runs = pd.DataFrame({"seed": seed, "step": np.tile(curves.step, settings.seeds)})
    runs = runs.assign(**{name: values.ravel() for name, values in curves.values.items()})
    reached = plateaus[plateaus["state"] == "reached"]
    ratio = (reached["plateau"] / expected).mean()
    end = runs.groupby("seed")["attention"].last().min() / path.attention[-1]
    checks = [
        Check(
            "mean plateau of the seeds over the plateau of the flow",
            ratio,
            1.0,
            abs(ratio - 1) < 0.2,
        ),
        Check(
            "seeds that passed the threshold",
            len(reached),
            settings.seeds,
            len(reached) == settings.seeds,
        ),
        Check(
            "attention at the end, least of the seeds, over that of the flow",
            end,
            1.0,
            abs(end - 1) < 0.05,
        ),
    ]
    tables = {"runs": runs, "plateaus": plateaus, "flow": curve_table(cell, path)}
    return Outcome(
        tables, draw_9(runs, path, settings), checks=checks, precision="float64 flow, fp32 training"
    )


def draw_9(runs: pd.DataFrame, path: theory.Trajectory, settings: Settings) -> Plot:
    plot, row = panels(2.5, *"abc")
    columns = (
        ("loss", "test_loss", "loss", ORANGE),
        ("attention", "attention", r"attention $\alpha$", RED),
        ("alignment", "alignment", "projection $w$ of $W$ on $W^*$", BLUE),
    )
    for axes, (name, flow, label, colour) in zip(row, columns, strict=True):
        for _, rows in runs.groupby("seed"):
            axes.plot(rows["step"], rows[name], color=colour, lw=0.9, alpha=0.8)
        axes.plot(
            path.time / settings.learning_rate, getattr(path, flow), color=BLACK, ls="--", lw=1.4
        )
        axes.set(xlabel="step", ylabel=label)
    row[2].axhline(np.sqrt(settings.dim), color=GREY, ls=":", lw=1)
    row[2].text(0, np.sqrt(settings.dim), r"$\sqrt{d}$", fontsize=7, color=GREY, va="bottom")
    words = (
        f"T = {settings.length}, d = {settings.dim}, batch {settings.batch}, learning rate "
        f"{settings.learning_rate:g}"
    )
    plot.suptitle(words, fontsize=8, x=0.01, ha="left", color=GREY)
    seeds = tuple(Line2D([], [], color=column[3]) for column in columns)
    dashed = Line2D([], [], color=BLACK, ls="--", lw=1.4)
    place = {"loc": "upper right", "ncols": 2, "handlelength": 2.4, "borderaxespad": 0.1}
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0)}
    lines = {"SGD, one line per seed": seeds, "reduced flow": dashed}
    plot.legend(lines.values(), lines, handler_map=side_by_side, **place)
    return plot


TITLE_9 = "SGD on the toy model (loss, attention, projection; 5 seeds) against the reduced flow"
PRESETS_9: Presets = {
    "paper": Settings(),
    "laptop": Settings(length=64, dim=64, steps=1500, every=5),
    "smoke": Settings(length=16, dim=16, steps=200, every=10, seeds=2),
}
FIGURE_9 = Figure(
    "zucchet2025/fig9", TITLE_9, PRESETS_9, make_9, {"paper": 52, "laptop": 31, "smoke": 7}
)


def make_10(settings: Points, source: RunSource) -> Outcome:
    cell = theory.cells(LENGTH, DIM, repeat=REPEATS)
    end = 1.45 * float(theory.predicted_plateau(cell).max())
    path = theory.trajectory(cell, np.linspace(0, end, settings.points))
    curves = curve_table(cell, path)
    first = REPEATS[0]
    last = REPEATS[-1]
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
    earlier = times[first]["attention"] / times[last]["attention"]
    slower = drop[last] / drop[first]
    larger = rows[last]["test_loss"].iloc[-1] / rows[first]["test_loss"].iloc[-1]
    over = f"p = {last:g} over p = {first:g}"
    checks = [
        Check(
            "the repeated direction is half learned before the others, for every p > 0",
            led,
            True,
            led,
        ),
        Check(
            f"time to half attention, p = {first:g} over p = {last:g}", earlier, "> 1", earlier > 1
        ),
        Check(
            f"duration of the drop itself, {over} (2.3: slower after the plateau)",
            slower,
            "> 1",
            slower > 1,
        ),
        Check(
            f"test loss at the end, {over} (2.3: larger in the long run)", larger, "> 1", larger > 1
        ),
    ]
    return Outcome({"curves": curves}, draw_10(curves), checks=checks)


def draw_10(curves: pd.DataFrame) -> Plot:
    plot, (a, b, c) = panels(2.5, "left  test loss", "middle  weights", "right  attention")
    colours = colours_of(REPEATS)
    shares = curves.assign(others=curves["others"] / np.sqrt(DIM - 1))
    lines_by(a, shares, "repeat", "time", "test_loss", colours)
    lines_by(b, shares, "repeat", "time", "others", colours)
    lines_by(b, shares, "repeat", "time", "repeated", colours, ls="--", lw=1.2)
    lines_by(c, shares, "repeat", "time", "attention", colours)
    b.axhline(1, color=GREY, ls=":", lw=1)
    a.set(xlabel="flow time $t$", ylabel="test loss (no repetition)", ylim=(-0.01, 0.52))
    b.set(xlabel="flow time $t$", ylabel="weight / its optimum")
    c.set(xlabel="flow time $t$", ylabel=r"attention $\alpha$")
    b.set_ylim(-0.05, shares[["others", "repeated"]].max().max() * 1.3)
    key(
        b,
        [
            (r"repeated direction $\tilde w$", {"ls": "--", "lw": 1.2}),
            (r"others, $w/\sqrt{d-1}$", {}),
        ],
        loc="upper right",
    )
    plot.suptitle(f"T = {LENGTH}, d = {DIM}", fontsize=8, x=0.01, ha="left", color=GREY)
    legend(c, "$p$", colours)
    return plot


TITLE_10 = "cross-sample repetition: test loss, repeated and other weights, attention"
PRESETS_10: Presets = {"paper": Points(600), "smoke": Points(80)}
FIGURE_10 = Figure("zucchet2025/fig10", TITLE_10, PRESETS_10, make_10, {"paper": 11, "smoke": 6})
