"""Longer training or a larger model? How much of "larger models learn it sooner" is the learning rate, rank, or a lucky start.

One cell of the task (dim 32 in 64 tokens) is trained at every width at a fixed learning rate, at one in proportion to 1/width,
and at the best of those tried; at two small widths with dims up to four times the width; and with many seeds.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ...engine import Config, Run, plan_group
from ...measure import Law, boundary_of, emergence, fit_law
from ...studies import Runs, Study
from ...theory import rank_floor
from .._figure import Check, Comparison, Figure, Outcome, Presets, RunSource, Seconds
from .._source import curve, distinct_results
from .._transformers import PAPER, SMALL, TINY
from ._capacity_panels import draw

RULES = {"fixed": "the same rate", "scaled": "rate in proportion to 1/width", "best": "best rate of each width"}
REFERENCE = 256
"""The width at which the rule 1/width has the fixed rate."""
WIDE = 512
"""From here on a step costs most: half as many steps at most, and three seeds."""


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    """With the fixed learning rate."""
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    doublings: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Rates tried at each width: the scaled rate times these powers of 2; and the fixed one."""
    seeds: int = 5
    reference: int = REFERENCE
    lucky: int = 64
    """Seeds of the runs that show the luck of the start: the model at the reference width, and one layer with `heads`."""
    heads: tuple[int, ...] = (1, 4, 16)
    narrow: tuple[int, ...] = (32, 64)
    dims: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    depths: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4))
    """Layers and heads, as in Figure 13 of zucchet2025, whose runs these are."""

    def rates(self, width: int) -> dict[str, float]:
        """The fixed and the scaled rate of a width."""
        fixed = self.base.optimizer.learning_rate
        return {"fixed": fixed, "scaled": fixed * self.reference / width}

    def tried(self, width: int) -> tuple[float, ...]:
        rates = self.rates(width)
        return tuple(sorted({rates["fixed"], *(rates["scaled"] * 2**power for power in self.doublings)}))

    def at(self, width: int) -> Config:
        """The base at a width; wide models, whose steps cost most, may take fewer steps."""
        steps = self.base.steps // 2 if width >= WIDE else self.base.steps
        return self.base.replace(model__width=width, steps=steps)

    def by_width(self) -> dict[str, Study]:
        return {
            f"width {width}": Study.of(
                self.at(width),
                tune={"learning_rate": self.tried(width)},
                seeds=self.seeds if width < WIDE else min(self.seeds, 3),
            )
            for width in self.widths
        }

    def own(self) -> dict[str, Study]:
        """Runs that are drawn with their curves."""
        parts = self.by_width()
        reference = self.at(self.reference)
        parts["luck"] = Study.of(reference, seeds=self.lucky)
        parts["heads"] = Study.of(reference.replace(model__layers=1), grid={"heads": self.heads}, seeds=self.lucky)
        for width in self.narrow:
            base = self.at(width).replace(optimizer__learning_rate=2 * self.rates(width)["scaled"], threshold=None)
            parts[f"rank {width}"] = Study.of(base, grid={"dim": self.dims}, seeds=min(self.seeds, 3))
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
    others = source.runs(settings.borrowed()) if settings.depths else {}
    rules = by_rule(settings, parts)
    tables, laws, checks = {}, [], []
    if rules is not None:
        tables |= {"rates": rates_of(parts), "rules": rules}
        laws += laws_of(rules)
        checks += rate_checks(rules, {both.name: both.law for both in laws})
    starts = {name: start_table(runs) for name, runs in parts.items() if name in ("luck", "heads")}
    if starts:
        tables["starts"] = pd.concat(starts.values(), ignore_index=True)
        checks += luck_checks(tables["starts"], rules)
    narrow = [rank_table(runs) for name, runs in parts.items() if name.startswith("rank")]
    if narrow:
        tables["rank"] = pd.concat(narrow, ignore_index=True)
        checks += rank_checks(tables["rank"])
    tables |= {name: runs.table for name, runs in others.items()}
    return Outcome(tables, draw(tables, distinct_results(parts)), laws, checks)


