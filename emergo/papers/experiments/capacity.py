"""Why larger models learn sooner: the learning rate, the rank, or a lucky start.

One cell of the task (dim 32 in 64 tokens) is trained at every width with a fixed learning rate,
with a rate proportional to 1/width, and with the best of several rates. Two small widths are
trained with dims up to four times the width, and some models with many seeds.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import jax
import numpy as np
import pandas as pd
from scipy.special import stdtrit
from scipy.stats import pearsonr

from ...measure import Law, boundary_of, emergence, fit_law
from ...study import Runs, Study
from ...theory import rank_floor
from ...training import Config
from .._figure import Check, Comparison, Figure, Outcome, RunSource
from .._source import curve, distinct_results
from ..transformers import PAPER, SMALL, TINY
from ._capacity_panels import draw
from ._shared import whole_cells

RULES = {
    "fixed": "the same rate",
    "scaled": "rate in proportion to 1/width",
    "best": "best rate of each width",
}
# The width at which the rule 1/width has the fixed rate.
REFERENCE = 256
# From this width on, where steps cost most, runs have half as many steps and three seeds.
WIDE = 512


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `base`: has the fixed learning rate.
    - `doublings`: each width is trained at the scaled rate times these powers of 2, and at the
      fixed rate.
    - `lucky`: the number of seeds of the model at the reference width, and of models of one layer
      with `heads`, which show the luck of the start.
    - `depths`: layers and heads, as in Figure 13 of zucchet2025, whose runs are reused.
    """

    base: Config
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    doublings: tuple[int, ...] = (0, 1, 2, 3, 4)
    seeds: int = 5
    reference: int = REFERENCE
    lucky: int = 64
    heads: tuple[int, ...] = (1, 4, 16)
    narrow: tuple[int, ...] = (32, 64)
    dims: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    depths: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4))

    def rates(self, width: int) -> dict[str, float]:
        """Return the fixed and the scaled rate of a width."""
        fixed = self.base.optimizer.learning_rate
        return {"fixed": fixed, "scaled": fixed * self.reference / width}

    def at(self, width: int) -> Config:
        """Return the base at a width."""
        steps = self.base.steps // 2 if width >= WIDE else self.base.steps
        return self.base.replace(model__width=width, steps=steps)

    def own(self) -> dict[str, Study]:
        """Return the runs that are drawn with their curves."""
        few = min(self.seeds, 3)
        parts = {}
        for width in self.widths:
            rates = self.rates(width)
            tried = {rates["fixed"], *(rates["scaled"] * 2**power for power in self.doublings)}
            seeds = self.seeds if width < WIDE else few
            tune = {"learning_rate": tuple(sorted(tried))}
            parts[f"width {width}"] = Study.of(self.at(width), tune=tune, seeds=seeds)
        reference = self.at(self.reference)
        flat = reference.replace(model__layers=1)
        parts["luck"] = Study.of(reference, seeds=self.lucky)
        parts["heads"] = Study.of(flat, grid={"heads": self.heads}, seeds=self.lucky)
        for width in self.narrow:
            rate = 2 * self.rates(width)["scaled"]
            base = self.at(width).replace(optimizer__learning_rate=rate, threshold=None)
            parts[f"rank {width}"] = Study.of(base, grid={"dim": self.dims}, seeds=few)
        return parts

    def borrowed(self) -> dict[str, Study]:
        if not self.depths:
            return {}
        layers, heads = zip(*self.depths, strict=True)
        base = PAPER.replace(task=self.base.task)
        return {"depth": Study.of(base, zip={"layers": layers, "heads": heads}, seeds=self.seeds)}

    def studies(self) -> dict[str, Study]:
        return self.own() | self.borrowed()


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.own(), curves=True)
    tables = {}
    for name, frames in (
        ("rates", [runs.table for name, runs in parts.items() if name.startswith("width")]),
        ("starts", [start_table(parts[name]) for name in ("luck", "heads") if name in parts]),
        ("rank", [rank_table(runs) for name, runs in parts.items() if name.startswith("rank")]),
    ):
        if frames:
            tables[name] = pd.concat(frames, ignore_index=True)
    laws = []
    checks = []
    if "rates" in tables:
        tables["rules"] = by_rule(settings, tables["rates"])
        laws = laws_of(tables["rules"])
        checks += rate_checks(tables["rules"], {both.name: both.law for both in laws})
    if "starts" in tables:
        checks += luck_checks(tables["starts"], tables.get("rules"))
    if "rank" in tables:
        checks += rank_checks(tables["rank"])
    others = source.runs(settings.borrowed()) if settings.depths else {}
    tables |= {name: runs.table for name, runs in others.items()}
    return Outcome(tables, draw(tables, distinct_results(parts)), laws, checks)


# Width.


def operations_of_step(config: Config) -> float:
    """Count the operations of a step: six for each weight of a matrix and each token.

    Two of them belong to the forward pass and four to the backward pass (Kaplan et al. 2020,
    Section 2.1). Optimised programs may skip some of these operations.
    """
    spec = config.task.spec
    params = jax.eval_shape(lambda: config.model.init(jax.random.key(0), spec))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
    return 6.0 * weights * config.batch * spec.length


