"""When heads part: the second stage of the incremental flow against the initial scale, and the growth of their differences."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import BLUE, GREY, ORANGE, WIDTH, key, panel, shades
from ...measure import fit_law
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource

LOOKS: dict[incremental.Flow, dict[str, Any]] = {
    "logit": {"color": BLUE, "marker": "o"},
    "preconditioned": {"color": ORANGE, "marker": "s"},
}
ONES = Groups((1, 1, 1))
GROWTH_POINTS = 500
# (spans, importance, heads) at one length, so that one program serves all.
CASES = (
    ((1, 1, 1), 1.3, 3),
    ((1, 1, 1), 2.5, 3),
    ((2, 2, 2), 1.7, 2),
    ((2, 2, 2), 1.7, 8),
    ((4, 4, 4), 1.7, 3),
    ((4, 2, 1), 1.5, 4),
    ((1, 1, 2), 2.0, 4),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    groups: Groups = ONES
    heads: int = 3
    scales: tuple[float, ...] = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
    seeds: int = 4
    until: float = 1500.0
    points: int = 1200
    smallest: float = 1e-60
    """The scale down to which growth is followed by its linear equation."""
    cases: tuple[tuple[tuple[int, ...], float, int], ...] = CASES
    length: int = 12
    """Of the cases."""
    late: float = 3e4


def make(settings: Settings, source: RunSource) -> Outcome:
    escapes, curves, grown, cases = [], {}, {}, []
    for i, flow in enumerate(LOOKS):
        source(f"{flow} flow", i / 2)
        table, curves[flow] = escape_table(flow, settings)
        escapes.append(table)
        grown[flow] = growth_table(flow, settings)
        source(f"{flow} flow, other groups", i / 2 + 0.25)
        cases += [case(flow, *one, settings) for one in settings.cases]
    escape, growth, other = (
        pd.concat(escapes, ignore_index=True),
        pd.concat(grown.values(), ignore_index=True),
        pd.DataFrame(cases),
    )
    loss = pd.concat(curves.values(), ignore_index=True)
    laws = []
    for flow in LOOKS:
        rows = escape[(escape["flow"] == flow) & (escape["scale"] > 0)]
        law = fit_law(rows, y="second", x=["log_inverse_scale"])
        laws.append(Comparison(f"second stage, {flow} flow", law))
    return Outcome(
        tables={"escape": escape, "growth": growth, "cases": other, "curves": loss},
        plot=draw(escape, growth, other, loss, settings),
        laws=laws,
        checks=[c for flow in LOOKS for c in checks_of(flow, escape, growth, other, settings)],
    )


def escape_table(flow: incremental.Flow, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The time of each stage for every initial scale and seed, the last one 0; and the losses of the first seed."""
    times = np.append(0, np.geomspace(0.05, settings.until, settings.points))
    scales = np.append(np.repeat(settings.scales, settings.seeds), 0.0)
    seeds = np.append(np.tile(np.arange(settings.seeds), len(settings.scales)), 0)
    path = incremental.trajectory(settings.groups, times, settings.heads, None, flow, scale=scales, seed=seeds)
    stages = incremental.stage_times(path, incremental.plateaus(settings.groups, settings.heads))
    with np.errstate(divide="ignore"):
        logs = -np.log(scales)
    table = pd.DataFrame({"flow": flow, "scale": scales, "seed": seeds, "log_inverse_scale": logs})
    table["first"], table["second"] = stages[:, 0], stages[:, 1]
    same = bool((path.attention[-1] == path.attention[-1][:, :1]).all())
    table["identical"] = [False] * (len(table) - 1) + [same]
    first = [
        pd.DataFrame({"flow": flow, "scale": s, "time": times, "loss": row})
        for s, k, row in zip(scales, seeds, path.loss, strict=True)
        if k == 0
    ]
    return table, pd.concat(first, ignore_index=True)


def growth_table(flow: incremental.Flow, settings: Settings) -> pd.DataFrame:
    """The growth of an infinitesimal difference, until the smallest scale would be of order 1."""
    factor = incremental.escape_factor(settings.groups, settings.groups.window, settings.heads, flow)
    end = 1.3 * factor * np.log(settings.smallest) ** 2
    grown = incremental.growth(settings.groups, np.geomspace(0.05, end, GROWTH_POINTS), settings.heads, None, flow)
    formula = incremental.cooperation(settings.groups, settings.groups.window, settings.heads, grown.time, flow)
    columns = {"flow": flow, "time": grown.time, "log_growth": grown.log, "rate": grown.rate, "predicted_rate": formula.rate}
    return pd.DataFrame(columns)