# Width.


def rates_of(parts: Mapping[str, Runs]) -> pd.DataFrame:
    """Every width and rate, one row per run; `chosen` marks the best rate of a width."""
    return pd.concat([runs.table for name, runs in parts.items() if name.startswith("width")], ignore_index=True)


def by_rule(settings: Settings, parts: Mapping[str, Runs]) -> pd.DataFrame | None:
    """One row per run that a rule takes (a run may follow several), with the operations until its plateau ended."""
    frames = []
    for runs in (runs for name, runs in parts.items() if name.startswith("width")):
        table, width = runs.table, int(runs.table["width"].iloc[0])
        step = plan_group([Run(settings.at(width), 0)], "cpu", budget=1e12).operations
        table = table.assign(operations=step * table["plateau"])
        taken = {name: np.isclose(table["learning_rate"], rate) for name, rate in settings.rates(width).items()}
        taken["best"] = table["chosen"].to_numpy(bool)
        frames += [table[rows].assign(rule=name) for name, rows in taken.items()]
    return pd.concat(frames, ignore_index=True) if frames else None


def laws_of(rules: pd.DataFrame) -> list[Comparison]:
    """The plateau in steps and in operations as a power of the width, for each rule that two widths or more follow."""
    laws = []
    for y, unit in (("plateau", "steps"), ("operations", "operations")):
        for rule, words in RULES.items():
            rows = rules[rules["rule"] == rule]
            if len(set(rows["width"][rows["state"] == "reached"])) > 1:
                laws.append(Comparison(f"{unit}, {words}", fit_law(rows, y=y, x=["width"])))
    return laws


def rate_checks(rules: pd.DataFrame, laws: Mapping[str, Law]) -> list[Check]:
    checks = []

    def exponent(unit: str, rule: str) -> tuple[float, tuple[float, float]]:
        law = laws[f"{unit}, {RULES[rule]}"]
        return law.exponents["width"], law.ci95["width"]

    if f"steps, {RULES['fixed']}" in laws:
        value, (_, high) = exponent("steps", "fixed")
        words = "the interval below 0: larger models learn it sooner"
        checks.append(Check("exponent of width, the same rate", value, None, high < 0, words))
    if f"steps, {RULES['scaled']}" in laws:
        value, _ = exponent("steps", "scaled")
        words = "-0.2 to 0.2: Adam's step moves the output in proportion to rate times width"
        checks.append(Check("exponent of width, rate in proportion to 1/width", value, None, abs(value) < 0.2, words))
    if f"operations, {RULES['best']}" in laws:
        value, (low, _) = exponent("operations", "best")
        words = "the interval above 0: in operations the larger model does not pay"
        checks.append(Check("exponent of width of the operations, best rate", value, None, low > 0, words))
    gains = {rule: gain for rule in RULES if (gain := speed_up(rules, rule)) is not None}
    if {"fixed", "best"} <= set(gains) and gains["fixed"] > 0:
        share = 1 - gains["best"] / gains["fixed"]
        name = "share of the speed-up by width (on logarithms) that a tuned rate takes away"
        checks.append(Check(name, share, None, share > 0.5, "above 0.5: most of it is the learning rate"))
    same = common_widths(rules)
    shares = shares_by_seed(rules, same)
    if len(shares):
        share, spread = float(shares.mean()), float(shares.std(ddof=1)) if len(shares) > 1 else np.nan
        half = float(stdtrit(max(len(shares) - 1, 1), 0.975)) * spread / len(shares) ** 0.5
        words = f"{same[0]} to {same[-1]}, 95% from {share - half:.2f} to {share + half:.2f}; decided after the runs were seen"
        checks.append(Check(f"the same share at widths that both get through ({words})", share, None, share > 0.5, "above 0.5"))
    return checks


