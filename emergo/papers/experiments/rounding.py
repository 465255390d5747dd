"""The second stage of Fig. 4 left of yuksel2026 in 32 and 64 bits: initial scale or rounding.

Heads part when their difference has grown to order 1. In fp32, rounding creates differences between
heads too, or removes them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import GREY, PINK, outside
from ...measure import emergence
from ...models import MinimalAttention
from ...study import Study
from ...tasks import Groups, MarkovChain
from ...training import Precision
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, panels
from ..yuksel2026._chains import ChainRun, ChainRuns, paper, smoke
from ._shared import Look, entries

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
STYLES = {"fp64": "-", "fp32": ":"}


@dataclasses.dataclass(frozen=True)
class Settings:
    study: Study
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 1e-12, 0.0)

    def studies(self) -> dict[str, Study]:
        grid = {"scale": self.scales}
        return {each: self.study.replace(precision=each, grid=grid) for each in PRECISIONS}


def head_difference(run: ChainRun) -> np.ndarray:
    """Return the largest difference between heads in their attention to a lag, by evaluation."""
    return np.ptp(run.attention, axis=1).max(-1)


def scale_of(run: ChainRun) -> float:
    return getattr(run.config.model, "scale", np.nan)


def row_of(run: ChainRun) -> dict[str, Any]:
    """Date two stages: some head has half of its weight on the strongest group, and on the next."""
    largest = run.group_attention.max(1)
    difference = head_difference(run)
    scale = scale_of(run)
    first, second = (
        emergence(run["step"], largest[:, j], 0.5, "above") for j in run.groups.ranking[:2]
    )
    return {
        "method": run.config.optimizer.label,
        "precision": run.config.precision,
        "scale": scale,
        "seed": run.seed,
        "identical": bool((difference == 0).all()),
        "first": first.time,
        "second": second.time if second.state == "reached" else np.nan,
        "merged": bool(scale > 0 and difference[-1] == 0),
    }


def make(settings: Settings, source: RunSource) -> Outcome:
    found = source.runs(settings.studies(), curves=True)
    parts = {name: ChainRuns(runs) for name, runs in found.items()}
    table = pd.DataFrame([row_of(run) for runs in parts.values() for run in runs])
    checks = [*rounding_checks(table, parts["fp64"])] if len(parts) == 2 else []
    plot = draw(parts, table, settings.scales)
    summaries = {"second stage": summary(table)}
    return Outcome({"runs": table}, plot, checks=checks, summary=summaries)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the mean step of the second stage by scale; "never" if a run lacks it."""
    rows = []
    for precision in table["precision"].unique():
        row = {"": f"AdamW, {precision}"}
        for scale, step in second_stage(table, precision).items():
            row[f"s = {scale:g}"] = "never" if np.isnan(step) else step
        rows.append(row)
    return pd.DataFrame(rows)


def second_stage(table: pd.DataFrame, precision: str) -> pd.Series:
    """Return the mean step of the second stage by decreasing scale; NaN if a run lacks it."""
    rows = table[table["precision"] == precision]
    means = rows.groupby("scale")["second"].agg(lambda steps: steps.mean(skipna=False))
    return means.sort_index(ascending=False)


def growth_change(run: ChainRun) -> tuple[float, float]:
    """Compare the growth rates of head differences, later over earlier half of the plateau.

    Returns the measured ratio, and the ratio for a rate that falls as 1/√t. Such a rate makes the
    second stage of the flow late by log²(1/s).
    """
    log = np.log(np.maximum(head_difference(run), 1e-300))
    low = log[1:].min() + np.log(1e2)  # after the first steps
    high = np.log(1e-2)  # before the end of the plateau
    past = [int(np.argmax(log >= level)) for level in (low, (low + high) / 2, high)]
    if not 0 < past[0] < past[1] < past[2]:
        return np.nan, np.nan
    t = run["step"][past]
    rates = np.diff(log[past]) / np.diff(t)
    roots = np.sqrt(t)
    return rates[1] / rates[0], (roots[1] + roots[0]) / (roots[2] + roots[1])