def by_rule(settings: Settings, rates: pd.DataFrame) -> pd.DataFrame:
    """Assign the runs of each width to the rules for the learning rate.

    A run may belong to several rules. The column `operations` is the cost of the plateau.
    """
    frames = []
    for width in settings.widths:
        table = rates[rates["width"] == width]
        cost = operations_of_step(settings.at(width))
        table = table.assign(operations=cost * table["plateau"])
        wanted = settings.rates(width)
        rows = {name: np.isclose(table["learning_rate"], rate) for name, rate in wanted.items()}
        rows["best"] = table["chosen"].to_numpy(bool)
        frames += [table[chosen].assign(rule=name) for name, chosen in rows.items()]
    return pd.concat(frames, ignore_index=True)


def laws_of(rules: pd.DataFrame) -> list[Comparison]:
    """Fit steps and operations as powers of the width, for each rule with two widths or more."""
    laws = []
    for y, unit in (("plateau", "steps"), ("operations", "operations")):
        for rule, words in RULES.items():
            rows = rules[rules["rule"] == rule]
            if len(set(rows["width"][rows["state"] == "reached"])) > 1:
                laws.append(Comparison(f"{unit}, {words}", fit_law(rows, y=y, x=["width"])))
    return laws


def rate_checks(rules: pd.DataFrame, laws: Mapping[str, Law]) -> Iterator[Check]:
    for unit, rule, name, words in (
        (
            *("steps", "fixed", "exponent of width, the same rate"),
            "the interval below 0: larger models learn it sooner",
        ),
        (
            *("steps", "scaled", "exponent of width, rate in proportion to 1/width"),
            "-0.2 to 0.2: Adam's step moves the output in proportion to rate times width",
        ),
        (
            *("operations", "best", "exponent of width of the operations, best rate"),
            "the interval above 0: in operations the larger model does not pay",
        ),
    ):
        law = laws.get(f"{unit}, {RULES[rule]}")
        if law is not None:
            value = law.exponents["width"]
            low, high = law.ci95["width"]
            holds = {"fixed": high < 0, "scaled": abs(value) < 0.2, "best": low > 0}[rule]
            yield Check(name, value, None, holds, words)
    fixed, best = (speed_up(rules, rule) for rule in ("fixed", "best"))
    if fixed is not None and best is not None and fixed > 0:
        share = 1 - best / fixed
        yield Check(
            "share of the speed-up by width (on logarithms) that a tuned rate takes away",
            share,
            None,
            share > 0.5,
            "above 0.5: most of it is the learning rate",
        )
    widths = common_widths(rules)
    shares = shares_by_seed(rules, widths)
    if len(shares):
        share = float(shares.mean())
        half = float(stdtrit(len(shares) - 1, 0.975) * float(shares.std()) / len(shares) ** 0.5)
        yield Check(
            f"the same share at widths that both get through ({widths[0]} to {widths[-1]}, "
            f"95% from {share - half:.2f} to {share + half:.2f}; "
            f"decided after the runs were seen)",
            share,
            None,
            share > 0.5,
            "above 0.5",
        )


def shares_by_seed(rules: pd.DataFrame, widths: list[int]) -> pd.Series:
    """Compute the share of the speed-up between the outer widths that the best rate removes.

    One number per seed that was trained at both widths.
    """
    if not widths:
        return pd.Series()
    logs = np.log(rules.pivot_table(index="seed", columns=["rule", "width"], values="plateau"))
    fixed, best = (logs[rule][widths[0]] - logs[rule][widths[-1]] for rule in ("fixed", "best"))
    return (1 - best / fixed)[fixed > 0].dropna()


def common_widths(rules: pd.DataFrame) -> list[int]:
    """Return the widths at which all runs emerged, at the fixed rate and at the best."""
    rows = rules[rules["rule"].isin(("fixed", "best"))]
    count = whole_cells(rows, ["width"]).groupby("width")["rule"].nunique()
    return sorted(count.index[count == 2].tolist())


def speed_up(rules: pd.DataFrame, rule: str) -> float | None:
    """Return the log ratio of the mean plateaus at the smallest and largest width.

    Widths count if all their runs emerged.
    """
    whole = whole_cells(rules[rules["rule"] == rule], ["width"])
    means = whole.groupby("width")["plateau"].mean()
    return float(np.log(means.iloc[0] / means.iloc[-1])) if len(means) > 1 else None


# The start.


def start_table(runs: Runs) -> pd.DataFrame:
    """Add the state at the start to the table of runs.

    These are the alignment of the value path with W*, the largest attention of a head to the
    relevant token over 1/length, and the loss.
    """
    first = {
        name: np.array([np.max(curve(result, name)[0]) for result in runs], float)
        for name in ("alignment", "attention", "loss")
    }
    attention = first["attention"] * runs.table["length"]
    return runs.table.assign(
        alignment=first["alignment"], attention=attention, first_loss=first["loss"]
    )


