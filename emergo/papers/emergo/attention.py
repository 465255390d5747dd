"""What makes the plateau? The same task under other forms of attention: which of them wait, for how long, and by which law.

One layer with one head, but for what is borrowed from other figures and for windows, which need two layers to reach everywhere.
A run *has a plateau* where over half of its time to the threshold is one (`measure.plateau_share`); this, the forms and what is
expected of each were written down before any of these runs was trained.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..._errors import InputError
from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, WIDTH, key, over, subtitle
from ...engine import Config, Result
from ...measure import Boundary, Law, boundary_of, find_stages, fit_law, plateau_share
from ...studies import Runs, Study
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource, Seconds
from .._source import curve
from .._transformers import PAPER, SMALL, TINY, shallow
from ..zucchet2025.fig13_15 import FIXED, SLOW, sgd

FORMS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {},
    "linear": {"model__attention": "linear"},
    "sigmoid": {"model__attention": "sigmoid"},
    "norm before": {"model__norm": "pre"},
    "rotary positions": {"model__positions": "rope"},
    "positional bias": {"model__attention": "biased"},
    "top 8 scores": {"model__top_k": 8},
    "learned temperature": {"model__temperature": "learned"},
}
"""What each changes in the first."""
COLOURS = dict(zip(FORMS, (BLACK, RED, ORANGE, GREEN, BLUE, SKY, PINK, GREY), strict=True))
NEUTRAL = ("rotary positions", "positional bias", "learned temperature")
"""They add something that is not there at the start, or turn queries and keys alike: no reason to wait longer or less."""
BORROWED = {
    "two layers, four heads": PAPER,
    "fixed position": shallow(PAPER).replace(task=FIXED),
    "SGD": sgd(SLOW, 5e-3, 400_000).base,
}
"""The same sizes in Figures 3, 14 and 15 of zucchet2025, whose runs these are."""
FIXED_FORM = "positions alone, fixed position"
SHARE, SAME, NEAR = 0.5, 0.15, (0.8, 1.25)


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    forms: tuple[str, ...] = tuple(FORMS)
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (32, 128)
    seeds: int = 5
    deep: Config | None = None
    """Two layers, for the windows."""
    windows: tuple[int, ...] = ()
    borrow: bool = False
    """Whether runs of other figures are shown beside these."""

    def own(self) -> dict[str, Study]:
        """Runs that are drawn with their curves."""
        axes = {"grid": {"length": self.lengths, "dim": self.dims}, "seeds": self.seeds}
        parts = {form: Study.of(self.base.replace(**FORMS[form]), **axes) for form in self.forms}
        if self.deep is not None:
            parts["windows"] = Study.of(self.deep, grid={"window": self.windows}, seeds=self.seeds)
        if self.borrow:
            positional = self.base.replace(task=FIXED, model__attention="positional")
            parts[FIXED_FORM] = Study.of(positional, **axes)
        return parts

    def borrowed(self) -> dict[str, Study]:
        axes = {"grid": {"length": self.lengths, "dim": self.dims}, "seeds": 5}
        return {name: Study.of(base, **axes) for name, base in BORROWED.items()} if self.borrow else {}

    def studies(self) -> dict[str, Study]:
        return self.own() | self.borrowed()


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.own(), curves=True)
    windows = parts.pop("windows", None)
    tables = {name: with_shares(runs) for name, runs in parts.items()}
    others = {name: runs.table for name, runs in source.runs(settings.borrowed()).items()} if settings.borrow else {}
    laws = {name: law for name, table in (tables | others).items() if (law := law_of(table)) is not None}
    forms = summary(tables, laws)
    stages = window_table(windows) if windows is not None else None
    checks = [*form_checks(tables, laws), *([] if stages is None else window_checks(stages))]
    plot = draw(parts, tables, laws, windows, settings)
    every = pd.concat([table.assign(form=name) for name, table in (tables | others).items()], ignore_index=True)
    out = {"runs": every, "forms": forms} | ({} if stages is None else {"windows": stages})
    return Outcome(out, plot, [Comparison(name, law) for name, law in laws.items()], checks)


def with_shares(runs: Runs) -> pd.DataFrame:
    """The table of runs, with the share of the plateau in the time to the threshold."""
    shares = [plateau_share(curve(r, "step"), curve(r, "loss"), float(r.run.config.threshold or 0)) for r in runs]
    return runs.table.assign(share=shares)


def law_of(table: pd.DataFrame) -> Law | None:
    """The law of the sizes that the runs which got there vary in; None where they do not determine one."""
    reached = table[table["state"] == "reached"]
    terms = [name for name in ("dim", "length") if len(set(reached[name])) > 1]
    try:
        return fit_law(table, x=terms) if terms else None
    except InputError:
        return None


def summary(tables: Mapping[str, pd.DataFrame], laws: Mapping[str, Law]) -> pd.DataFrame:
    """One row per form: how many runs got there, the share of the plateau in the largest cell, and the exponents."""
    rows = []
    for name, table in tables.items():
        last = hardest(table)
        row = {"form": name, "runs": len(table), "reached": int((table["state"] == "reached").sum())}
        row |= {"dim": last["dim"].iloc[0], "length": last["length"].iloc[0]} if len(last) else {}
        row |= {"plateau": last["plateau"].mean(), "share": last["share"].mean(), "least_share": last["share"].min()}
        for term in ("dim", "length"):
            law = laws.get(name)
            low, high = law.ci95.get(term, (np.nan, np.nan)) if law else (np.nan, np.nan)
            row |= {f"by_{term}": law.exponents.get(term, np.nan) if law else np.nan, f"{term}_low": low, f"{term}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def hardest(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of the largest cell of which all got there, by dim times length."""
    got = table.groupby(["dim", "length"])["state"].transform(lambda states: (states == "reached").all())
    whole = table[got.astype(bool)]
    size = whole["dim"] * whole["length"]
    return whole[size == size.max()].pipe(lambda rows: rows[rows["length"] == rows["length"].max()])


