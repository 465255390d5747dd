"""Initial scale or rounding: Fig. 4 left of yuksel2026 in 32 and 64 bits.

Heads part when what tells them apart has grown to order 1. In fp32 rounding tells them apart too, or makes them the same.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import GREEN, GREY, PINK, WIDTH, key, outside, panel, shades
from ...engine import Optimizer, Precision, Result
from ...measure import emergence
from ...models import MinimalAttention
from ...studies import Study, provenance_of
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome
from .._source import RunSource
from ..yuksel2026._chains import ChainRuns, Curves, paper, sizes_of, smoke

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
LOOKS: dict[str, dict[str, Any]] = {"adamw": {"color": PINK, "marker": "o"}, "sgd": {"color": GREEN, "marker": "s"}}
NAMES = {"adamw": "AdamW", "sgd": "SGD"}
Parts = Mapping[str, ChainRuns]
"""By optimizer and precision."""


@dataclasses.dataclass(frozen=True)
class Settings:
    studies: tuple[Study, ...]
    """One per optimizer."""
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 1e-12, 0.0)


def studies(settings: Settings) -> dict[str, Study]:
    """Named by optimizer and precision."""
    both = [study.replace(precision=p, grid={"scale": settings.scales}) for study in settings.studies for p in PRECISIONS]
    return {f"{study.base.optimizer.label} {study.base.precision}": study for study in both}


def head_difference(curve: Curves) -> np.ndarray:
    """The largest difference between two heads in their attention to a lag, one number per evaluation."""
    return np.ptp(curve["attention_by_lag"][:, 0], axis=1).max(-1)


def scale_of(result: Result) -> float:
    return getattr(result.run.config.model, "scale", np.nan)


def rows_of(runs: ChainRuns) -> list[dict[str, Any]]:
    """One row per run, with two stages: some head has half of its weight on the strongest group, and on the next one."""
    rows, groups = [], runs.groups.ranking[:2]
    for result, curve in zip(runs.results, runs.curves, strict=True):
        largest, difference = runs.group_attention(curve).max(1), head_difference(curve)
        first, second = (emergence(curve["step"], largest[:, j], 0.5, "above") for j in groups)
        config = result.run.config
        row = {"method": config.optimizer.label, "precision": config.precision, "scale": scale_of(result)}
        row |= {"seed": result.run.seed, "identical": bool((difference == 0).all())}
        row |= {"first": first.time, "second": second.time if second.state == "reached" else np.nan}
        rows.append(row | {"merged": bool(scale_of(result) > 0 and difference[-1] == 0)})
    return rows


def make(settings: Settings, source: RunSource) -> Outcome:
    trained = source.runs(studies(settings), curves=True)
    parts = {name: ChainRuns(runs) for name, runs in trained.items()}
    table = pd.DataFrame([row for runs in parts.values() for row in rows_of(runs)])
    methods = [study.base.optimizer.label for study in settings.studies]
    whole = [method for method in methods if all(f"{method} {precision}" in parts for precision in PRECISIONS)]
    return Outcome(
        tables={"runs": table},
        plot=draw(parts, table, methods, settings.scales),
        checks=[check for method in whole for check in rounding_checks(method, table, parts[f"{method} fp64"])],
        precision="fp32 and fp64",
        device=provenance_of(trained),
    )


def second_stage(table: pd.DataFrame, method: str, precision: str) -> pd.Series:
    """The mean step of the second stage by scale, the largest first; NaN where a run has none."""
    rows = table[(table["method"] == method) & (table["precision"] == precision)]
    return rows.groupby("scale")["second"].agg(lambda s: s.mean(skipna=False)).sort_index(ascending=False)


def growth_change(curve: Curves) -> tuple[float, float]:
    """How the rate changes at which heads come apart on the plateau: that of the later half of the growth over that of the
    earlier, as measured, and if it fell as 1/√t, which is what makes the second stage of the flow late by log²(1/s)."""
    step, log = curve["step"].astype(float), np.log(np.maximum(head_difference(curve), 1e-300))
    low, high = log[1:].min() + np.log(1e2), np.log(1e-2)  # past the first steps, and short of the end
    past = [int(np.argmax(log >= level)) for level in (low, (low + high) / 2, high)]
    if not 0 < past[0] < past[1] < past[2]:
        return np.nan, np.nan
    t, grown = step[past], log[past]
    rates, roots = np.diff(grown) / np.diff(t), np.sqrt(t)
    return float(rates[1] / rates[0]), float((roots[1] + roots[0]) / (roots[2] + roots[1]))


def rounding_checks(method: str, table: pd.DataFrame, doubles: ChainRuns) -> list[Check]:
    """`doubles`: the runs in 64 bits."""
    name = NAMES[method]
    single, double = (second_stage(table, method, precision) for precision in PRECISIONS)
    scales = double.index[double.index > 0]
    times, logs = double[scales].to_numpy(), np.log(scales)
    fits = [float(np.corrcoef(logs, values)[0, 1] ** 2) for values in (times, np.sqrt(times))]
    ratios = {f"{s:g}": float(single[s] / double[s]) for s in scales if s <= 1e-9}
    zero = table[(table["method"] == method) & (table["scale"] == 0)]
    symmetric = bool(zero["identical"].all() and zero["second"].isna().all())
    pairs = zip(doubles.results, doubles.curves, strict=True)
    rate, falling = np.mean([growth_change(curve) for result, curve in pairs if scale_of(result) == scales.min()], 0)
    return [
        Check(
            f"{name}, fp64, s = {scales.min():g}: growth rate of the difference of heads, later over earlier half of its way",
            float(rate),
            None,
            bool(abs(rate - falling) < abs(rate - 1)),
            f"nearer to {falling:.2f}, falling as 1/√t, than to 1: the log²(1/s) of the flow, not log(1/s)",
        ),
        Check(
            f"{name}, fp64: R² of a line for t₂ and for √t₂ against log(1/s)",
            fits,
            None,
            bool(max(fits) > 0.99),
            "one of them above 0.99",
        ),
        Check(
            f"{name}: second stage in fp32 over fp64, by scale",
            ratios,
            None,
            bool(any(not np.isfinite(r) or abs(r - 1) > 0.02 for r in ratios.values())),
            "rounding counts from s = 1e-9 on: off 1 by over 0.02, or null where heads have become one",
        ),
        Check(
            f"{name}: scale 0, heads stay identical bit for bit in both precisions and have no second stage",
            symmetric,
            None,
            symmetric,
            "true",
        ),
    ]


def draw(parts: Parts, table: pd.DataFrame, methods: list[str], scales: tuple[float, ...]) -> Plot:
    several = len(methods) > 1
    rows, columns = (2, 2) if several else (1, 3)
    plot = Plot(figsize=(WIDTH, 2.45 * rows), layout="constrained")
    losses, *differences, stages = plot.subplots(rows, columns, squeeze=False).ravel()
    draw_over_steps(losses, parts, methods[0], scales, differences=False)
    losses.set(xscale="log", ylabel="excess loss (KL from the teacher)")
    panel(losses, "a", f"excess loss, {NAMES[methods[0]]}")
    for axes, method, letter in zip(differences, methods, "bc", strict=False):
        draw_over_steps(axes, parts, method, scales, differences=True)
        axes.set(ylabel="difference between heads", ylim=(1e-17, 3))
        panel(axes, letter, "what tells heads apart" + (f", {NAMES[method]}" if several else ""))
    entries = [(_scale_name(s), {"color": k}) for s, k in zip(scales, shades(len(scales)), strict=True)]
    outside(differences[0], "initial\nscale $s$", [*entries, ("fp64", {"color": GREY}), ("fp32", {"color": GREY, "ls": ":"})])
    draw_second_stage(stages, table, methods)
    panel(stages, "bcd"[len(methods)], "the second stage")
    return plot


def draw_second_stage(axes: Axes, table: pd.DataFrame, methods: list[str]) -> None:
    """Against the scale, with two fits to the dots: logarithmic, and the square of that."""
    for method in methods:
        look = LOOKS[method]
        for precision, fill in (("fp64", look["color"]), ("fp32", "white")):
            stage = second_stage(table, method, precision)
            stage = stage[stage.index > 0].dropna()
            x, times = -np.log10(stage.index.to_numpy(float)), stage.to_numpy()
            axes.plot(x, times, ls="", mfc=fill, ms=5, **look)
            if precision == "fp64" and len(stage) > 2:
                along = np.linspace(x.min(), x.max(), 50)
                for power, ls in ((1, "-"), (2, "--")):
                    line = np.polyfit(x, times ** (1 / power), 1)
                    axes.plot(along, np.polyval(line, along) ** power, color=look["color"], lw=1, ls=ls, zorder=1)
    axes.set(xlabel=r"$\log_{10}(1/s)$", ylabel="step of the second stage")
    axes.set_ylim(0, (1.45 if len(methods) > 1 else 1.7) * axes.get_ylim()[1])  # room for the legend
    marks = [(f"{NAMES[method]}, fp64", LOOKS[method] | {"ls": ""}) for method in methods]
    marks += [("fp32", {"marker": "o", "ls": "", "mfc": "white"}), (r"$a + b\,\log(1/s)$", {"lw": 1})]
    key(axes, [*marks, (r"$(a + b\,\log(1/s))^2$", {"lw": 1, "ls": "--"})], loc="upper left", fontsize=6.5)


def draw_over_steps(axes: Axes, parts: Parts, method: str, scales: tuple[float, ...], differences: bool) -> None:
    """The first seed with every scale: what tells heads apart, or the KL from the teacher."""
    colours = dict(zip(scales, shades(len(scales)), strict=True))
    for precision, look in (("fp32", {"ls": ":", "lw": 1.6}), ("fp64", {"ls": "-", "lw": 1.4})):
        runs = parts.get(f"{method} {precision}")
        for result, curve in zip(runs.results, runs.curves, strict=True) if runs else ():
            if result.run.seed == 0:
                values = head_difference(curve) if differences else curve["kl_teacher"]
                positive = np.where(values > 0, values, np.nan)
                axes.plot(curve["step"][1:], positive[1:], color=colours[scale_of(result)], **look)
    axes.set(yscale="log", xlabel="step")


def _scale_name(scale: float) -> str:
    return "0" if scale == 0 else f"$10^{{{round(np.log10(scale))}}}$"


CHAIN = MarkovChain(Groups((2, 2)), 10, generated=6)
SMALL = paper(MinimalAttention(heads=2), CHAIN, batch=128, n_train=None, n_test=256, seeds=1, steps=800)
TINY = smoke(MinimalAttention(heads=2), seeds=1)
FIGURE = Figure(
    id="emergo/rounding",
    title="initial scale or rounding: what tells heads apart, and when they part, in 32 and in 64 bits",
    presets={
        "paper": Settings((paper(MinimalAttention(), seeds=3),)),
        "laptop": Settings((SMALL, SMALL.replace(optimizer=Optimizer("sgd", 20.0), steps=1400))),
        "smoke": Settings((TINY,), scales=(1e-2, 1e-3, 1e-9, 0.0)),
    },
    make=make,
    seconds={"paper": 60_000, "laptop": 81, "smoke": 15},
    caveat={
        "laptop": f"two heads, {sizes_of(SMALL)} with AdamW, and 1,400 steps of SGD",
        "smoke": f"two heads, {sizes_of(TINY)}",
    },
    studies=studies,
    curves=True,
)
