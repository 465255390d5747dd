"""Where the exponents of the plateau come from: components from the toy model to the Transformer.

Each component is added along a path, added alone to the toy model with a learned vector on tokens,
and removed from the Transformer at the end of the path. Exponents of d and T, also of published
figures, are compared with `theory.assembly_plateau`, which was written before these runs were
trained.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.errors import InputError
from ...core.plotting import WIDTH, Picture, over
from ...measure import Law, emergence, fit_law, mean_ratio
from ...models import Assembly, Model, ToyAttention
from ...study import Runs, Study
from ...tasks import SingleLocation
from ...theory import assembly_plateau, cells, plateau
from ...training import Config, Optimizer
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._source import curve
from ..transformers import PAPER, TASK, Grid, shallow
from ..zucchet2025.fig13_15 import FIGURE_13, FIXED, SLOW, sgd
from . import attention
from ._shared import DOT, TERMS, Look, draw_interval, entries, geometric_mean, name_rows

Name = Literal["sgd", "adam"]
SGD: Name = "sgd"
ADAM: Name = "adam"
WORDS = {SGD: "SGD", ADAM: "Adam"}
TOKENS = Assembly(
    width=32, mlp=False, embed=0.0, queries=0.0, maps=1.0, biases=0.0, skip=0.0, positions=0.0
)
"""The toy model with a learned vector on tokens."""
FULL = Assembly(width=32)
"""A Transformer of one layer."""
START = "vector on tokens"
END = "MLP"
TOY = "toy model"
Switches = Mapping[str, Mapping[str, Any]]
PATH: Switches = {
    "biases": {"biases": 1.0},
    "queries and keys": {"queries": 1.0},
    "three value maps": {"maps": 3.0},
    "embedding": {"embed": 1.0},
    "skip connection": {"skip": 1.0},
    "positions": {"positions": 1.0},
    END: {"mlp": True},
}
"""The steps from `TOKENS` to `FULL`; each keeps what came before."""
ALONE: Switches = {
    "biases": {"biases": 1.0},
    "queries, keys, biases": {"queries": 1.0, "biases": 1.0},
    "three value maps": {"maps": 3.0},
    "embedding": {"embed": 1.0},
    "skip connection": {"skip": 1.0},
    "positions": {"positions": 1.0},
    END: {"mlp": True, "skip": 1.0},
}
REMOVED: Switches = {
    "embedding of constant size": {"keep_content": 1.0, "keep_mark": 1.0},
    "embedding": {"embed": 0.0},
    "content of constant size": {"keep_content": 1.0},
    "indicator of constant size": {"keep_mark": 1.0},
    "positions": {"positions": 0.0},
    END: {"mlp": False},
    "skip connection": {"skip": 0.0},
    "biases": {"biases": 0.0},
    "queries and keys": {"queries": 0.0},
    "three value maps": {"maps": 1.0},
}
BATCHES = (8, 128, 512)
RATES: Mapping[str, tuple[float, float, float]] = {
    # with positions, without, of the toy model
    SGD: (0.06, 0.2, 0.3),
    ADAM: (5e-4, 5e-4, 5e-4),
}
STEPS = {SGD: 30_000, ADAM: 12_000}
CROWDED = {SGD: 8_000, ADAM: 5_000}
"""The most steps of models whose tokens of size 1 crowd the scores of queries and keys."""
BLIND = {SGD: 3_000, ADAM: 12_000}
"""The most steps of models whose skip connection passes the readout of the attended token."""
CELL = ["dim", "length"]
KEPT = ["part", *CELL, "seed", "learning_rate", "plateau", "state", "censored", "attended"]
FLOW = {"dim": 0.5, "length": 1.0}
SYMBOLS = {"dim": "d", "length": "T"}
GROUPS = {
    "path": "ADDED ONE AFTER ANOTHER",
    "removed": "REMOVED FROM THE TRANSFORMER",
    "alone": "ADDED ALONE TO THE VECTOR ON TOKENS",
}
DERIVED: Look = {"marker": "D", "ls": "", "mfc": "none", "ms": 5}
# Limits from results/expectations/exponents.md: the least change of an exponent that counts, the
# error and the exponent at which the explanation fails, and the least falls of the exponent of d
# under Adam.
MOVES = 0.1
FAILS = 0.2
LARGE = 0.9
WIDE_LARGE = 1.0
FALLS = {"embedding": 0.5, "embedding of constant size": 0.5, "positions": 0.4}
# Limits of the factor by which half of the learning rate lengthens a plateau in the flow limit.
HALF = (1.8, 2.2)
ATTENDED = 0.3
SATURATED = tuple(
    f"{name} {variant}"
    for name in (SGD, ADAM)
    for variant in (
        "removed/embedding",
        "removed/three value maps",
        "alone/skip connection",
        f"alone/{END}",
    )
)
"""Models that learn where to look but not to answer: without an embedding, tokens crowd the scores,
and without value maps the readout cannot tell the attended token from the one that the skip
connection passes on. After their runs were seen, their plateaus were taken to end where attention
passes `ATTENDED`."""
WATCHED = (*SATURATED, *(f"{name} path/{end}" for name in (SGD, ADAM) for end in (END, START)))


def change(base: Config, **model: Any) -> Config:
    return base.replace(**{f"model__{name}": value for name, value in model.items()})


def with_optimizer(config: Config, name: Name) -> Config:
    """Return a config with this optimizer at a rate in the flow limit."""
    model: Any = config.model
    slow, fast, toy = RATES[name]
    if isinstance(model, ToyAttention):
        return config.replace(optimizer=Optimizer(name, toy), steps=STEPS[name])
    steps = STEPS[name]
    # Set after the first of these models had not reached the threshold.
    if not model.embed and not model.positions:
        steps = CROWDED[name] if model.queries else steps
        steps = BLIND[name] if model.skip else steps
    return config.replace(optimizer=Optimizer(name, slow if model.positions else fast), steps=steps)


def variants(base: Config) -> dict[str, Config]:
    """Return every variant by its name, `path/…`, `removed/…` or `alone/…`."""
    toy = base.replace(task=SingleLocation(2, 1), model=ToyAttention(0.0))
    tokens = change(base, **{name: getattr(TOKENS, name) for name in SWITCHES})
    every = {f"path/{TOY}": toy, "path/random start": change(toy, scale=1.0)}
    here = every[f"path/{START}"] = tokens
    for name, switches in PATH.items():
        here = every[f"path/{name}"] = change(here, **switches)
    every |= {f"removed/{name}": change(base, **s) for name, s in REMOVED.items()}
    return every | {f"alone/{name}": change(tokens, **s) for name, s in ALONE.items()}


SWITCHES = ("mlp", "embed", "queries", "maps", "biases", "skip", "positions")
ENDS = (f"path/{END}", f"path/{START}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `names`: the variants of each optimizer.
    - `further`: also train other batches and optimizers, and the ends at half of the rate.
    - `published`: also compare the formula with runs at width 256, most of published figures.
    """

    base: Config
    names: Mapping[Name, Sequence[str]]
    dims: tuple[int, ...] = (4, 8, 16)
    lengths: tuple[int, ...] = (8, 16, 32)
    seeds: int = 3
    further: bool = False
    published: bool = False

    def study(self, config: Config) -> Study:
        axes = {"length": self.lengths, "dim": self.dims}
        return Study.of(config, grid=axes, seeds=self.seeds)

    def configs(self, name: Name) -> dict[str, Config]:
        every = variants(self.base)
        return {variant: with_optimizer(every[variant], name) for variant in self.names[name]}

    def own(self) -> dict[str, Study]:
        """Return the screen; parts are named `optimizer variant`."""
        return {
            f"{name} {variant}": self.study(config)
            for name in self.names
            for variant, config in self.configs(name).items()
        }

    def others(self) -> dict[str, Study]:
        """Return other batches of the toy model, and other optimizers of the ends."""
        if not self.further:
            return {}
        slow = self.configs(SGD)
        toy = slow[f"path/{TOY}"]
        parts = {f"batches of {n}": self.study(toy.replace(batch=n)) for n in BATCHES}
        for end in ENDS:
            rate = slow[end].optimizer.learning_rate / 10
            momentum = Optimizer("sgd", rate, momentum=0.9)
            parts[f"momentum {end}"] = self.study(slow[end].replace(optimizer=momentum))
        sign = Optimizer("sign_sgd", RATES[ADAM][0])
        end = self.configs(ADAM)[ENDS[0]]
        return parts | {f"sign descent {ENDS[0]}": self.study(end.replace(optimizer=sign))}

    def halves(self) -> dict[str, Study]:
        """Return one cell of each end, trained at half of its learning rate."""
        parts = {}
        lengths: Mapping[Name, int] = {SGD: 16, ADAM: 8} if self.further else {}
        for name, length in lengths.items():
            for end in ENDS:
                config = self.configs(name)[end]
                slower = config.optimizer.replace(learning_rate=config.optimizer.learning_rate / 2)
                parts[f"half {name} {end}"] = Study.of(
                    config.replace(optimizer=slower),
                    grid={"length": (length,), "dim": (8,)},
                    seeds=self.seeds,
                )
        return parts

    def borrowed(self) -> dict[str, Study]:
        return {name: one.study for name, one in PUBLISHED.items()} if self.published else {}

    def studies(self) -> dict[str, Study]:
        return self.own() | self.others() | self.halves() | self.borrowed()