def ratio(table: pd.DataFrame, reference: pd.DataFrame) -> Boundary:
    """One form's plateau over another's with the same seed, a geometric mean over the cells that all runs of both got through;
    over seeds, with its interval. NaN where there is no such cell."""
    cells = [t.assign(got=t["state"] == "reached").groupby(["dim", "length"])["got"].all() for t in (table, reference)]
    both = cells[0].index[cells[0]].intersection(cells[1].index[cells[1]])
    plateaus = [t.set_index(["seed", "dim", "length"])["plateau"].astype(float) for t in (table, reference)]
    apart = (plateaus[0] / plateaus[1]).reset_index()
    kept = apart[pd.MultiIndex.from_frame(apart[["dim", "length"]]).isin(both)]
    return boundary_of([np.exp(np.mean(np.log(rows["plateau"].to_numpy()))) for _, rows in kept.groupby("seed")])


def form_checks(tables: Mapping[str, pd.DataFrame], laws: Mapping[str, Law]) -> list[Check]:
    checks, soft = [], tables.get("softmax")
    shares = {name: hardest(table)["share"].mean() for name, table in tables.items() if len(hardest(table))}
    if shares:
        least = min(shares, key=lambda name: shares[name])
        name = f"share of the plateau in the time to the threshold, largest cell, least over {len(shares)} forms ({least})"
        checks.append(Check(name, shares[least], None, shares[least] > SHARE, "above 0.5: every form has a plateau"))
    if soft is None:
        return checks
    words = {"linear": (1.0, np.inf, "above 1: without an exponential the escape is slower, by a logarithm")}
    words |= dict.fromkeys(NEUTRAL, (*NEAR, f"{NEAR[0]} to {NEAR[1]}: it does not touch the mechanism"))
    words["top 8 scores"] = (NEAR[0], np.inf, f"above {NEAR[0]}: at the start the relevant token is seen rarely, and then more")
    for form, (low, high, expected) in words.items():
        factor = ratio(tables[form], soft) if form in tables else None
        if factor is not None and np.isfinite(factor.step):
            name = f"plateau with {form} over that of softmax (95% from {factor.low:.2f} to {factor.high:.2f})"
            checks.append(Check(name, factor.step, None, low < factor.step < high, expected))
    if "sigmoid" in laws and "softmax" in laws:
        mine, theirs = laws["sigmoid"].exponents, laws["softmax"].exponents
        apart = max(abs(mine[term] - theirs[term]) for term in mine if term in theirs)
        words = f"below {SAME}: the same flow to leading order"
        checks.append(
            Check("largest difference between the exponents of sigmoid and softmax", apart, None, apart < SAME, words)
        )
    return checks


