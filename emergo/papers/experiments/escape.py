"""When heads part: the second stage of the incremental flow as a function of the initial scale.

The figure compares the integrated flow with the derived growth of differences between heads.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLACK, BLUE, ORANGE, key
from ...measure import fit_law
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, lines_by, panels
from ._shared import DOT, Look, entries

COLOURS: dict[incremental.Flow, str] = {"logit": BLUE, "preconditioned": ORANGE}
DERIVED: Look = {"color": BLACK, "ls": "--", "lw": 0.9}
GROUPS = Groups((1, 1, 1))
HEADS = 3
GROWTH_POINTS = 500
Tables = dict[str, pd.DataFrame]
# (spans, importance, heads). All have one length, so that one program serves all.
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
    """Settings of the figure.

    - `smallest`: the scale down to which growth is followed, by its linear equation.
    - `length`, `late`: the length of the cases, and the time until which they are followed.
    """

    scales: tuple[float, ...] = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
    seeds: int = 4
    until: float = 1500.0
    points: int = 1200
    smallest: float = 1e-60
    cases: tuple[tuple[tuple[int, ...], float, int], ...] = CASES
    length: int = 12
    late: float = 3e4


def factor(flow: incremental.Flow) -> float:
    """Return the derived C in t₂ = C log²(1/s)."""
    return incremental.escape_factor(GROUPS, GROUPS.window, HEADS, flow)


def make(settings: Settings, source: RunSource) -> Outcome:
    flows = {}
    laws = []
    checks = []
    for i, flow in enumerate(COLOURS):
        source.report(f"{flow} flow", i / 2)
        escape, curves = escape_tables(flow, settings)
        flows[flow] = {"escape": escape, "growth": growth_table(flow, settings), "curves": curves}
        source.report(f"{flow} flow, other groups", i / 2 + 0.25)
        flows[flow]["cases"] = pd.DataFrame([case(flow, *one, settings) for one in settings.cases])
        law = fit_law(escape[escape["scale"] > 0], y="second", x=["log_inverse_scale"])
        laws.append(Comparison(f"second stage, {flow} flow", law))
        checks += [
            dataclasses.replace(check, name=f"{flow} flow: {check.name}")
            for check in checks_of(flow, flows[flow], settings)
        ]
    tables = {
        name: pd.concat([each[name] for each in flows.values()], ignore_index=True)
        for name in ("escape", "growth", "cases", "curves")
    }
    return Outcome(tables, draw(flows, settings), laws, checks)


def escape_tables(flow: incremental.Flow, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Integrate the flow from every initial scale and seed, and once from scale 0 (last row).

    Returns the time of each stage, and the losses of the first seed.
    """
    times = np.append(0, np.geomspace(0.05, settings.until, settings.points))
    scales = np.append(np.repeat(settings.scales, settings.seeds), 0.0)
    seeds = np.append(np.tile(np.arange(settings.seeds), len(settings.scales)), 0)
    path = incremental.trajectory(GROUPS, times, HEADS, None, flow, scale=scales, seed=seeds)
    stages = incremental.stage_times(path, incremental.plateaus(GROUPS, HEADS))
    with np.errstate(divide="ignore"):
        logs = -np.log(scales)
    table = pd.DataFrame({"flow": flow, "scale": scales, "seed": seeds, "log_inverse_scale": logs})
    table["first"] = stages[:, 0]
    table["second"] = stages[:, 1]
    heads = path.attention
    table["identical"] = (heads == heads[:, :, :1]).all((1, 2, 3)) & (scales == 0)
    first = np.flatnonzero(seeds == 0)
    curves = {
        "flow": flow,
        "scale": scales[first].repeat(len(times)),
        "time": np.tile(times, len(first)),
        "loss": path.loss[first].ravel(),
    }
    return table, pd.DataFrame(curves)


def growth_table(flow: incremental.Flow, settings: Settings) -> pd.DataFrame:
    """Follow an infinitesimal difference, until the smallest scale would be of order 1."""
    end = 1.3 * factor(flow) * np.log(settings.smallest) ** 2
    grown = incremental.growth(GROUPS, np.geomspace(0.05, end, GROWTH_POINTS), HEADS, None, flow)
    formula = incremental.cooperation(GROUPS, GROUPS.window, HEADS, grown.time, flow)
    columns = {"flow": flow, "time": grown.time, "log_growth": grown.log, "rate": grown.rate}
    return pd.DataFrame(columns | {"predicted_rate": formula.rate})


def case(
    flow: incremental.Flow,
    spans: tuple[int, ...],
    importance: float,
    heads: int,
    settings: Settings,
) -> dict[str, Any]:
    """Compute the escape factor of other groups.

    It is measured as the slope of the growth against the square root of time, and derived.
    """
    groups = Groups(spans, importance)
    length = settings.length
    times = np.geomspace(settings.late / 4, settings.late, GROWTH_POINTS)
    grown = incremental.growth(groups, times, heads, length, flow)
    slope = (grown.log[-1] - grown.log[0]) / (np.sqrt(grown.time[-1]) - np.sqrt(grown.time[0]))
    return {
        "flow": flow,
        "spans": str(spans),
        "importance": importance,
        "heads": heads,
        "length": length,
        "factor": float(1 / slope**2),
        "predicted": incremental.escape_factor(groups, length, heads, flow),
    }


