"""Why the exponent of length depends on the grid: the plateau is linear in T/B, on top of a time that T does not touch.

The toy model says T^1; zucchet2025 reports 0.80, 0.58 and 0.29 for its Transformers (Figures 3 and 14). Between neighbouring
lengths the measured exponent is no constant: it rises with T.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import BLUE, GREEN, GREY, ORANGE, RED, WIDTH, outside, panel, shades
from ...measure import Law, OffsetLaw, fit_law, fit_offset
from ...studies import Runs, Study, provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from .._transformers import SMALL, shallow
from ..zucchet2025 import fig3, fig14

DEEP = "2 layers, 4 heads"
BOTH = ("left", "middle")
"""The parts of Figure 3 that it has."""
PUBLISHED = {name: published.exponents["length"] for name, (_, published) in fig14.KINDS.items()} | {
    DEEP: fig3.LAW.exponents["length"]
}
COLOURS = dict(zip(PUBLISHED, (BLUE, ORANGE, GREEN, RED), strict=True))


@dataclasses.dataclass(frozen=True)
class Settings:
    one: fig14.Settings | None
    """One layer, one head, three kinds of task."""
    two: fig3.Settings | None
    """Two layers, four heads, lengths and bursts."""

    def studies(self) -> dict[str, Study]:
        deep = self.two.studies() if self.two else {}
        return (self.one.studies() if self.one else {}) | {name: deep[name] for name in BOTH if name in deep}


def tables_of(parts: Mapping[str, Runs]) -> dict[str, pd.DataFrame]:
    """One table per kind of task and model; the runs of two layers, which are two parts, in one."""
    tables = {name: runs.table for name, runs in parts.items() if name not in BOTH}
    deep = [parts[name].table for name in BOTH if name in parts]
    return tables | ({DEEP: pd.concat(deep).drop_duplicates("identity")} if deep else {})


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    tables = tables_of(parts)
    laws = {name: fit_offset(table, u="dim", v="length/burst") for name, table in tables.items()}
    plain = {name: fit_law(table, x=["dim", "length/burst"]) for name, table in tables.items()}
    rows = []
    for name, law in laws.items():
        row = {"part": name, "spread": law.spread, "seed_spread": law.seed_spread, "r2": law.r2, "runs": law.runs} | dict(
            law.values
        )
        for number, (low, high) in law.ci95.items():
            row |= {f"{number}_low": low, f"{number}_high": high}
        rows.append(row)
    checks = [
        Check(
            f"exponent of T/B beside the offset: {name} (a plain power law gives {plain[name].exponents['length']:.2f})",
            law.values["gamma"],
            None,
            abs(law.values["gamma"] - 1) < 0.1,
            "1, as in the toy model",
        )
        for name, law in laws.items()
    ]
    checks += [
        Check(
            f"spread around the law with offset, over that around the power law: {name}",
            law.spread / plain[name].spread,
            None,
            law.spread < plain[name].spread,
            f"below 1 (spread of the seeds alone: {law.seed_spread / plain[name].spread:.2f})",
        )
        for name, law in laws.items()
    ]
    return Outcome(
        tables={"laws": pd.DataFrame(rows), "local": local_exponents(tables)},
        plot=draw(tables, laws, plain),
        laws=[Comparison(f"{name}, plain power law", law) for name, law in plain.items()],
        checks=checks,
        precision=next(iter(settings.studies().values())).base.precision,
        device=provenance_of(parts),
    )


def local_exponents(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Slopes of log plateau between neighbouring lengths of whole cells, mean over dims. Only runs without repetition."""
    rows = []
    for name, table in tables.items():
        table = table[table["burst"] == 1]
        whole = table.groupby(["dim", "length"]).filter(lambda cell: (cell["state"] == "reached").all())
        means = whole.assign(log=np.log(whole["plateau"])).pivot_table(index="dim", columns="length", values="log")
        lengths = np.array(means.columns, float)
        for i in range(1, len(lengths)):
            slopes = (means.iloc[:, i] - means.iloc[:, i - 1]).dropna() / np.log(lengths[i] / lengths[i - 1])
            middle = np.sqrt(lengths[i] * lengths[i - 1])
            rows.append({"part": name, "length": middle, "exponent": slopes.mean(), "low": slopes.min(), "high": slopes.max()})
    return pd.DataFrame(rows)