class Borrowed(NamedTuple):
    """Runs at width 256, and the model that the formula takes for them."""

    study: Study
    model: Model
    fixed: bool = False


def borrowed_runs() -> dict[str, Borrowed]:
    wide = Assembly(width=256)
    one = shallow(PAPER)
    depths = cast(Mapping[str, Study], FIGURE_13.presets["paper"])["runs"]
    forms = cast(attention.Settings, attention.FIGURE.presets["paper"])
    rotary = forms.base.replace(**attention.FORMS["rotary positions"])
    return {
        "Fig. 15, SGD": Borrowed(sgd(SLOW, 5e-3, 400_000), wide),
        "Fig. 15, Adam": Borrowed(Grid(one).study(), wide),
        "Fig. 14, fixed position": Borrowed(Grid(one.replace(task=FIXED)).study(), wide, True),
        "Fig. 13, one layer": Borrowed(depths.replace(zip={"layers": (1,), "heads": (1,)}), wide),
        "Fig. 3, two layers": Borrowed(Grid().study(), wide),
        "emergo/attention": Borrowed(forms.grid(forms.base, forms.seeds), wide),
        "emergo/attention, rotary": Borrowed(
            forms.grid(rotary, forms.seeds), wide.replace(positions=0.0)
        ),
    }


