"""Two circuits that need each other: recall with copying or selecting given by an intervention, so that one has to form."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from ..._contract import Tap
from ..._errors import InputError
from ..._pytree import per_run
from ..._style import BLACK, BLUE, GREY, ORANGE
from ...engine import Clamp, Config, Intervention, Result
from ...measure import Law, fit_law
from ...studies import Study
from ...tasks import Recall
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource
from .._panels import panels
from .._recall import PAPER, SHALLOW, SMALL, TINY, criteria, passed, recall_task
from .._source import curve


class Match(Intervention):
    """Attention of the last position by what has been copied: the score of a position is `gain` times the attention that head 0
    of the first layer pays from there to earlier occurrences of the query. An ideal selecting head that still needs copying."""

    reads = ("layers.0.pattern",)
    gain: float = per_run(default=8.0, low=0.0)

    def new_from(self, value: Array, tap: Tap) -> Array:
        if tap.batch is None or tap.batch.inputs.ndim != 2:
            raise InputError("Match compares whole-number tokens with the query, and this batch has none")
        tokens, copied = tap.batch.inputs, tap.taken["layers.0.pattern"][:, 0]
        asked = (tokens == tokens[:, -1:]) & (jnp.arange(tokens.shape[1]) < tokens.shape[1] - 1)
        scores = jnp.asarray(self.gain, copied.dtype) * jnp.einsum("nqk,nk->nq", copied, asked.astype(copied.dtype))
        last = jnp.arange(tokens.shape[1])[:, None] == tokens.shape[1] - 1
        return jnp.where(last, jax.nn.softmax(scores, -1)[:, None, None].astype(value.dtype), value)


def given(copying: float = 0.0, selecting: float = 0.0, answer: float = 0.0) -> tuple[Intervention, ...]:
    """What is given, on head 0 of a layer. All parts have all three, with strengths 1 or 0, so that they share one program.

    - `copying`: the first layer attends to the token before.
    - `selecting`: the last position attends to where the first layer has copied the query from.
    - `answer`: the last position attends to the value that is asked for; what then has to form is its way to the output.
    """
    return (
        Clamp("layers.0.pattern", head=0, to="previous", strength=copying),
        Match("layers.1.pattern", head=0, strength=selecting),
        Clamp("layers.1.pattern", head=0, to="relevant", strength=answer),
    )


BOTH, SELECTING, COPYING, NEITHER = "both form", "selecting forms", "copying forms", "neither has to"
PARTS = {
    BOTH: given(),
    SELECTING: given(copying=1.0),
    COPYING: given(selecting=1.0),
    NEITHER: given(answer=1.0),
}
"""By what has to form."""
COLOURS = dict(zip(PARTS, (BLACK, BLUE, ORANGE, GREY), strict=True))
LAYER = {"copying": 0, "selecting": 1}


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    pairs: tuple[int, ...] = (8, 16, 4)
    """The most valuable first: each is a program of its own."""
    vocabularies: tuple[int, ...] = (32, 64, 128, 256)
    rates: tuple[float, ...] = (1e-3, 3e-4)
    """Learning rates to choose from, for each part and cell."""
    seeds: int = 3
    caps: tuple[tuple[int, int], ...] = ()
    """Numbers of pairs that are followed for so many steps instead of the base's."""

    def studies(self) -> dict[str, Study]:
        studies = {}
        for pairs, (part, interventions) in itertools.product(self.pairs, PARTS.items()):
            sizes = [size for size in self.vocabularies if size > pairs]
            steps = dict(self.caps).get(pairs, self.base.steps)
            config = self.base.replace(task=Recall(pairs, sizes[0]), interventions=interventions, steps=steps)
            studies[f"{part}, {pairs} pairs"] = Study.of(
                config, grid={"vocabulary": sizes, "learning_rate": self.rates}, seeds=self.seeds
            )
        return studies


def circuit_times(result: Result) -> dict[str, float]:
    """When the strongest copying head of the first layer and selecting head of the second are half way from where they begin
    to where they end; NaN where a circuit is given."""
    times = {}
    for name, layer in LAYER.items():
        heads = curve(result, name)[:, layer]
        head = heads[:, int(np.argmax(heads[-1]))]
        clamped = result.run.config.interventions in (PARTS[SELECTING if name == "copying" else NEITHER],)
        times[name] = math.nan if clamped else passed(result, head, float(head[0] + head[-1]) / 2).time
    return times


