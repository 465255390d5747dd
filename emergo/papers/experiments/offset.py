"""Why the exponent of length depends on the grid: the plateau is linear in T/B, on top of a time
that T does not touch.

The toy model says T^1; zucchet2025 reports 0.80, 0.58 and 0.29 for its Transformers (Figures 3 and
14). Between neighbouring lengths the measured exponent is no constant: it rises with T.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLUE, GREEN, GREY, ORANGE, RED, doubling, outside
from ...measure import Law, OffsetLaw, fit_law, fit_offset
from ...study import Study
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource
from .._panels import colours_of, legend, panels
from ..transformers import SMALL, shallow
from ..zucchet2025 import fig3
from ..zucchet2025.fig13_15 import KINDS, KindGrid

DEEP = "2 layers, 4 heads"
BOTH = ("left", "middle")
"""The parts of Figure 3 that it has."""
PUBLISHED = {name: published.exponents["length"] for name, (_, published) in KINDS.items()}
PUBLISHED |= {DEEP: fig3.LAW.exponents["length"]}
COLOURS = dict(zip(PUBLISHED, (BLUE, ORANGE, GREEN, RED), strict=True))


@dataclasses.dataclass(frozen=True)
class Settings:
    one: KindGrid | None
    """One layer, one head, three kinds of task."""
    two: fig3.Settings | None
    """Two layers, four heads, lengths and bursts."""

    def studies(self) -> dict[str, Study]:
        deep = self.two.studies() if self.two else {}
        return (self.one.studies() if self.one else {}) | {
            name: deep[name] for name in BOTH if name in deep
        }


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = {name: runs.table for name, runs in source.runs(settings.studies()).items()}
    tables = {name: table for name, table in parts.items() if name not in BOTH}
    if deep := [parts[name] for name in BOTH if name in parts]:
        tables[DEEP] = pd.concat(deep).drop_duplicates("identity")
    laws = {name: fit_offset(table, u="dim", v="length/burst") for name, table in tables.items()}
    plain = {name: fit_law(table, x=["dim", "length/burst"]) for name, table in tables.items()}
    rows = []
    exponents = []
    spreads = []
    for name, law in laws.items():
        row = {
            "part": name,
            "spread": law.spread,
            "seed_spread": law.seed_spread,
            "r2": law.r2,
            "runs": law.runs,
            **law.values,
        }
        for n, (low, high) in law.ci95.items():
            row |= {f"{n}_low": low, f"{n}_high": high}
        rows.append(row)
        gamma = law.values["gamma"]
        spread = plain[name].spread
        power = f"(a plain power law gives {plain[name].exponents['length']:.2f})"
        words = f"exponent of T/B beside the offset: {name} {power}"
        exponents.append(Check(words, gamma, None, abs(gamma - 1) < 0.1, "1, as in the toy model"))
        words = f"spread around the law with offset, over that around the power law: {name}"
        alone = f"below 1 (spread of the seeds alone: {law.seed_spread / spread:.2f})"
        spreads.append(Check(words, law.spread / spread, None, law.spread < spread, alone))
    comparisons = [Comparison(f"{name}, plain power law", law) for name, law in plain.items()]
    local = local_exponents(tables)
    plot = draw(tables, laws, plain, local)
    tables = {"laws": pd.DataFrame(rows), "local": local}
    summaries = {"laws": law_summary(laws, plain), "local": local_summary(local)}
    return Outcome(tables, plot, comparisons, exponents + spreads, summaries)


def law_summary(laws: Mapping[str, OffsetLaw], plain: Mapping[str, Law]) -> pd.DataFrame:
    """The laws with offset, and the spread of log plateau around them, around the power law and
    among seeds."""
    rows = []
    for name, law in laws.items():
        values = {n: [[value, *law.ci95[n]]] for n, value in law.values.items()}
        spread = {
            "spread": law.spread,
            "of the power law": plain[name].spread,
            "of seeds": law.seed_spread,
        }
        rows.append({"part": name} | values | spread)
    return pd.DataFrame(rows)


def local_summary(local: pd.DataFrame) -> pd.DataFrame:
    """Exponents of length between neighbouring lengths, mean over dims, one row per part."""
    wide = local.assign(length=local["length"].map("T about {:.0f}".format))
    return wide.pivot(index="part", columns="length", values="exponent")[
        wide["length"].unique()
    ].reset_index()


def local_exponents(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Slopes of log plateau between neighbouring lengths of whole cells, mean over dims. Only runs
    without repetition."""
    frames = []
    for name, table in tables.items():
        table = table[table["burst"] == 1]
        whole = table.groupby(["dim", "length"]).filter(
            lambda cell: (cell["state"] == "reached").all()
        )
        means = whole.assign(log=np.log(whole["plateau"])).pivot_table(
            index="dim", columns="length", values="log"
        )
        lengths = np.array(means.columns, float)
        slopes = means.diff(axis=1).iloc[:, 1:].div(np.diff(np.log(lengths)))
        middle = {"part": name, "length": np.sqrt(lengths[1:] * lengths[:-1])}
        frames.append(
            slopes.agg(["mean", "min", "max"])
            .T.set_axis(["exponent", "low", "high"], axis=1)
            .assign(**middle)
        )
    return pd.concat(frames, ignore_index=True)[["part", "length", "exponent", "low", "high"]]