def shares_by_seed(rules: pd.DataFrame, widths: list[int]) -> np.ndarray:
    """Of each seed that there is at the smallest and the largest of these widths: the share of the speed-up between them that
    the best rate takes away from the fixed one."""
    if len(widths) < 2:
        return np.array([])
    logs = np.log(rules.pivot_table(index="seed", columns=["rule", "width"], values="plateau"))
    gains = {rule: logs[rule][widths[0]] - logs[rule][widths[-1]] for rule in ("fixed", "best")}
    return (1 - gains["best"] / gains["fixed"])[gains["fixed"] > 0].dropna().to_numpy()


def common_widths(rules: pd.DataFrame) -> list[int]:
    """The widths at which all runs got there at the fixed rate and at the best."""
    rows = rules[rules["rule"].isin(("fixed", "best"))]
    got = rows.groupby("width").agg(rules=("rule", "nunique"), late=("state", lambda states: int((states != "reached").sum())))
    return sorted(got.index[(got["rules"] == 2) & (got["late"] == 0)].tolist())


def speed_up(rules: pd.DataFrame, rule: str) -> float | None:
    """The logarithm of the mean plateau at the smallest width over that at the largest, of those that all runs got through."""
    rows = rules[rules["rule"] == rule]
    whole = rows.groupby("width")["state"].transform(lambda states: (states == "reached").all()).astype(bool)
    means = rows[whole].groupby("width")["plateau"].mean()
    return float(np.log(means.iloc[0] / means.iloc[-1])) if len(means) > 1 else None


# The start.


def start_table(runs: Runs) -> pd.DataFrame:
    """One row per run, with what it started with: alignment of the value path with W*, the largest attention of a head to the
    relevant token over 1/length, and the loss."""
    rows = []
    for result, row in zip(runs, runs.table.to_dict("records"), strict=True):
        attention = float(np.max(curve(result, "attention")[0])) * row["length"]
        first = {name: float(curve(result, name)[0]) for name in ("alignment", "loss")}
        rows.append(row | {"alignment": first["alignment"], "attention": attention, "first_loss": first["loss"]})
    return pd.DataFrame(rows)