def window_table(runs: Runs) -> pd.DataFrame:
    """One row per run with a window: the loss after the first drop over that at the start, and how many drops."""
    rows = []
    for result, row in zip(runs, runs.table.to_dict("records"), strict=True):
        drops = find_stages(curve(result, "step"), curve(result, "loss"))
        start = float(np.median(curve(result, "loss")[:5]))
        hidden = 1 - row["window"] / row["length"]
        after = drops[0].after / start if len(drops) > 1 else np.nan
        rows.append(row | {"drops": len(drops), "hidden": hidden, "after": after})
    return pd.DataFrame(rows)


def window_checks(stages: pd.DataFrame) -> list[Check]:
    checks = []
    for window, rows in stages.groupby("window"):
        several = rows[rows["drops"] > 1]
        what = f"window of {window}: runs that fall in more than one step, of {len(rows)}"
        checks.append(Check(what, len(several), None, len(several) == len(rows), "all: what is out of reach needs both layers"))
        if len(several):
            name = f"window of {window}: loss after the first step over the share of sequences out of reach"
            off = float(np.exp(np.log(several["after"] / several["hidden"]).mean()))
            checks.append(Check(name, off, None, NEAR[0] < off < NEAR[1], f"{NEAR[0]} to {NEAR[1]}"))
    return checks


def draw(
    parts: Mapping[str, Runs],
    tables: Mapping[str, pd.DataFrame],
    laws: Mapping[str, Law],
    windows: Runs | None,
    settings: Settings,
) -> Plot:
    names = list(dict.fromkeys([*tables, *laws]))
    plot = Plot(figsize=(WIDTH, 3.0 + 0.24 * len(names)), layout="constrained")
    grid = plot.add_gridspec(2, 1, height_ratios=(2.4, 0.8 + 0.24 * len(names)))
    top, bottom = (plot.add_subfigure(grid[i, 0]) for i in range(2))
    first, *others = top.subplots(1, 2 if windows is not None else 1, squeeze=False)[0]
    draw_curves(first, parts, settings)
    if windows is not None:
        draw_windows(others[0], windows)
    left, right = bottom.subplots(1, 2, sharey=True)
    draw_exponents(left, names, laws)
    draw_shares(right, names, tables)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    return plot


def draw_curves(axes: Axes, parts: Mapping[str, Runs], settings: Settings) -> None:
    """The first seed of every form in the largest cell."""
    entries, dim, length = [], settings.dims[-1], settings.lengths[-1]
    for name, runs in parts.items():
        chosen = [r for r in runs if r.run.seed == 0 and config_sizes(r) == (dim, length)] if name in FORMS else []
        for result in chosen:
            axes.plot(curve(result, "step")[1:], curve(result, "loss")[1:], color=COLOURS[name], lw=1.2)
            entries.append((name, {"color": COLOURS[name]}))
    axes.set(xscale="log", xlabel="step", ylabel="test loss", ylim=(0, 0.65))
    axes.set_title("a  the loss over time", y=1.08)
    subtitle(axes, f"$d$ = {dim}, $T$ = {length}, first seed")
    key(axes, entries, loc="lower left", labelspacing=0.3)


def config_sizes(result: Result) -> tuple[int, int]:
    task: Any = result.run.config.task
    return task.dim, task.length


