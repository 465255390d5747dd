"""Two circuits that need each other: recall with copying or selecting given by an intervention, so that one has to form."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array
from matplotlib.axes import Axes

from ..._contract import Tap
from ..._errors import InputError
from ..._pytree import per_run
from ..._style import BLACK, BLUE, CENSORED, GREY, ORANGE, doubling, key, level, outside, shades, subtitle
from ...engine import Clamp, Config, Intervention, Result
from ...measure import Law, fit_law
from ...studies import Study
from ...tasks import Recall
from ...theory import coupled_plateau, predicted_coupled
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource
from .._panels import panels
from .._recall import PAPER, SHALLOW, SMALL, TINY, criteria, passed, recall_task
from .._source import curve, distinct_results
from ..zucchet2025 import fig4

PUBLISHED = fig4.LAW.exponents["pairs"]


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
ASIDE = (0.955, 0.985, 1.015, 1.045)
CIRCUITS = {"copying": ORANGE, "selecting": BLUE}
CELL = ["part", "pairs", "vocabulary"]


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    pairs: tuple[int, ...] = (8, 16, 4)
    """The most valuable first: each is a program of its own."""
    vocabularies: tuple[int, ...] = (32, 64, 128, 256)
    rates: tuple[float, ...] = (1e-3, 3e-4)
    """Learning rates: laws are at the best of each part and cell, comparisons of parts at the same one, the last is drawn."""
    seeds: int = 3
    caps: tuple[tuple[int, int], ...] = ()
    """Numbers of pairs that are followed for so many steps instead of the base's."""
    shown: tuple[int, int] = (8, 32)
    """Pairs and tokens of the learning curves, and of the axes that the other is drawn against."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Of the toy model."""

    def studies(self) -> dict[str, Study]:
        studies = {}
        for pairs, (part, interventions) in itertools.product(self.pairs, PARTS.items()):
            sizes = [size for size in self.vocabularies if size > pairs]
            steps = dict(self.caps).get(pairs, self.base.steps)
            config = self.base.replace(task=Recall(pairs, sizes[0]), interventions=interventions, steps=steps)
            axes = {"vocabulary": sizes, "learning_rate": self.rates}
            studies[f"{part}, {pairs} pairs"] = Study.of(config, grid=axes, seeds=self.seeds)
        return studies


def part_of(result: Result) -> str:
    return next(part for part, interventions in PARTS.items() if interventions == result.run.config.interventions)


def strength(result: Result, circuit: str) -> np.ndarray:
    """A circuit's attention in the head of its layer where it ends highest."""
    heads = curve(result, circuit)[:, LAYER[circuit]]
    return heads[:, int(np.argmax(heads[-1]))]


def circuit_times(result: Result) -> dict[str, float]:
    """When copying and selecting are half way from where they begin to where they end; NaN where they are held, or end less
    than 0.1 above their begin: not every run that recalls does so by a head of this layer."""
    held = {"copying": part_of(result) == SELECTING, "selecting": part_of(result) == NEITHER}
    times = {}
    for name, is_held in held.items():
        values = strength(result, name)
        formed = not is_held and values[-1] > values[0] + 0.1
        times[name] = passed(result, values, float(values[0] + values[-1]) / 2).time if formed else math.nan
    return times