def case(flow: incremental.Flow, spans: tuple[int, ...], importance: float, heads: int, settings: Settings) -> dict[str, Any]:
    """The escape factor of other groups: from the slope of the growth against the root of time, and as derived."""
    groups = Groups(spans, importance)
    grown = incremental.growth(
        groups, np.geomspace(settings.late / 4, settings.late, GROWTH_POINTS), heads, settings.length, flow
    )
    slope = (grown.log[-1] - grown.log[0]) / (np.sqrt(grown.time[-1]) - np.sqrt(grown.time[0]))
    return {
        "flow": flow,
        "spans": str(spans),
        "importance": importance,
        "heads": heads,
        "length": settings.length,
        "factor": float(1 / slope**2),
        "predicted": incremental.escape_factor(groups, settings.length, heads, flow),
    }


def slope_of(rows: pd.DataFrame, least: float = 9.0) -> float:
    """Of the root of the second stage's time against log(1/s), for scales of 1e-4 and below."""
    small = rows[np.isfinite(rows["log_inverse_scale"]) & (rows["log_inverse_scale"] > least)]
    return float(np.polyfit(small["log_inverse_scale"], np.sqrt(small["second"]), 1)[0])


def checks_of(
    flow: incremental.Flow, escape: pd.DataFrame, growth: pd.DataFrame, cases: pd.DataFrame, settings: Settings
) -> list[Check]:
    rows, grown, other = (t[t["flow"] == flow] for t in (escape, growth, cases))
    factor = incremental.escape_factor(settings.groups, settings.groups.window, settings.heads, flow)
    parted = rows[rows["scale"] > 0]
    means = parted.groupby("scale")["second"].mean().sort_index(ascending=False).to_numpy()
    steps = np.diff(means)
    zero = rows[rows["scale"] == 0].iloc[0]
    first = parted[parted["scale"] < 1e-3]["first"]
    ratio = other["factor"] / other["predicted"]
    slope = slope_of(rows) / np.sqrt(factor)
    last = float((grown["rate"] / grown["predicted_rate"]).iloc[-1])
    return [
        Check(
            f"{flow} flow: slope of √t₂ against log(1/s), over the derived one",
            slope,
            None,
            bool(abs(slope - 1) < 0.1),
            f"1 within 10%; derived √C = {np.sqrt(factor):.4f}",
        ),
        Check(
            f"{flow} flow: delay of the last step to a smaller scale over that of the first",
            float(steps[-1] / steps[0]),
            None,
            bool((np.diff(steps) > 0).all()),
            "1 if t₂ were logarithmic; every delay longer than the one before",
        ),
        Check(
            f"{flow} flow: growth rate over the derived one at 1/s = {1 / settings.smallest:.0e}",
            last,
            None,
            bool(abs(last - 1) < 0.02),
            "within 2% of 1",
        ),
        Check(
            f"{flow} flow: escape factor over the derived one, other groups and numbers of heads",
            [float(ratio.min()), float(ratio.max())],
            None,
            bool((np.abs(ratio - 1) < 0.1).all()),
            "within 10% of 1",
        ),
        Check(
            f"{flow} flow: spread of the first stage's time over scales and seeds",
            float(first.max() / first.min() - 1),
            None,
            bool(first.max() / first.min() < 1.01),
            "below 1% for scales below 1e-3",
        ),
        Check(
            f"{flow} flow: identical heads stay so and have no second stage",
            bool(zero["identical"]) and bool(np.isnan(zero["second"])),
            None,
            bool(zero["identical"]) and bool(np.isnan(zero["second"])),
            "true, bit for bit",
        ),
    ]


def draw(escape: pd.DataFrame, growth: pd.DataFrame, cases: pd.DataFrame, loss: pd.DataFrame, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 5.0), layout="constrained")
    (a, b), (c, d) = plot.subplots(2, 2)
    curves(a, loss[loss["flow"] == "logit"], settings)
    panel(a, "a", "a smaller initial scale $s$ (logit flow)")
    roots(b, escape, growth, settings)
    panel(b, "b", r"the second stage grows as $\log^2(1/s)$")
    for flow, look in LOOKS.items():
        rows = growth[growth["flow"] == flow]
        c.plot(rows["time"], rows["rate"], color=look["color"])
        late = rows[rows["time"] > 3]
        c.plot(late["time"], late["predicted_rate"], color="black", ls="--", lw=0.9)
    c.set(xscale="log", yscale="log", xlabel="flow time $t$", ylabel="growth rate of differences", ylim=(3e-3, 4))
    key(
        c,
        [(f"{flow} flow", {"color": look["color"]}) for flow, look in LOOKS.items()]
        + [("derived, on the plateau", {"color": "black", "ls": "--", "lw": 0.9})],
        loc="upper right",
    )
    panel(c, "c", r"on the plateau differences grow at $r/\sqrt{t}$")
    for flow, look in LOOKS.items():
        rows = cases[cases["flow"] == flow]
        d.plot(rows["predicted"], rows["factor"], ls="", mec="white", mew=0.6, ms=6.5, label=f"{flow} flow", **look)
    ends = np.array([cases["predicted"].min() / 1.6, cases["predicted"].max() * 1.6])
    d.plot(ends, ends, color=GREY, lw=0.9, zorder=1)
    d.set(xscale="log", yscale="log", xlabel="derived $C$", ylabel=r"$C$ in $t_2 = C\,\log^2(1/s)$, integrated")
    d.text(
        0.97,
        0.04,
        f"{len(settings.cases)} choices of spans, $m$ and heads,\n$T$ = {settings.length}",
        transform=d.transAxes,
        ha="right",
        fontsize=6.5,
        color=GREY,
    )
    d.legend(loc="upper left")
    panel(d, "d", "the constant, for other groups")
    return plot