def luck_checks(starts: pd.DataFrame, rules: pd.DataFrame | None) -> Iterator[Check]:
    reached = starts[starts["state"] == "reached"]
    for _, rows in reached.groupby(["layers", "heads"]):
        if len(rows) > 3:
            layers, heads = rows[["layers", "heads"]].iloc[0]
            correlation = pearsonr(rows["alignment"], np.log(rows["plateau"]))
            low, high = correlation.confidence_interval()
            yield Check(
                f"{layers} layer{'s' * (layers > 1)}, heads {heads}: correlation of log plateau "
                f"with the alignment at the start (95% from {low:.2f} to {high:.2f})",
                correlation.statistic,
                None,
                high < 0,
                "the interval below 0: who starts aligned leaves sooner",
            )
    flat = reached[reached["layers"] == 1]
    single = flat.pivot_table(index="seed", columns="heads", values="plateau").dropna()
    if len(single.columns) > 1 and len(single):
        few, *_, many = single.columns
        factor = boundary_of((single[many] / single[few]).to_numpy())
        yield Check(
            f"one layer: plateau with {many} heads over that with {few}, geometric mean over "
            f"seeds (95% from {factor.low:.2f} to {factor.high:.2f})",
            factor.step,
            None,
            factor.step < 1,
            "below 1, if heads were chances to start well and nothing else",
        )
    lucky = reached[reached["layers"] > 1]["plateau"]
    gain = speed_up(rules, "fixed") if rules is not None else None
    if len(lucky) > 3 and gain:
        share = np.log(lucky.quantile(0.95) / lucky.quantile(0.05)) / gain
        yield Check(
            "spread over seeds (95% quantile over 5%, on logarithms) over the speed-up by "
            "width at the same rate",
            share,
            None,
            0 < share < 1,
            "0 to 1: luck is the smaller part",
        )


# Rank.


def rank_table(runs: Runs) -> pd.DataFrame:
    """Tabulate the final loss as a share of that at the start, with the floor of the rank.

    The plateau ends where the loss crosses 0.1.
    """
    rows = []
    for result, row in zip(runs, runs.table.to_dict("records"), strict=True):
        loss = curve(result, "loss")
        passed = emergence(curve(result, "step"), loss, 0.1)
        row["last"] = float(loss[-5:].mean()) / 0.5
        row["floor"] = float(rank_floor(row["width"], row["dim"]))
        row["half_floor"] = float(rank_floor(0.5 * row["width"], row["dim"]))
        row |= {"plateau": passed.time, "censored": passed.censored, "state": passed.state}
        rows.append(row)
    return pd.DataFrame(rows)


def rank_checks(table: pd.DataFrame) -> Iterator[Check]:
    reached = table.assign(learned=table["state"] == "reached")
    columns = ["last", "floor", "half_floor", "learned"]
    cells = reached.groupby(["width", "dim"])[columns].mean().reset_index()
    below = (cells["last"] - cells["floor"]).min()
    yield Check(
        "loss at the end less the floor of the rank, least over cells",
        below,
        None,
        below > -0.05,
        "above -0.05",
    )
    hidden = cells["learned"][cells["floor"] > 0.2]
    if len(hidden):
        yield Check(
            "runs that learn where the floor is above the threshold",
            hidden.max(),
            None,
            hidden.max() == 0,
            "none",
        )
    easy = cells["learned"][cells["floor"] < 0.1]
    if len(easy):
        yield Check(
            "share of runs that learn where the floor is below half the threshold, "
            "least over cells",
            easy.min(),
            None,
            easy.min() == 1,
            "1: a width above 0.6 of dim is enough",
        )
    wide = cells[cells["dim"] <= 2 * cells["width"]]
    off = (wide["last"] - wide["half_floor"]).abs().max()
    yield Check(
        "loss at the end less the floor of half the width, largest size for dims up to twice "
        "the width (decided after the runs were seen)",
        off,
        None,
        off < 0.15,
        "below 0.15",
    )


LAPTOP = Settings(
    SMALL.replace(task__length=16, task__dim=8, optimizer__learning_rate=2e-3, steps=1500),
    widths=(16, 32, 64),
    doublings=(0, 1, 2),
    seeds=3,
    reference=64,
    lucky=12,
    heads=(1, 4),
    narrow=(16,),
    dims=(4, 8, 16, 32),
    depths=(),
)
SMOKE = dataclasses.replace(
    LAPTOP,
    base=TINY.replace(task__length=4, task__dim=4),
    widths=(8, 16),
    doublings=(0, 1),
    seeds=1,
    reference=16,
    lucky=5,
    heads=(1, 2),
    narrow=(8,),
    dims=(4, 16),
)
PAPER_SIZES = Settings(PAPER.replace(task__length=64, task__dim=32, steps=20_000))
FIGURE = Figure(
    "emergo/capacity",
    "plateau by width, learning rate, heads and the luck of the start",
    {"paper": PAPER_SIZES, "laptop": LAPTOP, "smoke": SMOKE},
    make,
    {"paper": 3e5, "laptop": 110, "smoke": 25},
    curves=True,
    outcomes=("depth",),
)