def correlation(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float]:
    """Pearson's, with a 95% interval from Fisher's transform."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    r, half = float(np.corrcoef(x, y)[0, 1]), 1.96 / np.sqrt(max(len(x) - 3, 1))
    return r, float(np.tanh(np.arctanh(r) - half)), float(np.tanh(np.arctanh(r) + half))


def luck_checks(starts: pd.DataFrame, rules: pd.DataFrame | None) -> list[Check]:
    checks, reached = [], starts[starts["state"] == "reached"]
    for _, rows in reached.groupby(["layers", "heads"]):
        if len(rows) < 4:
            continue
        layers, heads = int(rows["layers"].iloc[0]), int(rows["heads"].iloc[0])
        r, low, high = correlation(rows["alignment"], np.log(rows["plateau"]))
        name = f"{layers} layer{'s' * (layers > 1)}, heads {heads}: correlation of log plateau with the alignment at the start"
        words = "the interval below 0: who starts aligned leaves sooner"
        checks.append(Check(f"{name} (95% from {low:.2f} to {high:.2f})", r, None, high < 0, words))
    single = reached[reached["layers"] == 1].pivot_table(index="seed", columns="heads", values="plateau").dropna()
    if len(single.columns) > 1 and len(single):
        few, many = single.columns[0], single.columns[-1]
        factor = boundary_of((single[many] / single[few]).to_numpy())
        words = f"{many} heads over that with {few}, geometric mean over seeds (95% from {factor.low:.2f} to {factor.high:.2f})"
        expected = "below 1, if heads were chances to start well and nothing else"
        checks.append(Check(f"one layer: plateau with {words}", factor.step, None, factor.step < 1, expected))
    lucky = reached[reached["layers"] > 1]["plateau"]
    gain = speed_up(rules, "fixed") if rules is not None else None
    if len(lucky) > 3 and gain:
        spread = float(np.log(lucky.quantile(0.95) / lucky.quantile(0.05)))
        name = "spread over seeds (95% quantile over 5%, on logarithms) over the speed-up by width at the same rate"
        checks.append(Check(name, spread / gain, None, 0 < spread < gain, "0 to 1: luck is the smaller part"))
    return checks


# Rank.


def rank_table(runs: Runs) -> pd.DataFrame:
    """One row per run: where its loss ended, as a share of the start, beside the floor of its rank, and when it learned."""
    rows = []
    for result, row in zip(runs, runs.table.to_dict("records"), strict=True):
        step, loss = curve(result, "step"), curve(result, "loss")
        passed = emergence(step, loss, 0.1)
        floors = {
            name: float(rank_floor(share * row["width"], row["dim"])) for name, share in (("floor", 1), ("half_floor", 0.5))
        }
        ended = {"last": float(loss[-5:].mean()) / 0.5} | floors
        rows.append(row | ended | {"plateau": passed.time, "censored": passed.censored, "state": passed.state})
    return pd.DataFrame(rows)


def rank_checks(table: pd.DataFrame) -> list[Check]:
    cells = table.groupby(["width", "dim"]).agg(
        last=("last", "mean"),
        floor=("floor", "first"),
        half=("half_floor", "first"),
        learned=("state", lambda states: float((states == "reached").mean())),
    )
    below = float((cells["last"] - cells["floor"]).min())
    checks = [Check("loss at the end less the floor of the rank, least over cells", below, None, below > -0.05, "above -0.05")]
    hidden, easy = cells[cells["floor"] > 0.2], cells[cells["floor"] < 0.1]
    if len(hidden):
        most = hidden["learned"].max()
        checks.append(Check("runs that learn where the floor is above the threshold", most, None, most == 0, "none"))
    if len(easy):
        least = easy["learned"].min()
        name = "share of runs that learn where the floor is below half the threshold, least over cells"
        checks.append(Check(name, least, None, least == 1, "1: a width above 0.6 of dim is enough"))
    wide = cells[cells.index.get_level_values("dim") <= 2 * cells.index.get_level_values("width")]
    off = float((wide["last"] - wide["half"]).abs().max())
    name = "loss at the end less the floor of half the width, largest size for dims up to twice the width"
    checks.append(Check(f"{name} (decided after the runs were seen)", off, None, off < 0.15, "below 0.15"))
    return checks


PAPER_BASE = PAPER.replace(task__length=64, task__dim=32, steps=20_000)
LAPTOP_BASE = SMALL.replace(task__length=16, task__dim=8, optimizer__learning_rate=2e-3, steps=1500)
SMOKE_BASE = TINY.replace(task__length=4, task__dim=4)
TITLE = "plateau by width, learning rate, heads and the luck of the start"
SMALL_SIZES = {"widths": (16, 32, 64), "doublings": (0, 1, 2), "reference": 64, "lucky": 12, "heads": (1, 4)}
TINY_SIZES = {"widths": (8, 16), "doublings": (0, 1), "reference": 16, "lucky": 5, "heads": (1, 2), "narrow": (8,)}
PRESETS: Presets = {
    "paper": Settings(PAPER_BASE),
    "laptop": Settings(LAPTOP_BASE, seeds=3, narrow=(16,), dims=(4, 8, 16, 32), depths=(), **SMALL_SIZES),
    "smoke": Settings(SMOKE_BASE, seeds=1, dims=(4, 16), depths=(), **TINY_SIZES),
}
SECONDS: Seconds = {"paper": 3e5, "laptop": 110, "smoke": 25}
FIGURE = Figure("emergo/capacity", TITLE, PRESETS, make, SECONDS, curves=True, outcomes=("depth",))