def rounding_checks(table: pd.DataFrame, doubles: ChainRuns) -> Iterator[Check]:
    """Compare both precisions; `doubles`: the runs in 64 bits."""
    single, double = (second_stage(table, precision) for precision in PRECISIONS)
    scales = double.index[double.index > 0]
    least = scales.min()
    rate, falling = np.mean([growth_change(run) for run in doubles if scale_of(run) == least], 0)
    yield Check(
        f"AdamW, fp64, s = {least:g}: growth rate of the difference of heads, later over "
        f"earlier half of its way",
        rate,
        None,
        abs(rate - falling) < abs(rate - 1),
        f"nearer to {falling:.2f}, falling as 1/√t, than to 1: the log²(1/s) of the flow, "
        f"not log(1/s)",
    )
    times = double[scales].to_numpy()
    fits = [np.corrcoef(np.log(scales), values)[0, 1] ** 2 for values in (times, np.sqrt(times))]
    yield Check(
        "AdamW, fp64: R² of a line for t₂ and for √t₂ against log(1/s)",
        fits,
        None,
        max(fits) > 0.99,
        "one of them above 0.99",
    )
    ratios = {f"{s:g}": single[s] / double[s] for s in scales if s <= 1e-9}
    yield Check(
        "AdamW: second stage in fp32 over fp64, by scale",
        ratios,
        None,
        any(not np.isfinite(r) or abs(r - 1) > 0.02 for r in ratios.values()),
        "rounding counts from s = 1e-9 on: off 1 by over 0.02, or null where heads have become one",
    )
    zero = table[table["scale"] == 0]
    symmetric = zero["identical"].all() and zero["second"].isna().all()
    yield Check(
        "AdamW: scale 0, heads stay identical bit for bit in both precisions and have no "
        "second stage",
        symmetric,
        None,
        symmetric,
        "true",
    )


def draw(parts: Mapping[str, ChainRuns], table: pd.DataFrame, scales: tuple[float, ...]) -> Plot:
    titles = "a  excess loss, AdamW", "b  what tells heads apart", "c  the second stage"
    plot, (losses, differences, stages) = panels(2.45, *titles)
    colours = colours_of(scales)
    # The first seed with every scale.
    for precision, runs in parts.items():
        for run in [run for run in runs if run.seed == 0]:
            look: Look = {"color": colours[scale_of(run)], "ls": STYLES[precision]}
            losses.plot(run["step"][1:], run["kl_teacher"][1:], **look)
            differences.plot(run["step"][1:], head_difference(run)[1:], **look)
    losses.set(xscale="log", ylabel="excess loss (KL from the teacher)")
    differences.set(ylabel="difference between heads", ylim=(1e-17, 3))
    for axes in (losses, differences):
        axes.set(yscale="log", xlabel="step")
    marks = [(precision, {"ls": style}) for precision, style in STYLES.items()]
    outside(differences, "initial\nscale $s$", [*entries(colours), *marks])
    draw_second_stage(stages, table)
    return plot


def draw_second_stage(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the second stage against the scale, with a logarithmic and a squared logarithmic fit."""
    for precision, colour in (("fp64", PINK), ("fp32", GREY)):
        stage = second_stage(table, precision)
        stage = stage[stage.index > 0].dropna()
        x = -np.log10(stage.index.to_numpy(float))
        times = stage.to_numpy()
        axes.plot(x, times, "o", color=colour, label=f"AdamW, {precision}")
        if precision == "fp64" and len(stage) > 2:
            along = np.linspace(x.min(), x.max(), 50)
            for power, ls in ((1, "-"), (2, "--")):
                line = np.polyval(np.polyfit(x, times ** (1 / power), 1), along) ** power
                label = rf"$(a + b\,\log(1/s))^{power}$"
                axes.plot(along, line, color=PINK, lw=1, ls=ls, label=label)
    axes.set(xlabel=r"$\log_{10}(1/s)$", ylabel="step of the second stage")
    axes.set_ylim(0, 1.7 * axes.get_ylim()[1])  # with space for the legend
    axes.legend(loc="upper left")


CHAIN = MarkovChain(Groups((2, 2)), 10, generated=6)
TWO = MinimalAttention(heads=2)
SMALL = paper(TWO, CHAIN, batch=128, n_train=None, n_test=256, seeds=1, steps=800)
FIGURE = Figure(
    "emergo/rounding",
    "initial scale or rounding: what tells heads apart, and when they part, in 32 and in 64 bits",
    {
        "paper": Settings(paper(MinimalAttention(), seeds=3)),
        "laptop": Settings(SMALL),
        "smoke": Settings(smoke(TWO, seeds=1), scales=(1e-2, 1e-3, 1e-9, 0.0)),
    },
    make,
    {"paper": 60_000, "laptop": 35, "smoke": 15},
    curves=True,
)
