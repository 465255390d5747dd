"""Why the exponent of length depends on the grid: the plateau is linear in T/B, plus an offset.

The toy model predicts T^1; zucchet2025 reports 0.80, 0.58 and 0.29 for its Transformers (Figures 3
and 14). The exponent measured between neighbouring lengths is not constant: it increases with T.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLUE, GREEN, ORANGE, RED, doubling, key
from ...measure import Law, OffsetLaw, fit_law, fit_offset
from ...study import Study
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, legend, panels
from ..transformers import SMALL, shallow
from ..zucchet2025 import fig3
from ..zucchet2025.fig13_15 import KINDS, KindGrid
from ._shared import DOT, entries, geometric_mean, whole_cells

DEEP = "2 layers, 4 heads"
BOTH = ("left", "middle")  # parts of Figure 3 with this model
PUBLISHED = {name: published.exponents["length"] for name, (_, published) in KINDS.items()}
PUBLISHED |= {DEEP: fig3.LAW.exponents["length"]}
COLOURS = dict(zip(PUBLISHED, (BLUE, ORANGE, GREEN, RED), strict=True))
Tables = Mapping[str, pd.DataFrame]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `one`: one layer and one head, on three kinds of task.
    - `two`: two layers and four heads, with lengths and bursts.
    """

    one: KindGrid | None
    two: fig3.Settings | None

    def studies(self) -> dict[str, Study]:
        studies = dict(self.one.studies()) if self.one else {}
        deep = self.two.studies() if self.two else {}
        return studies | {name: deep[name] for name in BOTH if name in deep}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = {name: runs.table for name, runs in source.runs(settings.studies()).items()}
    tables = {name: table for name, table in parts.items() if name not in BOTH}
    deep = [parts[name] for name in BOTH if name in parts]
    if deep:
        tables[DEEP] = pd.concat(deep).drop_duplicates("identity")
    laws = {name: fit_offset(table, u="dim", v="length/burst") for name, table in tables.items()}
    plain = {name: fit_law(table, x=["dim", "length/burst"]) for name, table in tables.items()}
    local = local_exponents(tables)
    return Outcome(
        {"laws": law_table(laws), "local": local},
        draw(tables, laws, plain, local),
        [Comparison(f"{name}, plain power law", law) for name, law in plain.items()],
        [
            *(gamma_check(name, law, plain[name]) for name, law in laws.items()),
            *(spread_check(name, law, plain[name]) for name, law in laws.items()),
        ],
        {"laws": law_summary(laws, plain), "local": local_summary(local)},
    )


def gamma_check(name: str, law: OffsetLaw, plain: Law) -> Check:
    gamma = law.values["gamma"]
    return Check(
        f"exponent of T/B beside the offset: {name} "
        f"(a plain power law gives {plain.exponents['length']:.2f})",
        gamma,
        None,
        abs(gamma - 1) < 0.1,
        "1, as in the toy model",
    )


def spread_check(name: str, law: OffsetLaw, plain: Law) -> Check:
    return Check(
        f"spread around the law with offset, over that around the power law: {name}",
        law.spread / plain.spread,
        None,
        law.spread < plain.spread,
        f"below 1 (spread of the seeds alone: {law.seed_spread / plain.spread:.2f})",
    )


