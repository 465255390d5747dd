"""The second stage of Fig. 4 left of yuksel2026 in 32 and 64 bits: initial scale or rounding.

Heads part when their difference has grown to order 1. In fp32, rounding creates differences between
heads too, or removes them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import GREEN, GREY, PINK, WIDTH, key, outside, panel, shades
from ...measure import emergence
from ...models import MinimalAttention
from ...study import Study
from ...tasks import Groups, MarkovChain
from ...training import Optimizer, Precision
from .._figure import Check, Figure, Outcome, Plot, RunSource
from ..yuksel2026._chains import ChainRun, ChainRuns, paper, smoke
from ._shared import Look

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
LOOKS: dict[str, Look] = {
    "adamw": {"color": PINK, "marker": "o"},
    "sgd": {"color": GREEN, "marker": "s"},
}
NAMES = {"adamw": "AdamW", "sgd": "SGD"}
Parts = Mapping[str, ChainRuns]  # by optimizer and precision


@dataclasses.dataclass(frozen=True)
class Settings:
    by_optimizer: tuple[Study, ...]
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 1e-12, 0.0)

    def studies(self) -> dict[str, Study]:
        studies = {}
        for study in self.by_optimizer:
            for precision in PRECISIONS:
                part = study.replace(precision=precision, grid={"scale": self.scales})
                studies[f"{part.base.optimizer.label} {part.base.precision}"] = part
        return studies


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
    methods = [study.base.optimizer.label for study in settings.by_optimizer]
    checks = []
    for method in methods:
        if all(f"{method} {precision}" in parts for precision in PRECISIONS):
            checks += rounding_checks(method, table, parts[f"{method} fp64"])
    plot = draw(parts, table, methods, settings.scales)
    summaries = {"second stage": summary(table)}
    return Outcome({"runs": table}, plot, checks=checks, summary=summaries)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the mean step of the second stage by scale; "never" if a run has none."""
    rows = []
    pairs = table[["method", "precision"]].drop_duplicates()
    for method, precision in pairs.itertuples(index=False):
        row = {"": f"{NAMES[method]}, {precision}"}
        for scale, step in second_stage(table, method, precision).items():
            row[f"s = {scale:g}"] = "never" if np.isnan(step) else step
        rows.append(row)
    return pd.DataFrame(rows)


def second_stage(table: pd.DataFrame, method: str, precision: str) -> pd.Series:
    """Return the mean step of the second stage by decreasing scale; NaN if a run has none."""
    rows = table[(table["method"] == method) & (table["precision"] == precision)]
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


def rounding_checks(method: str, table: pd.DataFrame, doubles: ChainRuns) -> list[Check]:
    """Check one optimizer; `doubles`: its runs in 64 bits."""
    name = NAMES[method]
    single, double = (second_stage(table, method, precision) for precision in PRECISIONS)
    scales = double.index[double.index > 0]
    least = scales.min()
    rate, falling = np.mean([growth_change(run) for run in doubles if scale_of(run) == least], 0)
    growth = (
        f"{name}, fp64, s = {least:g}: growth rate of the difference of heads, later over "
        f"earlier half of its way"
    )
    slower = (
        f"nearer to {falling:.2f}, falling as 1/√t, than to 1: the log²(1/s) of the flow, "
        f"not log(1/s)"
    )
    times = double[scales].to_numpy()
    fits = [np.corrcoef(np.log(scales), values)[0, 1] ** 2 for values in (times, np.sqrt(times))]
    lines = f"{name}, fp64: R² of a line for t₂ and for √t₂ against log(1/s)"
    ratios = {f"{s:g}": single[s] / double[s] for s in scales if s <= 1e-9}
    counts = any(not np.isfinite(r) or abs(r - 1) > 0.02 for r in ratios.values())
    rounded = (
        "rounding counts from s = 1e-9 on: off 1 by over 0.02, or null where heads have become one"
    )
    zero = table[(table["method"] == method) & (table["scale"] == 0)]
    symmetric = zero["identical"].all() and zero["second"].isna().all()
    alike = (
        f"{name}: scale 0, heads stay identical bit for bit in both precisions and have no "
        f"second stage"
    )
    return [
        Check(growth, rate, None, abs(rate - falling) < abs(rate - 1), slower),
        Check(lines, fits, None, max(fits) > 0.99, "one of them above 0.99"),
        Check(f"{name}: second stage in fp32 over fp64, by scale", ratios, None, counts, rounded),
        Check(alike, symmetric, None, symmetric, "true"),
    ]