def draw_windows(axes: Axes, runs: Runs) -> None:
    """Test loss by window, one line per seed, and the level that what is out of reach keeps it at."""
    windows = runs.table["window"].tolist()
    colours = dict(zip(sorted(set(windows)), (BLUE, ORANGE, GREEN, RED), strict=False))
    for result, window in zip(runs, windows, strict=True):
        length = config_sizes(result)[1]
        axes.plot(curve(result, "step")[1:], curve(result, "loss")[1:], color=colours[window], lw=1, alpha=0.8)
        axes.axhline(0.5 * (1 - window / length), color=colours[window], lw=0.8, ls=":")
    dim, length = config_sizes(runs[0])
    axes.set(xscale="log", xlabel="step", ylabel="test loss", ylim=(0, 0.65))
    axes.set_title("b  attention within a window", y=1.08)
    subtitle(axes, f"two layers, $d$ = {dim}, $T$ = {length}; dotted: what is out of the last one's reach")
    key(axes, [(str(w), {"color": colour}) for w, colour in colours.items()], loc="lower left", title="window")


def draw_exponents(axes: Axes, names: Sequence[str], laws: Mapping[str, Law]) -> None:
    """One row per form: the exponents of dim and length with their intervals, beside those of the flow."""
    for name, law in laws.items():
        for term, colour, shift in (("dim", BLUE, -0.13), ("length", ORANGE, 0.13)):
            if term in law.exponents:
                height, (low, high) = names.index(name) + shift, law.ci95[term]
                axes.plot([low, high], [height] * 2, color=colour, lw=1.6, solid_capstyle="round")
                axes.plot(law.exponents[term], height, "o", color=colour, mec="white", mew=0.4, ms=4.5)
    for at, colour in ((0.5, BLUE), (1.0, ORANGE)):
        axes.axvline(at, color=colour, lw=0.8, ls=":")
    axes.set_xlabel("exponent, with its 95% interval")
    axes.set_title("c  exponents of the plateau", y=1.07)
    entries = [("of $d$", {"color": BLUE, "marker": "o"}), ("of $T$", {"color": ORANGE, "marker": "o"})]
    over(axes, [*entries, ("the toy model's flow", {"ls": ":"})])


def draw_shares(axes: Axes, names: Sequence[str], tables: Mapping[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        colour, last, height = COLOURS.get(name, GREY), hardest(table), names.index(name)
        axes.plot(table["share"], np.full(len(table), height), "o", color=colour, ms=3, alpha=0.35, mew=0)
        if len(last):
            axes.plot(last["share"].mean(), height, "D", color=colour, mec="white", mew=0.5, ms=5)
    axes.axvline(SHARE, color=GREY, lw=0.8, ls=":")
    axes.set(xlabel="share of the time to the threshold", xlim=(0, 1))
    axes.set_title("d  how much of the time is a plateau", y=1.07)
    over(
        axes,
        [("one run", {"marker": "o", "ls": "", "ms": 3}), ("mean of the largest cell", {"marker": "D", "ls": "", "ms": 4})],
    )


TITLE = "which forms of attention have a plateau, and by which law"
DEEP = PAPER.replace(task__length=64, task__dim=32, steps=20_000, threshold=0.05)
SMALL_BASE = shallow(SMALL).replace(batch=32, optimizer__learning_rate=5e-4, steps=3000)
PRESETS: Presets = {
    "paper": Settings(shallow(PAPER).replace(steps=20_000), deep=DEEP, windows=(32, 48), borrow=True),
    "laptop": Settings(SMALL_BASE, ("softmax", "linear", "sigmoid"), (4, 16), (8, 32), 3),
    "smoke": Settings(TINY, ("softmax", "sigmoid"), (2, 4), (4, 8), 1),
}
SECONDS: Seconds = {"paper": 2e5, "laptop": 50, "smoke": 12}
FIGURE = Figure("emergo/attention", TITLE, PRESETS, make, SECONDS, curves=True, outcomes=tuple(BORROWED))