def law_table(laws: Mapping[str, OffsetLaw]) -> pd.DataFrame:
    rows = []
    for name, law in laws.items():
        row = {"part": name, "spread": law.spread, "seed_spread": law.seed_spread}
        row |= {"r2": law.r2, "runs": law.runs, **law.values}
        for n, ends in law.ci95.items():
            row |= dict(zip((f"{n}_low", f"{n}_high"), ends, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def law_summary(laws: Mapping[str, OffsetLaw], plain: Mapping[str, Law]) -> pd.DataFrame:
    """Summarise the laws with offset.

    Spreads of log plateau are given around this law, around the power law and among seeds.
    """
    rows = []
    for name, law in laws.items():
        row = {"part": name} | {n: [[value, *law.ci95[n]]] for n, value in law.values.items()}
        row |= {"spread": law.spread, "of the power law": plain[name].spread}
        rows.append(row | {"of seeds": law.seed_spread})
    return pd.DataFrame(rows)


def local_summary(local: pd.DataFrame) -> pd.DataFrame:
    """Arrange the exponents between neighbouring lengths with one row per part."""
    named = local.assign(length=local["length"].map("T about {:.0f}".format))
    wide = named.pivot(index="part", columns="length", values="exponent")
    return wide[named["length"].unique()].reset_index()


def local_exponents(tables: Tables) -> pd.DataFrame:
    """Compute slopes of log plateau between neighbouring lengths: mean and range over dims.

    Uses whole cells without repetition.
    """
    frames = []
    for name, table in tables.items():
        whole = whole_cells(table[table["burst"] == 1], ["dim", "length"])
        logs = whole.assign(log=np.log(whole["plateau"]))
        means = logs.pivot_table(index="dim", columns="length", values="log")
        lengths = np.array(means.columns, float)
        slopes = means.diff(axis=1).iloc[:, 1:].div(np.diff(np.log(lengths)))
        rows = slopes.agg(["mean", "min", "max"]).T.set_axis(["exponent", "low", "high"], axis=1)
        frames.append(rows.assign(part=name, length=np.sqrt(lengths[1:] * lengths[:-1])))
    return pd.concat(frames, ignore_index=True)[["part", "length", "exponent", "low", "high"]]


def draw(
    tables: Tables, laws: Mapping[str, OffsetLaw], plain: Mapping[str, Law], local: pd.DataFrame
) -> Plot:
    shown = [name for name in (next(iter(tables)), DEEP) if name in tables]
    titles = [DEEP if name == DEEP else "1 layer, 1 head" for name in shown]
    plot, (*row, last) = panels(2.9, *titles, "between neighbouring lengths")
    for axes, name in zip(row, shown, strict=True):
        draw_laws(axes, tables[name], laws[name], plain[name])
    for name, law in laws.items():
        rows = local[local["part"] == name]
        colour = COLOURS[name]
        last.vlines(rows["length"], rows["low"], rows["high"], color=colour, lw=0.8)
        last.plot(rows["length"], rows["exponent"], color=colour, **DOT)
        # The local exponent of the law with offset, at the mean dim.
        x = np.geomspace(rows["length"].min(), rows["length"].max(), 50)
        v = law.values
        dim = geometric_mean(tables[name]["dim"])
        offset = v["a"] * dim ** v["alpha"]
        rest = v["b"] * dim ** v["beta"] * x ** v["gamma"]
        last.plot(x, v["gamma"] * rest / (offset + rest), color=colour, lw=1.2)
        last.axhline(PUBLISHED[name], color=colour, lw=0.8, ls=":")
    doubling(last)
    last.set(xlabel="sequence length $T$", ylabel="exponent of $T$")
    last.set_ylim(0, 1.25)
    colours = {name.replace(", ", ",\n"): COLOURS[name] for name in laws}
    legend(last, "", colours, ("published", {"ls": ":"}), marker="o")
    return plot


def draw_laws(axes: Axes, table: pd.DataFrame, law: OffsetLaw, plain: Law) -> None:
    """Draw plateau against T/B by dim, under both laws."""
    colours = colours_of(table["dim"], "dim")
    for dim, rows in table[table["state"] == "reached"].groupby("dim"):
        colour = colours[dim]
        ratio = rows["length"] / rows["burst"]
        axes.plot(ratio, rows["plateau"], color=colour, **DOT)
        x = np.geomspace(ratio.min(), ratio.max(), 50)
        line = pd.DataFrame({"dim": dim, "length": x, "burst": 1})
        axes.plot(x, law.predict(line), color=colour, lw=1.2)
        axes.plot(x, plain.predict(line), color=colour, lw=0.8, ls="--")
    doubling(axes)
    axes.set(yscale="log", xlabel="$T/B$", ylabel="plateau (steps)")
    marks = [*entries({f"$d$ = {dim}": colour for dim, colour in colours.items()})]
    key(axes, [*marks, ("power law", {"ls": "--"})], loc="upper left", ncols=2)
    axes.margins(y=0.35)


ONE_LAYER = shallow(SMALL).replace(steps=3000)
SMALL_GRID = KindGrid(ONE_LAYER, seeds=3, dims=(4, 8, 16), lengths=(8, 16, 32, 64))
FIGURE = Figure(
    "emergo/offset",
    "the plateau is linear in T/B on top of a time that T does not touch",
    {
        "paper": Settings(KindGrid(), fig3.Settings()),
        "laptop": Settings(SMALL_GRID, None),
        "smoke": Settings(None, fig3.FIGURE.presets["smoke"]),
    },
    make,
    {"paper": 1e6, "laptop": 110, "smoke": 10},
)