def draw(tables: Mapping[str, pd.DataFrame], laws: Mapping[str, OffsetLaw], plain: Mapping[str, Law]) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.9), layout="constrained")
    shown = [name for name in (next(iter(tables)), DEEP) if name in tables]
    panels = plot.subplots(1, len(shown) + 1)
    for letter, axes, name in zip("ab", panels, shown, strict=False):
        both_laws(axes, tables[name], laws[name], plain[name], legend=name == shown[-1])
        panel(axes, letter, name if name == DEEP else "1 layer, 1 head")
    local = local_exponents(tables)
    for name, law in laws.items():
        rows, colour = local[local["part"] == name], COLOURS[name]
        around = [rows["exponent"] - rows["low"], rows["high"] - rows["exponent"]]
        panels[-1].errorbar(rows["length"], rows["exponent"], around, fmt="o", color=colour, ms=4, lw=0.8)
        x = np.geomspace(rows["length"].min(), rows["length"].max(), 50)
        panels[-1].plot(x, law_slope(law, x, np.exp(np.log(tables[name]["dim"]).mean())), color=colour, lw=1.2)
        panels[-1].axhline(PUBLISHED[name], color=colour, lw=0.8, ls=":")
    panels[-1].set_xscale("log", base=2)
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panels[-1].set(xlabel="sequence length $T$", ylabel="exponent of $T$ between neighbours", ylim=(0, 1.25))
    panel(panels[-1], "abc"[len(shown)], "")
    entries = [(name.replace(", ", ",\n"), {"color": COLOURS[name], "marker": "o"}) for name in laws]
    outside(panels[-1], "", [*entries, ("published", {"color": GREY, "ls": ":"})])
    return plot


def law_slope(law: OffsetLaw, length: np.ndarray, dim: float) -> np.ndarray:
    """The exponent of length that a law with an offset has at a length."""
    v = law.values
    part = v["b"] * dim ** v["beta"] * length ** v["gamma"]
    return v["gamma"] * part / (v["a"] * dim ** v["alpha"] + part)


def both_laws(axes: Axes, table: pd.DataFrame, law: OffsetLaw, plain: Law, legend: bool) -> None:
    dims = sorted(table["dim"].unique())
    entries = [(f"{dim:g}", {"color": colour, "marker": "o"}) for dim, colour in zip(dims, shades(len(dims)), strict=True)]
    for dim, colour in zip(dims, shades(len(dims)), strict=True):
        rows = table[(table["dim"] == dim) & (table["state"] == "reached")]
        ratio = rows["length"] / rows["burst"]
        axes.plot(ratio, rows["plateau"], "o", color=colour, mec="white", mew=0.4, ms=3.5, zorder=3)
        x = np.geomspace(ratio.min(), ratio.max(), 50)
        line = pd.DataFrame({"dim": dim, "length": x, "burst": 1})
        axes.plot(x, law.predict(line), color=colour, lw=1.2)
        axes.plot(x, plain.predict(line), color=colour, lw=0.8, ls="--")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="$T$" if (table["burst"] == 1).all() else "$T/B$", ylabel="plateau (steps)")
    lines = [("with\noffset", {"color": GREY}), ("power\nlaw", {"color": GREY, "ls": "--"})]
    if legend:
        outside(axes, "$d$", [*entries, *lines])


FIGURE = Figure(
    id="emergo/offset",
    title="the plateau is linear in T/B on top of a time that T does not touch",
    presets={
        "paper": Settings(fig14.Settings(), fig3.Settings()),
        "laptop": Settings(
            fig14.Settings(shallow(SMALL).replace(steps=3000), seeds=3, dims=(4, 8, 16), lengths=(8, 16, 32, 64)), None
        ),
        "smoke": Settings(None, fig3.FIGURE.presets["smoke"]),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 1e6, "laptop": 110, "smoke": 10},
    caveat={
        "laptop": "one layer of width 64, batch 16, learning rate 1e-3, d ≤ 16, T ≤ 64, 3 seeds",
        "smoke": "one layer and head of width 16 instead of two, d ≤ 4, T ≤ 8, one seed",
    },
)