def draw(
    tables: Mapping[str, pd.DataFrame],
    laws: Mapping[str, OffsetLaw],
    plain: Mapping[str, Law],
    local: pd.DataFrame,
) -> Plot:
    shown = [name for name in (next(iter(tables)), DEEP) if name in tables]
    titles = [
        f"{letter}  {name if name == DEEP else '1 layer, 1 head'}"
        for letter, name in zip("ab", shown, strict=False)
    ]
    plot, (*row, last) = panels(2.9, *titles, "abc"[len(shown)])
    for axes, name in zip(row, shown, strict=True):
        both_laws(axes, tables[name], laws[name], plain[name], explained=name == shown[-1])
    for name, law in laws.items():
        rows = local[local["part"] == name]
        colour = COLOURS[name]
        around = [rows["exponent"] - rows["low"], rows["high"] - rows["exponent"]]
        last.errorbar(rows["length"], rows["exponent"], around, fmt="o", color=colour, ms=4, lw=0.8)
        x = np.geomspace(rows["length"].min(), rows["length"].max(), 50)
        v = law.values
        dim = np.exp(np.log(tables[name]["dim"]).mean())
        offset = v["a"] * dim ** v["alpha"]
        rest = v["b"] * dim ** v["beta"] * x ** v["gamma"]
        last.plot(
            x, v["gamma"] * rest / (offset + rest), color=colour, lw=1.2
        )  # the exponent of the law at a length
        last.axhline(PUBLISHED[name], color=colour, lw=0.8, ls=":")
    doubling(last)
    last.set(
        xlabel="sequence length $T$", ylabel="exponent of $T$ between neighbours", ylim=(0, 1.25)
    )
    entries = [
        (name.replace(", ", ",\n"), {"color": COLOURS[name], "marker": "o"}) for name in laws
    ]
    outside(last, "", [*entries, ("published", {"color": GREY, "ls": ":"})])
    return plot


def both_laws(axes: Axes, table: pd.DataFrame, law: OffsetLaw, plain: Law, explained: bool) -> None:
    colours = colours_of(table["dim"])
    for dim, colour in colours.items():
        rows = table[(table["dim"] == dim) & (table["state"] == "reached")]
        ratio = rows["length"] / rows["burst"]
        axes.plot(ratio, rows["plateau"], "o", color=colour, mec="white", mew=0.4, ms=3.5, zorder=3)
        x = np.geomspace(ratio.min(), ratio.max(), 50)
        line = pd.DataFrame({"dim": dim, "length": x, "burst": 1})
        axes.plot(x, law.predict(line), color=colour, lw=1.2)
        axes.plot(x, plain.predict(line), color=colour, lw=0.8, ls="--")
    doubling(axes)
    axes.set(
        yscale="log",
        xlabel="$T$" if (table["burst"] == 1).all() else "$T/B$",
        ylabel="plateau (steps)",
    )
    if explained:
        lines = ("with\noffset", {"color": GREY}), ("power\nlaw", {"color": GREY, "ls": "--"})
        legend(axes, "$d$", colours, *lines, marker="o")


ONE_LAYER = shallow(SMALL).replace(steps=3000)
TITLE = "the plateau is linear in T/B on top of a time that T does not touch"
PRESETS: Presets = {
    "paper": Settings(KindGrid(), fig3.Settings()),
    "laptop": Settings(
        KindGrid(ONE_LAYER, seeds=3, dims=(4, 8, 16), lengths=(8, 16, 32, 64)), None
    ),
    "smoke": Settings(None, fig3.FIGURE.presets["smoke"]),
}
FIGURE = Figure("emergo/offset", TITLE, PRESETS, make, {"paper": 1e6, "laptop": 110, "smoke": 10})