def draw(parts: Parts, table: pd.DataFrame, methods: list[str], scales: tuple[float, ...]) -> Plot:
    several = len(methods) > 1
    colours = dict(zip(scales, shades(len(scales)), strict=True))
    rows, columns = (2, 2) if several else (1, 3)
    plot = Plot(figsize=(WIDTH, 2.45 * rows), layout="constrained")
    losses, *differences, stages = plot.subplots(rows, columns, squeeze=False).ravel()
    draw_over_steps(losses, parts, methods[0], colours, differences=False)
    losses.set(xscale="log", ylabel="excess loss (KL from the teacher)")
    panel(losses, "a", f"excess loss, {NAMES[methods[0]]}")
    for axes, method, letter in zip(differences, methods, "bc", strict=False):
        draw_over_steps(axes, parts, method, colours, differences=True)
        axes.set(ylabel="difference between heads", ylim=(1e-17, 3))
        panel(axes, letter, "what tells heads apart" + (f", {NAMES[method]}" if several else ""))
    powers = [f"$10^{{{round(np.log10(s))}}}$" if s else "0" for s in scales]
    marks = [(power, {"color": colours[s]}) for power, s in zip(powers, scales, strict=True)]
    marks += [("fp64", {"color": GREY}), ("fp32", {"color": GREY, "ls": ":"})]
    outside(differences[0], "initial\nscale $s$", marks)
    draw_second_stage(stages, table, methods)
    panel(stages, "bcd"[len(methods)], "the second stage")
    return plot


def draw_second_stage(axes: Axes, table: pd.DataFrame, methods: list[str]) -> None:
    """Draw the second stage against the scale, with a logarithmic and a squared logarithmic fit."""
    for method in methods:
        look = LOOKS[method]
        line: Look = {"color": look["color"], "lw": 1, "zorder": 1}
        for precision, fill in (("fp64", look["color"]), ("fp32", "white")):
            stage = second_stage(table, method, precision)
            stage = stage[stage.index > 0].dropna()
            x = -np.log10(stage.index.to_numpy(float))
            times = stage.to_numpy()
            axes.plot(x, times, ls="", mfc=fill, ms=5, **look)
            if precision == "fp64" and len(stage) > 2:
                along = np.linspace(x.min(), x.max(), 50)
                for power, ls in ((1, "-"), (2, "--")):
                    fit = np.polyfit(x, times ** (1 / power), 1)
                    axes.plot(along, np.polyval(fit, along) ** power, ls=ls, **line)
    axes.set(xlabel=r"$\log_{10}(1/s)$", ylabel="step of the second stage")
    space = 1.45 if len(methods) > 1 else 1.7  # for the legend
    axes.set_ylim(0, space * axes.get_ylim()[1])
    marks = [(f"{NAMES[method]}, fp64", LOOKS[method] | {"ls": ""}) for method in methods]
    marks += [
        ("fp32", {"marker": "o", "ls": "", "mfc": "white"}),
        (r"$a + b\,\log(1/s)$", {"lw": 1}),
        (r"$(a + b\,\log(1/s))^2$", {"lw": 1, "ls": "--"}),
    ]
    key(axes, marks, loc="upper left", fontsize=6.5)


def draw_over_steps(
    axes: Axes, parts: Parts, method: str, colours: Mapping[float, Any], differences: bool
) -> None:
    """Draw head differences, or the KL from the teacher, of the first seed with every scale."""
    for precision, look in (("fp32", {"ls": ":", "lw": 1.6}), ("fp64", {"ls": "-", "lw": 1.4})):
        for run in parts.get(f"{method} {precision}", ()):
            if run.seed == 0:
                values = (head_difference(run) if differences else run["kl_teacher"])[1:]
                positive = np.where(values > 0, values, np.nan)
                axes.plot(run["step"][1:], positive, color=colours[scale_of(run)], **look)
    axes.set(yscale="log", xlabel="step")


CHAIN = MarkovChain(Groups((2, 2)), 10, generated=6)
TWO = MinimalAttention(heads=2)
SMALL = paper(TWO, CHAIN, batch=128, n_train=None, n_test=256, seeds=1, steps=800)
PRESETS = {
    "paper": Settings((paper(MinimalAttention(), seeds=3),)),
    "laptop": Settings((SMALL, SMALL.replace(optimizer=Optimizer("sgd", 20.0), steps=1400))),
    "smoke": Settings((smoke(TWO, seeds=1),), scales=(1e-2, 1e-3, 1e-9, 0.0)),
}
TITLE = (
    "initial scale or rounding: what tells heads apart, and when they part, in 32 and in 64 bits"
)
SECONDS = {"paper": 60_000, "laptop": 81, "smoke": 15}
FIGURE = Figure("emergo/rounding", TITLE, PRESETS, make, SECONDS, curves=True)