def checks_of(flow: incremental.Flow, tables: Tables, settings: Settings) -> Iterator[Check]:
    parted = tables["escape"][:-1]
    zero = tables["escape"].iloc[-1]
    small = parted[parted["log_inverse_scale"] > 9]
    root = np.sqrt(factor(flow))
    slope = np.polyfit(small["log_inverse_scale"], np.sqrt(small["second"]), 1)[0] / root
    delays = np.diff(parted.groupby("scale")["second"].mean().sort_index(ascending=False))
    last = (tables["growth"]["rate"] / tables["growth"]["predicted_rate"]).iloc[-1]
    ratio = tables["cases"]["factor"] / tables["cases"]["predicted"]
    first = parted[parted["scale"] < 1e-3]["first"]
    spread = first.max() / first.min() - 1
    stuck = zero["identical"] and np.isnan(zero["second"])
    yield Check(
        "slope of √t₂ against log(1/s), over the derived one",
        slope,
        None,
        abs(slope - 1) < 0.1,
        f"1 within 10%; derived √C = {root:.4f}",
    )
    yield Check(
        "delay of the last step to a smaller scale over that of the first",
        delays[-1] / delays[0],
        None,
        (np.diff(delays) > 0).all(),
        "1 if t₂ were logarithmic; every delay longer than the one before",
    )
    yield Check(
        f"growth rate over the derived one at 1/s = {1 / settings.smallest:.0e}",
        last,
        None,
        abs(last - 1) < 0.02,
        "within 2% of 1",
    )
    near = (abs(ratio - 1) < 0.1).all()
    yield Check(
        "escape factor over the derived one, other groups and numbers of heads",
        [ratio.min(), ratio.max()],
        None,
        near,
        "within 10% of 1",
    )
    yield Check(
        "spread of the first stage's time over scales and seeds",
        spread,
        None,
        spread < 0.01,
        "below 1% for scales below 1e-3",
    )
    yield Check(
        "identical heads stay so and have no second stage", stuck, None, stuck, "true, bit for bit"
    )


def draw(flows: Mapping[incremental.Flow, Tables], settings: Settings) -> Plot:
    titles = (
        *(
            "a  a smaller initial scale $s$ (logit flow)",
            r"b  the second stage grows as $\log^2(1/s)$",
        ),
        *(
            r"c  on the plateau differences grow at $r/\sqrt{t}$",
            "d  the constant, for other groups",
        ),
    )
    plot, (a, b, c, d) = panels(5.0, *titles, rows=2)
    draw_curves(a, flows["logit"]["curves"], settings)
    draw_roots(b, flows, settings)
    for flow, colour in COLOURS.items():
        growth = flows[flow]["growth"]
        late = growth[growth["time"] > 3]
        c.plot(growth["time"], growth["rate"], color=colour)
        c.plot(late["time"], late["predicted_rate"], **DERIVED)
        cases = flows[flow]["cases"]
        d.plot(cases["predicted"], cases["factor"], color=colour, **DOT)
    for axes in (c, d):
        axes.set(xscale="log", yscale="log")
    c.set(xlabel="flow time $t$", ylabel="growth rate of differences", ylim=(3e-3, 4))
    flow_colours = {f"{flow} flow": colour for flow, colour in COLOURS.items()}
    key(c, [*entries(flow_colours), ("derived, on the plateau", DERIVED)], loc="upper right")
    d.axline((1, 1), (2, 2), **DERIVED)
    d.set(xlabel="derived $C$", ylabel=r"$C$ in $t_2 = C\,\log^2(1/s)$, integrated")
    return plot


def draw_curves(axes: Axes, loss: pd.DataFrame, settings: Settings) -> None:
    """Draw the loss from each initial scale."""
    colours = colours_of(loss["scale"])
    lines_by(axes, loss, "scale", "time", "loss", colours)
    axes.set(xscale="log", xlim=(0.1, settings.until), xlabel="flow time $t$", ylabel="loss")
    key(axes, entries(colours), title="$s$", loc="upper right", ncols=2)


def draw_roots(axes: Axes, flows: Mapping[incremental.Flow, Tables], settings: Settings) -> None:
    """Draw √t₂ against the scale: integrated (dots), and from the linear equation (lines)."""
    furthest = -np.log10(settings.smallest)
    for flow, colour in COLOURS.items():
        rows = flows[flow]["escape"][:-1]
        grown = flows[flow]["growth"]
        small = rows[rows["log_inverse_scale"] > 9]
        # A difference has to grow by a constant factor more than 1/s to end the plateau. This
        # constant is estimated from the integrated times and subtracted from the line.
        logs = np.interp(small["second"], grown["time"], grown["log_growth"])
        beyond = logs.mean() - small["log_inverse_scale"].mean()
        line = grown[grown["log_growth"] > beyond + 3]
        decades = (line["log_growth"] - beyond) / np.log(10)
        axes.plot(decades, np.sqrt(line["time"]), color=colour, lw=1.1)
        decades = rows["log_inverse_scale"] / np.log(10)
        axes.plot(decades, np.sqrt(rows["second"]), color=colour, **DOT)
        far = line.iloc[-1]
        x = np.array([10.0, furthest])
        less = np.sqrt(factor(flow)) * (far["log_growth"] - beyond - x * np.log(10))
        axes.plot(x, np.sqrt(far["time"]) - less, **DERIVED)
    axes.set(xlabel=r"$\log_{10}(1/s)$", ylabel=r"$\sqrt{t_2}$", xlim=(0, furthest))
    marks = [("integrated", DOT), ("linear equation of a difference", {})]
    key(axes, [*marks, (r"derived slope $\sqrt{C}$", DERIVED)], loc="upper left")


SMOKE = Settings(
    scales=(1e-4, 1e-6),
    seeds=2,
    until=300.0,
    points=100,
    smallest=1e-9,
    cases=CASES[:1],
    length=3,
    late=100.0,
)
FIGURE = Figure(
    "emergo/escape",
    "incremental flow: the second stage grows as the squared logarithm of the initial scale, "
    "with its derived constant",
    {"paper": Settings(), "smoke": SMOKE},
    make,
    {"paper": 55, "smoke": 20},
)