def run_table(parts: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """One row per run: when recall emerged (5% and 50% of the way from guessing to perfect), and its circuits."""
    rows = []
    for name, results in parts.items():
        for result in results:
            task, early, middle = recall_task(result.run), *(criteria(result, level)["corrected"] for level in (0.05, 0.5))
            rows.append(
                {"part": name.rpartition(",")[0], "pairs": task.pairs, "vocabulary": task.vocabulary, "seed": result.run.seed}
                | {"learning_rate": result.run.config.optimizer.learning_rate}
                | {"plateau": early.time, "censored": early.censored, "state": early.state}
                | {"half": middle.time, "half_censored": middle.censored, "accuracy": float(curve(result, "accuracy")[-1])}
                | circuit_times(result)
            )
    return pd.DataFrame(rows)


CELL = ["part", "pairs", "vocabulary"]


def at_best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The runs at the learning rate with which each part and cell emerges first, by the geometric mean of its seeds; one with
    a seed that does not emerge comes after those that all do, and of several such the one with the most that do."""
    times = table["plateau"].clip(lower=1).transform("log").where(~table["censored"])
    by_rate = times.groupby([*(table[name] for name in CELL), table["learning_rate"]], sort=False)
    order = by_rate.agg(missing=lambda x: x.isna().sum(), time="mean").reset_index()
    best = order.sort_values(["missing", "time"]).drop_duplicates(CELL)[[*CELL, "learning_rate"]]
    return table.merge(best, on=[*CELL, "learning_rate"], how="inner")


def laws_of(table: pd.DataFrame) -> dict[str, Law]:
    """The law of each part that has several numbers of pairs and of tokens among the runs that emerged."""
    laws = {}
    for part, rows in table.groupby("part", sort=False):
        there = rows[rows["state"] == "reached"]
        if min(len({*there["pairs"]}), len({*there["vocabulary"]})) > 1:
            laws[str(part)] = fit_law(rows, x=["vocabulary", "pairs"])
    return laws


def make(settings: Settings, source: RunSource) -> Outcome:
    table = run_table(source.runs(settings.studies(), curves=True))
    best = at_best_rates(table)
    laws = laws_of(best)
    tables = {"runs": best, "rates": table}
    return Outcome(tables, draw(best, laws), [Comparison(part, law) for part, law in laws.items()], checks_of(best))


def checks_of(table: pd.DataFrame) -> list[Check]:
    logs = table["plateau"].clip(lower=1).transform("log").groupby([table[name] for name in ("pairs", "vocabulary", "part")])
    means = logs.mean().transform("exp").unstack()
    checks = []
    for part in (SELECTING, COPYING, NEITHER):
        if part in means and BOTH in means:
            ratio = (means[BOTH] / means[part]).dropna()
            name = f"emergence when both form over that when {part}: smallest and largest of cells"
            checks.append(
                Check(name, [ratio.min(), ratio.max()], None, (ratio > 1).all(), "above 1: what is given need not form")
            )
    return checks


def draw(table: pd.DataFrame, laws: Mapping[str, Law]) -> Plot:
    plot, row = panels(2.6, "pairs", "tokens")
    for axes, x in zip(row, ("pairs", "vocabulary"), strict=True):
        for part, colour in COLOURS.items():
            rows = table[table["part"] == part]
            axes.plot(rows[x], rows["plateau"], "o", color=colour, ms=3)
        axes.set(xscale="log", yscale="log", xlabel=x, ylabel="emergence (steps)")
    return plot


TITLE = "recall with copying or selecting given: what each circuit costs, and what their coupling does"
WIDE = SHALLOW.replace(width=128)
PRESETS: Presets = {
    "paper": Settings(PAPER.replace(model=WIDE, optimizer__learning_rate=1e-3, steps=20_000), caps=((16, 30_000),)),
    "laptop": Settings(SMALL, pairs=(3, 5), vocabularies=(12, 24), rates=(1e-3,), seeds=2),
    "smoke": Settings(TINY, pairs=(2, 3), vocabularies=(4, 6), rates=(1e-2,), seeds=1),
}
FIGURE = Figure("emergo/coupled", TITLE, PRESETS, make, {"paper": 1e5, "laptop": 110, "smoke": 20}, curves=True)