def wide_runs() -> dict[str, Borrowed]:
    """Return components at width 256, d = 16 to 128, which are not part of another figure."""
    rates: Mapping[Name, tuple[float, int]] = {SGD: (5e-3, 400_000), ADAM: (1e-4, 50_000)}
    chosen: Mapping[str, tuple[Name, str]] = {
        WIDE_CONSTANT: (SGD, "embedding of constant size"),
        "embedding of constant size, Adam": (ADAM, "embedding of constant size"),
        "no positions, Adam": (ADAM, "positions"),
    }
    found = {}
    for label, (name, component) in chosen.items():
        rate, steps = rates[name]
        model = change(BASE, **REMOVED[component], width=256)
        config = model.replace(optimizer=Optimizer(name, rate), steps=steps)
        found[label] = Borrowed(Grid(config, lengths=(32, 256)).study(), config.model)
    return found


BASE = Config(TASK, FULL, Optimizer(), precision="fp32")
WIDE_CONSTANT = "embedding of constant size, SGD"
PUBLISHED = borrowed_runs() | wide_runs()


def make(settings: Settings, source: RunSource) -> Outcome:
    studies = settings.studies()
    watched = {name: study for name, study in studies.items() if name in WATCHED}
    rest = {name: study for name, study in studies.items() if name not in WATCHED}
    parts = {name: with_attention(runs) for name, runs in source.runs(watched, True).items()}
    parts |= {name: runs.table for name, runs in source.runs(rest).items()}
    parts = {name: parts[name] for name in studies if name in parts}
    table = exponent_table(parts, studies)
    changes = pd.DataFrame(changes_of(parts, table), columns=list(Change._fields))
    checks = [*exponent_checks(table), *change_checks(changes), *half_checks(parts)]
    runs = [rows.assign(part=name).reindex(columns=KEPT) for name, rows in parts.items()]
    tables = {
        "runs": pd.concat(runs, ignore_index=True),
        "exponents": table.reset_index(),
    }
    if len(changes):
        tables["changes"] = changes
    return Outcome(tables, draw(table), checks=checks, summary=summaries(table))


def with_attention(runs: Runs) -> pd.DataFrame:
    """Add the column `attended`: the step at which attention passes `ATTENDED`."""
    times = []
    for result in runs:
        attention = curve(result, "attention").reshape(len(curve(result, "step")), -1).max(1)
        times.append(emergence(curve(result, "step"), attention, ATTENDED, "above").time)
    return runs.table.assign(attended=times)


