"""Initial scale or rounding: Fig. 4 left of yuksel2026 in 32 and 64 bits.

Heads part when what tells them apart has grown to order 1. In fp32 rounding tells them apart too, or makes them the same.
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import GREEN, GREY, PINK, WIDTH, key, outside, panel, shades
from ...engine import Optimizer, Precision, Run
from ...measure import emergence, group_mass
from ...studies import Result, provenance_of
from ...tasks import Groups, MarkovChain
from .._figure import Check, Figure, Outcome
from .._work import Work
from ..yuksel2026._chains import ADAMW, Training, smoke

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
LOOKS: dict[str, dict[str, Any]] = {"adamw": {"color": PINK, "marker": "o"}, "sgd": {"color": GREEN, "marker": "s"}}
NAMES = {"adamw": "AdamW", "sgd": "SGD"}


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    """Its optimizer and steps stand for those below."""
    optimizers: tuple[tuple[Optimizer, int], ...]
    """And for how many steps."""
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 1e-12, 0.0)
    heads: int = 3

    def parts(self) -> dict[str, list[Run]]:
        found = {}
        for optimizer, steps in self.optimizers:
            training = dataclasses.replace(self.training, optimizer=optimizer, steps=steps)
            for precision in PRECISIONS:
                runs = [run for s in self.scales for run in training.runs(training.minimal(heads=self.heads, scale=s))]
                kept = [dataclasses.replace(run, config=dataclasses.replace(run.config, precision=precision)) for run in runs]
                found[f"{optimizer.method} {precision}"] = kept
        return found


def runs(settings: Settings) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def apart(result: Result) -> np.ndarray:
    """The largest difference between two heads in their attention to a lag, an evaluation each."""
    assert result.curves is not None
    lags = result.curves["lags"][:, 0]
    return np.ptp(lags, axis=1).max(-1)


def row(part: str, result: Result) -> dict[str, Any]:
    """The first stage and the second: some head has half of its weight on the strongest group, on the next one."""
    config = result.run.config
    assert isinstance(config.task, MarkovChain)
    assert result.curves is not None
    groups = config.task.groups
    most = group_mass(result.curves["lags"][:, 0], groups.members).max(1)
    first, second = (emergence(result.curves["step"], most[:, j], 0.5, "above") for j in groups.ranking[:2])
    method, precision = part.split()
    identical = bool((apart(result) == 0).all())
    scale = getattr(config.model, "scale", np.nan)
    return {"method": method, "precision": precision, "scale": scale, "seed": result.run.seed, "first": first.time} | {
        "second": second.time if second.state == "reached" else np.nan,
        "identical": identical,
        "merged": bool(scale > 0 and apart(result)[-1] == 0),
    }


def make(settings: Settings, work: Work) -> Outcome:
    found = work.by_part(settings.parts(), curves=True)
    table = pd.DataFrame([row(part, result) for part, results in found.items() for result in results])
    return Outcome(
        tables={"runs": table},
        plot=draw(found, table, settings),
        checks=[
            check
            for optimizer, _ in settings.optimizers
            if all(f"{optimizer.method} {precision}" in found for precision in PRECISIONS)
            for check in checks_of(optimizer.method, table, found[f"{optimizer.method} fp64"])
        ],
        precision="fp32 and fp64",
        device=provenance_of(found),
    )


def seconds_stage(table: pd.DataFrame, method: str, precision: str) -> pd.Series:
    """The mean step of the second stage by scale, the largest first; NaN where a run has none."""
    rows = table[(table["method"] == method) & (table["precision"] == precision)]
    return rows.groupby("scale")["second"].agg(lambda s: s.mean(skipna=False)).sort_index(ascending=False)


def growth(result: Result) -> tuple[float, float]:
    """How the rate changes at which heads come apart on the plateau: that of the later half of the growth over that of the
    earlier, as measured, and if it fell as 1/√t, which is what makes the second stage of the flow late by log²(1/s)."""
    assert result.curves is not None
    step, log = result.curves["step"].astype(float), np.log(np.maximum(apart(result), 1e-300))
    low, high = log[1:].min() + np.log(1e2), np.log(1e-2)  # past the first steps, and short of the end
    past = [int(np.argmax(log >= level)) for level in (low, (low + high) / 2, high)]
    if not 0 < past[0] < past[1] < past[2]:
        return np.nan, np.nan
    t, grown = step[past], log[past]
    rates, roots = np.diff(grown) / np.diff(t), np.sqrt(t)
    return float(rates[1] / rates[0]), float((roots[1] + roots[0]) / (roots[2] + roots[1]))


def checks_of(method: str, table: pd.DataFrame, doubles: list[Result]) -> list[Check]:
    name = NAMES[method]
    single, double = (seconds_stage(table, method, precision) for precision in PRECISIONS)
    scales = double.index[double.index > 0]
    times, logs = double[scales].to_numpy(), np.log(scales)
    lines = [float(np.corrcoef(logs, values)[0, 1] ** 2) for values in (times, np.sqrt(times))]
    early = {f"{s:g}": float(single[s] / double[s]) for s in scales if s <= 1e-9}
    zero = table[(table["method"] == method) & (table["scale"] == 0)]
    smallest = [growth(r) for r in doubles if getattr(r.run.config.model, "scale", 0.0) == scales.min()]
    rate, falling = np.mean(smallest, 0)
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
            lines,
            None,
            bool(max(lines) > 0.99),
            "one of them above 0.99",
        ),
        Check(
            f"{name}: second stage in fp32 over fp64, by scale",
            early,
            None,
            bool(any(not np.isfinite(r) or abs(r - 1) > 0.02 for r in early.values())),
            "rounding counts from s = 1e-9 on: off 1 by over 0.02, or null where heads have become one",
        ),
        Check(
            f"{name}: scale 0, heads stay identical bit for bit in both precisions and have no second stage",
            bool(zero["identical"].all() and zero["second"].isna().all()),
            None,
            bool(zero["identical"].all() and zero["second"].isna().all()),
            "true",
        ),
    ]


def draw(found: dict[str, list[Result]], table: pd.DataFrame, settings: Settings) -> Plot:
    methods = list(dict.fromkeys(optimizer.method for optimizer, _ in settings.optimizers))
    rows, first = (2, 2) if len(methods) > 1 else (1, 3), methods[0]
    plot = Plot(figsize=(WIDTH, 2.45 * rows[0]), layout="constrained")
    a, *between, d = plot.subplots(*rows, squeeze=False).ravel()
    for axes, method, letter in zip(between, methods, "bc", strict=False):
        over_steps(axes, found, method, settings, differences=True)
        axes.set(ylabel="difference between heads", ylim=(1e-17, 3))
        panel(axes, letter, f"what tells heads apart, {NAMES[method]}" if len(methods) > 1 else "what tells heads apart")
    over_steps(a, found, first, settings, differences=False)
    a.set(xscale="log", ylabel="excess loss (KL from the teacher)")
    panel(a, "a", f"excess loss, {NAMES[first]}")
    entries = [(_name(s), {"color": k}) for s, k in zip(settings.scales, shades(len(settings.scales)), strict=True)]
    outside(between[0], "initial\nscale $s$", [*entries, ("fp64", {"color": GREY}), ("fp32", {"color": GREY, "ls": ":"})])
    for method in methods:
        for precision, fill in (("fp64", None), ("fp32", "white")):
            stage = seconds_stage(table, method, precision)
            stage = stage[stage.index > 0].dropna()
            x, look = -np.log10(stage.index.to_numpy(float)), LOOKS[method]
            d.plot(x, stage, ls="", mfc=fill or look["color"], ms=5, **look)
            if precision == "fp64" and len(stage) > 2:
                fitted(d, x, stage.to_numpy(), method)
    d.set(xlabel=r"$\log_{10}(1/s)$", ylabel="step of the second stage")
    d.set_ylim(0, (1.45 if len(methods) > 1 else 1.7) * d.get_ylim()[1])  # room for the legend
    panel(d, "bcd"[len(methods)], "the second stage")
    marks = [(f"{NAMES[method]}, fp64", LOOKS[method] | {"ls": ""}) for method in methods]
    marks += [("fp32", {"marker": "o", "ls": "", "mfc": "white"}), (r"$a + b\,\log(1/s)$", {"lw": 1})]
    key(d, [*marks, (r"$(a + b\,\log(1/s))^2$", {"lw": 1, "ls": "--"})], loc="upper left", fontsize=6.5)
    return plot


def fitted(axes: Axes, x: np.ndarray, times: np.ndarray, method: str) -> None:
    """Two laws through the dots: logarithmic, and the square of that."""
    along = np.linspace(x.min(), x.max(), 50)
    for power, look in ((1, "-"), (2, "--")):
        line = np.polyfit(x, times ** (1 / power), 1)
        axes.plot(along, np.polyval(line, along) ** power, color=LOOKS[method]["color"], lw=1, ls=look, zorder=1)


def over_steps(axes: Axes, found: dict[str, list[Result]], method: str, settings: Settings, differences: bool) -> None:
    colours = dict(zip(settings.scales, shades(len(settings.scales)), strict=True))
    for precision in PRECISIONS:
        for result in found.get(f"{method} {precision}", []):
            if result.run.seed or result.curves is None:
                continue
            step, values = result.curves["step"], apart(result) if differences else result.curves["excess"]
            shown = np.where(values > 0, values, np.nan)
            look = {"ls": "-", "lw": 1.4} if precision == "fp64" else {"ls": ":", "lw": 1.6}
            axes.plot(step[1:], shown[1:], color=colours[getattr(result.run.config.model, "scale", 0.0)], **look)
    axes.set(yscale="log", xlabel="step")


def _name(scale: float) -> str:
    return "0" if scale == 0 else f"$10^{{{round(np.log10(scale))}}}$"


SMALL = Training(MarkovChain(Groups((2, 2)), 10, generated=6), batch=128, samples=None, tests=256, seeds=1)
FIGURE = Figure(
    id="emergo/rounding",
    shows="initial scale or rounding: what tells heads apart, and when they part, in 32 and in 64 bits",
    presets={
        "paper": Settings(Training(seeds=3), ((ADAMW, 2000),)),
        "laptop": Settings(SMALL, ((ADAMW, 800), (Optimizer("sgd", 20.0), 1400)), heads=2),
        "smoke": Settings(smoke(seeds=1), ((ADAMW, 60),), scales=(1e-2, 1e-3, 1e-9, 0.0), heads=2),
    },
    make=make,
    runs=runs,
    seconds={"paper": 60_000, "laptop": 81, "smoke": 15},
    shrunk={
        "laptop": "two groups of two positions, 10 tokens, batches of 128 of fresh data, two heads, one seed",
        "smoke": "two groups of one position, 5 tokens, batches of 32, 60 steps, AdamW only",
    },
)