def curves(axes: Axes, loss: pd.DataFrame, settings: Settings) -> None:
    for s, colour in zip(settings.scales, shades(len(settings.scales)), strict=True):
        rows = loss[loss["scale"] == s]
        axes.plot(rows["time"], rows["loss"], color=colour, lw=1.3)
    zero = loss[loss["scale"] == 0]
    axes.plot(zero["time"], zero["loss"], color=GREY, ls="--", lw=1.2)
    axes.set(xscale="log", xlim=(0.1, settings.until), xlabel="flow time $t$", ylabel="loss")
    entries = [
        (f"$10^{{{round(np.log10(s))}}}$", {"color": k})
        for s, k in zip(settings.scales, shades(len(settings.scales)), strict=True)
    ]
    key(axes, [*entries, ("0", {"ls": "--"})], title="$s$", loc="upper right", ncols=2)


def roots(axes: Axes, escape: pd.DataFrame, growth: pd.DataFrame, settings: Settings) -> None:
    """Dots: integrated. Lines: growth by its linear equation, from which the same offset is taken as from the dots."""
    for flow, look in LOOKS.items():
        rows = escape[(escape["flow"] == flow) & (escape["scale"] > 0)]
        grown = growth[growth["flow"] == flow]
        small = rows["log_inverse_scale"] > 9
        # What a difference has to grow to, beyond 1/s, to end the plateau: one number, from the integrated times.
        beyond = float(
            np.mean(np.interp(rows["second"][small], grown["time"], grown["log_growth"]) - rows["log_inverse_scale"][small])
        )
        line = grown[grown["log_growth"] > beyond + 3]
        axes.plot((line["log_growth"] - beyond) / np.log(10), np.sqrt(line["time"]), color=look["color"], lw=1.1, alpha=0.6)
        axes.plot(rows["log_inverse_scale"] / np.log(10), np.sqrt(rows["second"]), ls="", ms=3.5, mec="white", mew=0.4, **look)
        factor = incremental.escape_factor(settings.groups, settings.groups.window, settings.heads, flow)
        far = line.iloc[-1]
        x = np.array([10.0, -np.log10(settings.smallest)])
        y = np.sqrt(far["time"]) - np.sqrt(factor) * (far["log_growth"] - beyond - x * np.log(10))
        axes.plot(x, y, color="black", ls="--", lw=0.9)
    axes.set(xlabel=r"$\log_{10}(1/s)$", ylabel=r"$\sqrt{t_2}$", xlim=(0, -np.log10(settings.smallest)))
    axes.set_ylim(bottom=0)
    entries = [
        (f"{flow} flow, {settings.seeds} seeds", {"color": k["color"], "marker": k["marker"], "ls": "", "ms": 3.5})
        for flow, k in LOOKS.items()
    ]
    key(
        axes,
        [
            *entries,
            ("linear equation of a difference", {}),
            (r"derived slope $\sqrt{C}$", {"color": "black", "ls": "--", "lw": 0.9}),
        ],
        loc="upper left",
    )


FULL = Settings()
FIGURE = Figure(
    id="emergo/escape",
    title="incremental flow: the second stage grows as the squared logarithm of the initial scale, with its derived constant",
    presets={
        "paper": FULL,
        "laptop": FULL,
        "smoke": Settings(
            scales=(1e-4, 1e-6), seeds=2, until=300.0, points=100, smallest=1e-9, cases=CASES[:1], length=3, late=100.0
        ),
    },
    make=make,
    seconds={"paper": 55, "laptop": 55, "smoke": 20},
    caveat={"smoke": "few scales, short times"},
)