def run_table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per run: when it was half way from guessing to perfect (`plateau`) and 5% of the way (`early`), and its circuits.

    With few pairs a run that guesses passes 5% now and then by chance; half way is recall.
    """
    rows = []
    for result in results:
        task, (early, middle) = recall_task(result.run), (criteria(result, level)["corrected"] for level in (0.05, 0.5))
        rows.append(
            {"part": part_of(result), "pairs": task.pairs, "vocabulary": task.vocabulary, "seed": result.run.seed}
            | {"learning_rate": result.run.config.optimizer.learning_rate, "identity": result.run.identity}
            | {"plateau": middle.time, "censored": middle.censored, "state": middle.state}
            | {"early": early.time, "early_censored": early.censored, "accuracy": float(curve(result, "accuracy")[-1])}
            | {"steps": result.steps}
            | circuit_times(result)
        )
    return pd.DataFrame(rows)


def at_best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The runs at the learning rate with which each part and cell emerges first, by the geometric mean of its seeds; a rate
    with fewer seeds that do not emerge comes before one with more."""
    times = table["plateau"].clip(lower=1).transform("log").where(table["state"] == "reached")
    by_rate = times.groupby([*(table[name] for name in CELL), table["learning_rate"]], sort=False)
    order = by_rate.agg(missing=lambda x: x.isna().sum(), time="mean").reset_index()
    best = order.sort_values(["missing", "time"]).drop_duplicates(CELL)[[*CELL, "learning_rate"]]
    return table.merge(best, on=[*CELL, "learning_rate"], how="inner")


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of those parts and cells of which every seed emerged."""
    keys = [table[name] for name in (*CELL, "learning_rate")]
    return table[(table["state"] == "reached").groupby(keys).transform("all")]


def fitted(table: pd.DataFrame, x: Sequence[str], y: str = "plateau") -> Law | None:
    """The law of those columns of `x` that vary, or None where the runs do not determine it."""
    varied = [name for name in x if len({*table[name]}) > 1]
    return fit_law(table, y, varied) if varied and len(table) > len(varied) + 1 else None


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """One row per seed of a cell and learning rate at which every part emerged with all seeds: steps when both form over those
    of other parts, and over those of the two circuits alone, added (less what both of these hold, the way to the output)."""
    index = ["pairs", "vocabulary", "learning_rate", "seed"]
    wide = whole(table).pivot_table("plateau", index, "part").reindex(columns=list(PARTS)).dropna()
    over = {f"over {part}": wide[BOTH] / wide[part] for part in (SELECTING, COPYING, NEITHER)}
    waiting = wide[BOTH] / (wide[SELECTING] + wide[COPYING] - wide[NEITHER])
    return pd.DataFrame(over | {"waiting": waiting}).reset_index()


def copying_alone(table: pd.DataFrame) -> pd.DataFrame:
    """One row per seed: the steps that copying takes beyond those of the way to the output, at the same learning rate."""
    index = ["pairs", "vocabulary", "learning_rate", "seed"]
    wide = whole(table).pivot_table("plateau", index, "part").reindex(columns=list(PARTS))[[COPYING, NEITHER]].dropna()
    return wide.assign(beyond=wide[COPYING] - wide[NEITHER]).reset_index()


def exponent_table(table: pd.DataFrame) -> pd.DataFrame:
    """Exponents of pairs at each number of tokens, and of tokens at each number of pairs, by part and learning rate, from whole
    cells."""
    rows = []
    for of, at in (("pairs", "vocabulary"), ("vocabulary", "pairs")):
        for (part, rate, size), some in whole(table).groupby(["part", "learning_rate", at], sort=False):
            if law := fitted(some, [of]):
                cells = {"of": of, "at": size, "part": part, "learning_rate": rate, "cells": len({*some[of]})}
                rows.append(cells | {"exponent": law.exponents[of]} | dict(zip(("low", "high"), law.ci95[of], strict=True)))
    return pd.DataFrame(rows, columns=["of", "at", "part", "learning_rate", "cells", "exponent", "low", "high"])


OWN = (0.0, 0.01, 0.1)
DIM = 64


def toy_table(lengths: Sequence[int]) -> pd.DataFrame:
    """Plateaus of two attentions of a length each, with a signal of the first one's own (`own`), and of one (`own` NaN)."""
    one = pd.DataFrame({"length": lengths, "own": math.nan})
    two = pd.DataFrame(itertools.product(OWN, lengths), columns=["own", "length"])
    for frame, count in ((one, 1), (two, 2)):
        sizes, own = [frame["length"].to_numpy()] * count, frame["own"].fillna(0).to_numpy()
        frame["plateau"], frame["predicted"] = coupled_plateau(sizes, DIM, own).time, predicted_coupled(sizes, DIM, own)
    return pd.concat([one, two], ignore_index=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    results = distinct_results(source.runs(settings.studies(), curves=True))
    every, toy = run_table(results), toy_table(settings.lengths)
    table, ratios = at_best_rates(every), compared(every)
    laws = {part: fitted(whole(table[table["part"] == part]), ["vocabulary", "pairs"]) for part in PARTS}
    exponents, alone = exponent_table(every), copying_alone(table)
    tables = {"runs": table, "rates": every, "exponents": exponents, "ratios": ratios, "copying": alone, "toy": toy}
    shown = exponents[exponents["learning_rate"] == settings.rates[-1]]
    plot = draw(results, every, shown, toy, settings)
    comparisons = [Comparison(part, law) for part, law in laws.items() if law]
    checks = [*ratio_checks(ratios), *copying_checks(alone), *falling_checks(shown), *together_check(every), toy_check(toy)]
    return Outcome({name: rows for name, rows in tables.items() if len(rows)}, plot, comparisons, checks)


def sizes_of(result: Result) -> tuple[int, int]:
    task = recall_task(result.run)
    return task.pairs, task.vocabulary


def toy_check(toy: pd.DataFrame) -> Check:
    ratio = (toy["plateau"] / toy["predicted"])[toy["length"] >= 64]
    name = "toy model: plateau integrated over that derived, lengths of 64 and more, smallest and largest"
    return Check(name, [ratio.min(), ratio.max()], None, ratio.between(0.9, 1.2).all(), "1 within 20%")


def ratio_checks(ratios: pd.DataFrame) -> list[Check]:
    """Of what is given at the same learning rate."""
    checks = []
    for part in (SELECTING, COPYING, NEITHER) if len(ratios) else ():
        cells = [ratios[name] for name in ("pairs", "vocabulary", "learning_rate")]
        means = ratios[f"over {part}"].transform("log").groupby(cells).mean().transform("exp")
        name = f"steps when both form over those when {part}: smallest and largest of {len(means)} cells"
        checks.append(Check(name, [means.min(), means.max()], None, (means > 1).all(), "above 1: what is given need not form"))
    if (law := fitted(ratios, ["vocabulary", "pairs"], f"over {SELECTING}")) and "pairs" in law.exponents:
        name = "exponent of pairs when both form less that with copying given, and its interval"
        low, high = law.ci95["pairs"]
        checks.append(Check(name, [law.exponents["pairs"], low, high], None, low > 0.5, "near 1 where lengths multiply"))
    if len(ratios):
        mean = float(np.exp(np.log(ratios["waiting"].to_numpy()).mean()))
        name = "steps when both form over those of the two alone, added: geometric mean"
        checks.append(Check(name, mean, None, mean > 1, "above 1: they wait for each other"))
    return checks


def copying_checks(alone: pd.DataFrame) -> list[Check]:
    law = fitted(alone, ["vocabulary", "pairs"], "beyond")
    if law is None or "pairs" not in law.exponents:
        return []
    low, high = law.ci95["pairs"]
    name = "exponent of pairs of the steps that copying takes beyond those when neither has to form, and its interval"
    near = abs(law.exponents["pairs"] - 1) < max(0.15, (high - low) / 2)
    return [Check(name, [law.exponents["pairs"], low, high], None, near, "1, as in the toy model of one attention")]


def falling_checks(exponents: pd.DataFrame) -> list[Check]:
    """Whether the exponent of pairs is smaller with many tokens than with few."""
    checks = []
    for part in (BOTH, SELECTING, COPYING):
        rows = exponents[(exponents["of"] == "pairs") & (exponents["part"] == part)].sort_values("at")
        if len(rows) > 1:
            name = f"exponent of pairs when {part}, with {', '.join(f'{x:g}' for x in rows['at'])} tokens"
            falls = rows["high"].iloc[-1] < rows["low"].iloc[0]
            words = "smaller with the most tokens than with the fewest, intervals apart"
            checks.append(Check(name, rows[["exponent", "low", "high"]].to_numpy(), None, falls, words))
    return checks


def together_check(table: pd.DataFrame) -> list[Check]:
    both = table[(table["part"] == BOTH) & (table["state"] == "reached")]
    apart = (both["selecting"] / both["copying"]).dropna()
    if not len(apart):
        return []
    name = f"when both form: selecting half way over copying half way, smallest, median and largest of {len(apart)} runs"
    together = apart.between(1 / 1.5, 1.5).all()
    measured = [apart.min(), apart.median(), apart.max()]
    return [Check(name, measured, None, together, "1 within a factor of 1.5: together, as in the toy model")]


def draw(
    results: Sequence[Result], every: pd.DataFrame, exponents: pd.DataFrame, toy: pd.DataFrame, settings: Settings
) -> Plot:
    """At one learning rate, so that parts can be compared."""
    pairs, tokens = settings.shown
    table = every[every["learning_rate"] == settings.rates[-1]]
    kept = {*table["identity"]}
    shown = [r for r in results if r.run.identity in kept and sizes_of(r) == settings.shown]
    titles = ["a  toy model", "b  recall", "c  both form", "d  more pairs", "e  more tokens", "f  exponent of pairs"]
    plot, (a, b, c, d, e, f) = panels(4.6, *titles, rows=2, y=1.08)
    draw_toy(a, toy)
    for result in shown:
        b.plot(curve(result, "step")[1:], curve(result, "accuracy")[1:], color=COLOURS[part_of(result)], lw=1, alpha=0.85)
    for result in [result for result in shown if part_of(result) == BOTH]:
        for values, colour in ((curve(result, "accuracy"), BLACK), *((strength(result, n), CIRCUITS[n]) for n in CIRCUITS)):
            c.plot(curve(result, "step")[1:], values[1:], color=colour, lw=1, alpha=0.85)
    for axes, words in ((b, "guess"), (c, "")):
        level(axes, 1 / pairs, words)
        axes.set(xscale="log", xlabel="step", ylim=(-0.03, 1.03))
        subtitle(axes, f"{pairs} pairs, {tokens} tokens")
    b.set_ylabel("test accuracy")
    c.set_ylabel("accuracy, attention")
    key(c, [("accuracy", {"color": BLACK}), *((n, {"color": colour}) for n, colour in CIRCUITS.items())], loc="upper left")
    for axes, x, other, fixed in ((d, "pairs", "vocabulary", tokens), (e, "vocabulary", "pairs", pairs)):
        draw_times(axes, table[table[other] == fixed], x)
        subtitle(axes, f"{fixed} {'tokens' if other == 'vocabulary' else 'pairs'}")
    draw_exponents(f, exponents)
    outside(c, "", [(part.replace(" ", "\n", 1), {"color": colour}) for part, colour in COLOURS.items()])
    outside(f, "", [CENSORED])
    return plot


def draw_toy(axes: Axes, toy: pd.DataFrame) -> None:
    looks = dict(zip((math.nan, *OWN), (GREY, *shades(len(OWN))), strict=True))
    for own, colour in looks.items():
        rows = toy[toy["own"].isna() if math.isnan(own) else toy["own"] == own]
        axes.plot(rows["length"], rows["predicted"], color=colour, lw=1.1)
        axes.plot(rows["length"], rows["plateau"], "o", color=colour, ms=3.5, mec="white", mew=0.4)
    doubling(axes)
    axes.set(yscale="log", xlabel="length $T$ of each attention", ylabel="plateau (flow time)")
    axes.set_ylim(top=100 * toy["plateau"].max())  # room for the key
    words = ["one attention", "two", *(f"two, $g$ = {own:g}" for own in OWN[1:])]
    key(axes, [(word, {"color": colour}) for word, colour in zip(words, looks.values(), strict=True)], loc="upper left")
    subtitle(axes, "dots: integrated, lines: derived")


def draw_times(axes: Axes, table: pd.DataFrame, x: str) -> None:
    """One dot per run, parts a little aside, and a line through the geometric means of whole cells."""
    for part, colour, aside in zip(COLOURS, COLOURS.values(), ASIDE, strict=True):
        rows = table[table["part"] == part].assign(**{x: lambda rows, aside=aside: rows[x] * aside})
        for late, look in ((False, {"marker": "o", "mec": "white", "mew": 0.4, "ms": 4}), (True, CENSORED[1])):
            some = rows[(rows["censored"] == late) & (rows["state"] != "failed")]
            axes.plot(some[x], some["plateau"], **{"ls": "", "color": colour, "zorder": 3} | look)
        line = whole(rows).groupby(x)["plateau"].agg(lambda values: np.exp(np.log(values).mean()))
        axes.plot(line.index, line, color=colour, lw=1.1)
    doubling(axes)
    axes.set_xticks(sorted({*table[x]}))
    axes.set(yscale="log", xlabel="tokens" if x == "vocabulary" else x, ylabel="steps to half way")


def draw_exponents(axes: Axes, exponents: pd.DataFrame) -> None:
    rows = exponents[exponents["of"] == "pairs"]
    for aside, (part, colour) in zip(ASIDE, COLOURS.items(), strict=True):
        some = rows[rows["part"] == part].sort_values("at")
        at = some["at"] * aside
        axes.vlines(at, some["low"], some["high"], color=colour, lw=1)
        axes.plot(at, some["exponent"], "o-", color=colour, ms=4, lw=0.8, mec="white", mew=0.4)
    doubling(axes)
    axes.axhline(PUBLISHED, color=GREY, ls="--", lw=0.9)
    axes.set(xlabel="tokens", ylabel="exponent of pairs")
    subtitle(axes, "where all seeds emerge; dashed: published")


TITLE = "recall with copying or selecting given: what each circuit costs, and what it costs that they need each other"
WIDE = SHALLOW.replace(width=128)
PRESETS: Presets = {
    "paper": Settings(PAPER.replace(model=WIDE, optimizer__learning_rate=1e-3, steps=20_000), caps=((16, 30_000),)),
    "laptop": Settings(SMALL, (4, 3), (8, 12), (1e-3,), seeds=2, shown=(4, 12)),
    "smoke": Settings(TINY, (3, 2), (4, 6), (1e-2,), seeds=1, shown=(3, 6), lengths=(16, 64)),
}
FIGURE = Figure("emergo/coupled", TITLE, PRESETS, make, {"paper": 1e5, "laptop": 96, "smoke": 28}, curves=True)