def by_attention(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the step at which attention passes `ATTENDED` as their plateau."""
    times = table["attended"]
    return table.assign(plateau=times, censored=False)[np.isfinite(times)]


def exponent_table(parts: Mapping[str, pd.DataFrame], studies: Mapping[str, Study]) -> pd.DataFrame:
    rows = []
    for name, table in parts.items():
        measured = by_attention(table) if name in SATURATED else table
        law = law_of(measured)
        if law is not None:
            rows.append(row_of(name, measured, law, derived_plateaus(name, studies[name])))
    return pd.DataFrame(rows).set_index("part")


def derived_plateaus(part: str, study: Study) -> pd.DataFrame:
    """Return the derived plateau of every cell of a part; without rows if there is none.

    Momentum has the plateau of SGD at rate/(1 - momentum), sign descent that of Adam.
    """
    config = study.base
    rate = float(config.optimizer.learning_rate) / (1 - config.optimizer.given.get("momentum", 0.0))
    optimizer = ADAM if config.optimizer.name in (ADAM, "sign_sgd") else SGD
    lengths, dims = np.meshgrid(study.grid["length"], study.grid["dim"], indexing="ij")
    _, model, fixed = PUBLISHED.get(part, Borrowed(study, config.model))
    if isinstance(model, Assembly):
        steps = [
            assembly_plateau(model, length, dim, rate, optimizer, config.batch, fixed=fixed)
            for length, dim in zip(lengths.flat, dims.flat, strict=True)
        ]
    elif optimizer == SGD and model == ToyAttention(0.0):
        steps = plateau(cells(lengths.ravel(), dims.ravel()), "exact").time / rate
    else:
        return pd.DataFrame(columns=[*CELL, "plateau"])
    return pd.DataFrame({"length": lengths.ravel(), "dim": dims.ravel(), "plateau": steps})


def law_of(table: pd.DataFrame, y: str = "plateau") -> Law | None:
    """Fit the exponents of d and T, with censored runs, or return None if they are not known."""
    try:
        return fit_law(table, y, CELL).best
    except InputError:
        return None


def row_of(name: str, table: pd.DataFrame, law: Law, derived: pd.DataFrame) -> dict[str, Any]:
    """Summarise a part: measured exponents with intervals, derived ones, and the level."""
    row: dict[str, Any] = {"part": name, "runs": len(table)}
    row["censored"] = int(table["censored"].sum())
    formula = law_of(derived)
    for term in CELL:
        row |= {term: law.exponents[term]}
        row |= dict(zip((f"{term}_low", f"{term}_high"), law.ci95[term], strict=True))
        row |= {f"{term}_derived": formula.exponents[term] if formula else math.nan}
    means = table[~table["censored"]].groupby(CELL)["plateau"].agg(geometric_mean)
    ratio = means / derived.set_index(CELL)["plateau"] if len(derived) else means[:0]
    row["over_derived"] = geometric_mean(ratio.dropna()) if len(ratio.dropna()) else math.nan
    return row


def values_at(table: pd.DataFrame, part: str, *columns: str) -> list[float]:
    """Return numbers from the row of a part."""
    return [float(cast(Any, table.loc[part, column])) for column in columns]


class Change(NamedTuple):
    """What a component does to an exponent, measured and derived."""

    part: str
    reference: str
    term: str
    change: float
    low: float
    high: float
    derived: float

    @property
    def moves(self) -> bool:
        """Return True if the change is over 0.1 and its interval excludes 0."""
        return abs(self.change) > MOVES and self.low * self.high > 0


def changes_of(parts: Mapping[str, pd.DataFrame], table: pd.DataFrame) -> Iterator[Change]:
    """Yield the changes of both exponents by every component, from runs paired by seed."""
    for name in table.index:
        reference = reference_of(name)
        if reference not in table.index or reference in SATURATED:
            continue
        pair = parts[name], parts[reference]
        if name in SATURATED:
            pair = by_attention(pair[0]), by_attention(pair[1])
        both = pair[0].merge(pair[1], on=[*CELL, "seed"], suffixes=("", "_before"))
        both = both[~both["censored"] & ~both["censored_before"]]
        law = law_of(both.assign(ratio=both["plateau"] / both["plateau_before"]), "ratio")
        if law is None:
            continue
        for term in CELL:
            (before,) = values_at(table, reference, f"{term}_derived")
            (after,) = values_at(table, name, f"{term}_derived")
            ends = law.ci95[term]
            yield Change(name, reference, term, law.exponents[term], *ends, after - before)


def reference_of(part: str) -> str:
    """Return the part that a component was added to or removed from; empty for other parts."""
    name, _, variant = part.partition(" ")
    kind, _, component = variant.partition("/")
    if kind == "removed":
        return f"{name} path/{END}"
    if kind == "alone":
        return f"{name} path/{START}"
    steps = [TOY, START, *PATH]
    if name in WORDS and component in steps[1:]:
        return f"{name} path/{steps[steps.index(component) - 1]}"
    return ""


def exponent_checks(table: pd.DataFrame) -> Iterator[Check]:
    """Yield how far measured exponents are from the derived ones."""
    groups = {words: table[table.index.str.startswith(f"{n} ")] for n, words in WORDS.items()}
    groups["width 256"] = table[table.index.isin(PUBLISHED)]
    for words, rows in groups.items():
        for term, symbol in SYMBOLS.items():
            off = (rows[term] - rows[f"{term}_derived"]).dropna().abs()
            if not len(off):
                continue
            limit = FAILS if (words, term) == (WORDS[SGD], "dim") else None
            yield Check(
                f"{words}: largest difference between a measured and a derived exponent of "
                f"{symbol} ({off.idxmax()}; median of {len(off)}: {off.median():.2f})",
                off.max(),
                None,
                off.max() < limit if limit else None,
                f"below {limit}, or the explanation fails" if limit else "no limit was set",
            )
    constant = f"{SGD} removed/embedding of constant size"
    if constant in table.index:
        value, low, high = values_at(table, constant, "dim", "dim_low", "dim_high")
        yield Check(
            "SGD: exponent of d with an embedding of constant size",
            [[value, low, high]],
            None,
            value < LARGE,
            f"below {LARGE}, or the explanation fails",
        )
    if WIDE_CONSTANT in table.index:
        value, low, high = values_at(table, WIDE_CONSTANT, "dim", "dim_low", "dim_high")
        yield Check(
            "SGD, width 256: exponent of d with an embedding of constant size",
            [[value, low, high]],
            None,
            value < WIDE_LARGE,
            f"below {WIDE_LARGE:g}, or the explanation fails",
        )


def change_checks(changes: pd.DataFrame) -> Iterator[Check]:
    """Yield expected changes of the exponent of d, and whether changes have the derived sign."""
    by_dim = changes[changes["term"] == "dim"].set_index("part")
    for component, least in FALLS.items():
        part = f"{ADAM} removed/{component}"
        if part in by_dim.index:
            value, low, high = values_at(by_dim, part, "change", "low", "high")
            yield Check(
                f"Adam: change of the exponent of d, removed: {component}",
                [[value, low, high]],
                None,
                value <= -least,
                f"-{least} or less",
            )
    every = [Change(*row) for row in changes.itertuples(index=False)]
    for term, symbol in SYMBOLS.items():
        moved = [
            one for one in every if one.term == term and one.moves and one.derived == one.derived
        ]
        right = [one for one in moved if one.change * one.derived > 0]
        if moved:
            yield Check(
                f"changes of the exponent of {symbol} by more than {MOVES} with the derived sign, "
                f"of {len(moved)}",
                len(right),
                None,
                len(right) == len(moved),
                "all",
            )


def half_checks(parts: Mapping[str, pd.DataFrame]) -> Iterator[Check]:
    """Yield how many times the steps half of the learning rate takes."""
    for name in parts:
        reference = name.removeprefix("half ")
        if reference == name or reference not in parts:
            continue
        both = parts[name].merge(parts[reference], on=[*CELL, "seed"], suffixes=("", "_fast"))
        ratio = mean_ratio(both["plateau"] / both["plateau_fast"])
        low, high = HALF
        yield Check(
            f"steps at half the learning rate over those at the rate: {reference}",
            [list(ratio[:3])],
            None,
            low < ratio.times < high,
            f"{low} to {high}: the flow limit",
        )


def summaries(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Arrange measured and derived exponents with one row per part, one table per optimizer."""
    rows = []
    for part, row in table.iterrows():
        cells: dict[str, Any] = {"model": part}
        for term, symbol in SYMBOLS.items():
            cells[symbol] = [[row[term], row[f"{term}_low"], row[f"{term}_high"]]]
            cells[f"{symbol} derived"] = row[f"{term}_derived"]
        rows.append(cells | {"steps over derived": row["over_derived"]})
    every = pd.DataFrame(rows)
    found = {}
    for name, words in WORDS.items():
        own = every[every["model"].str.startswith(f"{name} ")]
        found[words] = own.assign(model=own["model"].str.removeprefix(f"{name} "))
    mine = every["model"].str.split(" ").str[0].isin(WORDS)
    return found | {"others": every[~mine]}


def draw(table: pd.DataFrame) -> Plot:
    """Draw one row per model, with a panel for each optimizer, and one for width 256."""
    rows = rows_of(table)
    borrowed = [name for name in PUBLISHED if name in table.index]
    height = 1.6 + 0.15 * (len(rows) + len(borrowed))
    plot = Picture(figsize=(WIDTH, height), layout="constrained")
    grid = plot.add_gridspec(2, 2, height_ratios=[len(rows) + 1, len(borrowed) + 1])
    for i, (name, words) in enumerate(WORDS.items()):
        axes = plot.add_subplot(grid[0, i])
        heights = {f"{name} {kind}/{variant}": at for at, (kind, variant) in enumerate(rows)}
        draw_exponents(axes, table, heights)
        axes.set_title(f"{'ab'[i]}  {words}, width 32", pad=17)
        labels = [
            (f"{variant} *" if f"{SGD} {kind}/{variant}" in SATURATED else variant)
            if kind
            else GROUPS[variant]
            for kind, variant in rows
        ]
        name_rows(axes, labels if i == 0 else [""] * len(rows))
    if borrowed:
        axes = plot.add_subplot(grid[1, :])
        draw_exponents(axes, table, {name: i for i, name in enumerate(borrowed)})
        axes.set(title="c  width 256, the paper's rates", xlim=(0, 1.6))
        name_rows(axes, borrowed)
    named = dict(zip(("of $d$", "of $T$"), TERMS.values(), strict=True))
    colours: list[tuple[str, Look]] = entries(named, lw=2)
    over(plot.axes[0], [*colours, ("the flow", {"ls": ":"})])
    if len(plot.axes) > 1:
        over(plot.axes[1], [("measured, 95%", DOT), ("derived", DERIVED)])
        plot.axes[1].set_xlabel("the same (* until attention passes 0.3)")
    return plot


def rows_of(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the kind and name of every model, each group after a row with an empty kind."""
    rows = []
    for kind in GROUPS:
        found = [
            variant.partition("/")[2]
            for name in WORDS
            for variant in table.index[table.index.str.startswith(f"{name} {kind}/")]
        ]
        rows += [("", kind)] * bool(found) + [(kind, one) for one in dict.fromkeys(found)]
    return rows


def draw_exponents(axes: Axes, table: pd.DataFrame, heights: Mapping[str, int]) -> None:
    """Draw measured exponents with intervals, and derived ones as hollow diamonds."""
    for part, height in heights.items():
        if part not in table.index:
            continue
        for term, shift in (("dim", -0.17), ("length", 0.17)):
            names = (term, f"{term}_low", f"{term}_high", f"{term}_derived")
            value, *ends, derived = values_at(table, part, *names)
            draw_interval(axes, value, ends, height + shift, TERMS[term])
            axes.plot(derived, height + shift, color=TERMS[term], **DERIVED)
    for term, flow in FLOW.items():
        axes.axvline(flow, color=TERMS[term], lw=0.8, ls=":")
    axes.set(xlabel="exponent of the plateau", xlim=(-0.3, 1.7))


EVERY = tuple(variants(BASE))
FEW = (*ENDS, "removed/embedding of constant size")
SCREEN = Settings(BASE, {SGD: EVERY, ADAM: EVERY}, further=True, published=True)
FIGURE = Figure(
    "emergo/exponents",
    "where the exponents of the plateau come from: components added and removed, and a formula",
    {
        "paper": SCREEN,
        "laptop": Settings(BASE, {SGD: FEW}, lengths=(8, 16)),
        "smoke": Settings(change(BASE, width=16), {SGD: FEW[:1]}, (2, 4), (4, 8), 1),
    },
    make,
    {"paper": 4000, "laptop": 110, "smoke": 20},
    curves=True,
    outcomes=frozenset(SCREEN.studies()) - frozenset(WATCHED),
)
