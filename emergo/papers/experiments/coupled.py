"""Recall needs two circuits: an intervention provides either one, and the other has to form.

Copying: the first layer attends to the previous token. Selecting: the last position attends to the
position that has copied the query.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array
from matplotlib.axes import Axes

from ...core.contract import Tap
from ...core.errors import InputError
from ...core.plotting import (
    BLACK,
    BLUE,
    CENSORED,
    GREY,
    ORANGE,
    doubling,
    key,
    level,
    outside,
    shades,
    subtitle,
)
from ...core.pytree import per_run
from ...measure import Law, fit_law
from ...study import Study
from ...tasks import Recall
from ...theory import coupled_plateau, predicted_coupled
from ...training import Clamp, Config, Intervention, Result
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import panels
from .._recall import PAPER, SHALLOW, SMALL, TINY, criteria, passed, recall_task
from .._source import curve, distinct_results
from ..zucchet2025 import fig4
from ._shared import DOT, draw_cells, draw_curve, entries, geometric_mean, whole_cells

PUBLISHED = fig4.LAW.exponents["pairs"]


class Match(Intervention):
    """Attention of the last position to the tokens that have copied the query.

    The score of a position is `gain` times the attention that head 0 of the first layer pays from
    there to earlier occurrences of the query: an ideal selecting head, which still needs copying.
    """

    reads = ("layers.0.pattern",)
    gain: float = per_run(default=8.0, low=0.0)

    def new_from(self, value: Array, tap: Tap) -> Array:
        if tap.batch is None or tap.batch.inputs.ndim != 2:
            raise InputError("Match compares whole-number tokens with the query; there are none")
        tokens = tap.batch.inputs
        positions = jnp.arange(tokens.shape[1])
        final = tokens.shape[1] - 1
        copied = tap.taken["layers.0.pattern"][:, 0]
        asked = (tokens == tokens[:, -1:]) & (positions < final)
        scores = jnp.asarray(self.gain, copied.dtype) * jnp.einsum(
            "nqk,nk->nq", copied, asked.astype(copied.dtype)
        )
        pattern = jax.nn.softmax(scores, -1)[:, None, None].astype(value.dtype)
        return jnp.where(positions[:, None] == final, pattern, value)


def given(
    copying: float = 0.0, selecting: float = 0.0, answer: float = 0.0
) -> tuple[Intervention, ...]:
    """Create interventions on head 0 that provide circuits.

    All parts have all three, with strength 1 or 0, so that they share one program.

    **Arguments:**

    - `copying`: the first layer attends to the previous token.
    - `selecting`: the last position attends to the position that has copied the query.
    - `answer`: the last position attends to the correct value; only its path to the output has to
      form.
    """
    return (
        Clamp("layers.0.pattern", head=0, to="previous", strength=copying),
        Match("layers.1.pattern", head=0, strength=selecting),
        Clamp("layers.1.pattern", head=0, to="relevant", strength=answer),
    )


BOTH = "both form"
SELECTING = "selecting forms"
COPYING = "copying forms"
NEITHER = "neither has to"
# Interventions by the circuits that have to form.
PARTS = {
    BOTH: given(),
    SELECTING: given(copying=1.0),
    COPYING: given(selecting=1.0),
    NEITHER: given(answer=1.0),
}
COLOURS = dict(zip(PARTS, (BLACK, BLUE, ORANGE, GREY), strict=True))
LAYER = {"copying": 0, "selecting": 1}
CIRCUITS = {"copying": ORANGE, "selecting": BLUE}
CELL = ["part", "pairs", "vocabulary"]
SIZES = ["vocabulary", "pairs"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `pairs`: the most valuable first; each number is a separate program.
    - `rates`: learning rates. Laws use the best rate of each part and cell, comparisons of parts
      use equal rates, and the last one is drawn.
    - `caps`: numbers of pairs with another number of steps than the base.
    - `shown`: pairs and tokens of the learning curves, and of panels d and e.
    - `lengths`: of the toy model.
    """

    base: Config
    pairs: tuple[int, ...] = (8, 16, 4)
    vocabularies: tuple[int, ...] = (32, 64, 128, 256)
    rates: tuple[float, ...] = (1e-3, 3e-4)
    seeds: int = 3
    caps: tuple[tuple[int, int], ...] = ()
    shown: tuple[int, int] = (8, 32)
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)

    def studies(self) -> dict[str, Study]:
        studies = {}
        for pairs, (part, interventions) in itertools.product(self.pairs, PARTS.items()):
            sizes = [size for size in self.vocabularies if size > pairs]
            steps = dict(self.caps).get(pairs, self.base.steps)
            task = Recall(pairs, sizes[0])
            config = self.base.replace(task=task, interventions=interventions, steps=steps)
            axes = {"vocabulary": sizes, "learning_rate": self.rates}
            studies[f"{part}, {pairs} pairs"] = Study.of(config, grid=axes, seeds=self.seeds)
        return studies


def part_of(result: Result) -> str:
    """Return the name of the part that a run belongs to."""
    own = result.run.config.interventions
    return next(part for part, interventions in PARTS.items() if interventions == own)


def strength(result: Result, circuit: str) -> np.ndarray:
    """Return the attention of a circuit, in the head of its layer where it ends highest."""
    heads = curve(result, circuit)[:, LAYER[circuit]]
    return heads[:, int(np.argmax(heads[-1]))]


def circuit_times(result: Result) -> dict[str, float]:
    """Return the steps at which copying and selecting are half way to their final strength.

    NaN for a circuit that is provided, or that ends less than 0.1 above its start: some
    runs recall without such a head in this layer.
    """
    provided = {"copying": SELECTING, "selecting": NEITHER}
    times = {}
    for name, part in provided.items():
        values = strength(result, name)
        times[name] = math.nan
        if part_of(result) != part and values[-1] > values[0] + 0.1:
            times[name] = passed(result, values, float(values[0] + values[-1]) / 2).time
    return times


def run_table(results: Sequence[Result]) -> pd.DataFrame:
    """Tabulate the steps of each run to 5% (`early`) and 50% (`plateau`) accuracy.

    Accuracy is corrected for guessing. With few pairs, a guessing run exceeds 5% now and then by
    chance, so recall is dated by 50%. Each row also has the times of the circuits.
    """
    rows = []
    for result in results:
        task = recall_task(result.run)
        early, middle = (criteria(result, level)["corrected"] for level in (0.05, 0.5))
        rows.append(
            {
                "part": part_of(result),
                "pairs": task.pairs,
                "vocabulary": task.vocabulary,
                "seed": result.run.seed,
                "learning_rate": result.run.config.optimizer.learning_rate,
                "identity": result.run.identity,
                "plateau": middle.time,
                "censored": middle.censored,
                "state": middle.state,
                "early": early.time,
                "early_censored": early.censored,
                "accuracy": float(curve(result, "accuracy")[-1]),
                "steps": result.steps,
            }
            | circuit_times(result)
        )
    return pd.DataFrame(rows)


def at_best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Keep the learning rate with the earliest emergence in each part and cell.

    Rates are ranked by the number of seeds that do not emerge, then by the geometric mean.
    """
    times = table["plateau"].clip(lower=1).transform("log").where(table["state"] == "reached")
    by_rate = times.groupby([*(table[name] for name in CELL), table["learning_rate"]], sort=False)
    order = by_rate.agg(missing=lambda x: x.isna().sum(), time="mean").reset_index()
    best = order.sort_values(["missing", "time"]).drop_duplicates(CELL)[[*CELL, "learning_rate"]]
    return table.merge(best, on=[*CELL, "learning_rate"], how="inner")


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the cells in which every seed emerged."""
    return whole_cells(table, [*CELL, "learning_rate"])


def fitted(table: pd.DataFrame, x: Sequence[str], y: str = "plateau") -> Law | None:
    """Fit the law of those columns of `x` that vary; None if the runs do not determine it."""
    varied = [name for name in x if len(set(table[name])) > 1]
    return fit_law(table, y, varied) if varied and len(table) > len(varied) + 1 else None


def by_part(table: pd.DataFrame, *parts: str) -> pd.DataFrame:
    """Arrange the plateaus of whole cells with one column per part.

    Rows are the seeds of cells in which all these parts emerged at the same learning rate.
    """
    index = ["pairs", "vocabulary", "learning_rate", "seed"]
    wide = whole(table).pivot_table("plateau", index, "part").reindex(columns=list(parts))
    return wide.dropna()


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Compare the steps when both circuits form with the steps of the other parts.

    `waiting` compares them with the sum of the two circuits alone, less the part that both of these
    contain, the path to the output.
    """
    wide = by_part(table, *PARTS)
    ratios = {f"over {part}": wide[BOTH] / wide[part] for part in (SELECTING, COPYING, NEITHER)}
    alone = wide[SELECTING] + wide[COPYING] - wide[NEITHER]
    return pd.DataFrame(ratios | {"waiting": wide[BOTH] / alone}).reset_index()


def copying_alone(table: pd.DataFrame) -> pd.DataFrame:
    """Subtract the steps of the path to the output from the steps of copying, at the same rate."""
    wide = by_part(table, COPYING, NEITHER)
    return wide.assign(beyond=wide[COPYING] - wide[NEITHER]).reset_index()


def exponent_table(table: pd.DataFrame) -> pd.DataFrame:
    """Fit exponents of pairs at each vocabulary and vice versa, by part and learning rate."""
    rows = []
    for of, at in (("pairs", "vocabulary"), ("vocabulary", "pairs")):
        groups = whole(table).groupby(["part", "learning_rate", at], sort=False)
        for (part, rate, size), some in groups:
            law = fitted(some, [of])
            if law is not None:
                fit = (some[of].nunique(), law.exponents[of], *law.ci95[of])
                rows.append((of, size, part, rate, *fit))
    columns = ["of", "at", "part", "learning_rate", "cells", "exponent", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


OWN = (0.0, 0.01, 0.1)
DIM = 64


def toy_table(lengths: Sequence[int]) -> pd.DataFrame:
    """Compute plateaus of the toy model with two attentions of equal length, and with one.

    `own` is the signal that the first attention has without the second; NaN for one attention.
    """
    frames = []
    for own in (math.nan, *OWN):
        sizes = [np.array(lengths)] * (1 if math.isnan(own) else 2)
        signal = np.full(len(lengths), np.nan_to_num(own))
        frame = pd.DataFrame({"length": lengths, "own": own})
        frame["plateau"] = coupled_plateau(sizes, DIM, signal).time
        frame["predicted"] = predicted_coupled(sizes, DIM, signal)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    results = distinct_results(source.runs(settings.studies(), curves=True))
    every = run_table(results)
    best = at_best_rates(every)
    exponents = exponent_table(every)
    tables = {
        "runs": best,
        "rates": every,
        "exponents": exponents,
        "ratios": compared(every),
        "copying": copying_alone(best),
        "toy": toy_table(settings.lengths),
    }
    laws = {part: fitted(whole(best[best["part"] == part]), SIZES) for part in PARTS}
    shown = exponents[exponents["learning_rate"] == settings.rates[-1]]
    checks = [
        *ratio_checks(tables["ratios"]),
        *copying_checks(tables["copying"]),
        *falling_checks(shown),
        *together_check(every),
        toy_check(tables["toy"]),
    ]
    return Outcome(
        {name: rows for name, rows in tables.items() if len(rows)},
        draw(results, every, shown, tables["toy"], settings),
        [Comparison(part, law) for part, law in laws.items() if law],
        checks,
    )


def toy_check(toy: pd.DataFrame) -> Check:
    ratio = (toy["plateau"] / toy["predicted"])[toy["length"] >= 64]
    name = (
        "toy model: plateau integrated over that derived, lengths of 64 and more, smallest "
        "and largest"
    )
    near = ratio.between(0.9, 1.2).all()
    return Check(name, [ratio.min(), ratio.max()], None, near, "1 within 20%")


def ratio_checks(ratios: pd.DataFrame) -> Iterator[Check]:
    """Check what the circuits cost, at equal learning rates."""
    if not len(ratios):
        return
    for part in (SELECTING, COPYING, NEITHER):
        cells = ratios.groupby(["pairs", "vocabulary", "learning_rate"])
        means = cells[f"over {part}"].agg(geometric_mean)
        yield Check(
            f"steps when both form over those when {part}: smallest and largest of "
            f"{len(means)} cells",
            [means.min(), means.max()],
            None,
            (means > 1).all(),
            "above 1: what is given need not form",
        )
    name = "exponent of pairs when both form less that with copying given, and its interval"
    for measured in exponents_of_pairs(ratios, f"over {SELECTING}"):
        yield Check(name, measured, None, measured[1] > 0.5, "near 1 where lengths multiply")
    mean = geometric_mean(ratios["waiting"])
    yield Check(
        "steps when both form over those of the two alone, added: geometric mean",
        mean,
        None,
        mean > 1,
        "above 1: they wait for each other",
    )


def exponents_of_pairs(table: pd.DataFrame, y: str) -> Iterator[list[float]]:
    """Yield the exponent of pairs and its interval, if the runs determine it."""
    law = fitted(table, SIZES, y)
    if law is not None and "pairs" in law.exponents:
        yield [law.exponents["pairs"], *law.ci95["pairs"]]


def copying_checks(alone: pd.DataFrame) -> Iterator[Check]:
    name = (
        "exponent of pairs of the steps that copying takes beyond those when neither has to "
        "form, and its interval"
    )
    for measured in exponents_of_pairs(alone, "beyond"):
        exponent, low, high = measured
        near = abs(exponent - 1) < max(0.15, (high - low) / 2)
        yield Check(name, measured, None, near, "1, as in the toy model of one attention")


def falling_checks(exponents: pd.DataFrame) -> Iterator[Check]:
    """Check that the exponent of pairs is smaller with many tokens than with few."""
    pairs = exponents[exponents["of"] == "pairs"].sort_values("at")
    for part in (BOTH, SELECTING, COPYING):
        rows = pairs[pairs["part"] == part]
        if len(rows) > 1:
            tokens = ", ".join(f"{x:g}" for x in rows["at"])
            falls = rows["high"].iloc[-1] < rows["low"].iloc[0]
            measured = rows[["exponent", "low", "high"]].to_numpy()
            yield Check(
                f"exponent of pairs when {part}, with {tokens} tokens",
                measured,
                None,
                falls,
                "smaller with the most tokens than with the fewest, intervals apart",
            )


def together_check(table: pd.DataFrame) -> Iterator[Check]:
    both = table[(table["part"] == BOTH) & (table["state"] == "reached")]
    apart = (both["selecting"] / both["copying"]).dropna()
    if len(apart):
        measured = apart.quantile([0, 0.5, 1])
        yield Check(
            f"when both form: selecting half way over copying half way, smallest, median and "
            f"largest of {len(apart)} runs",
            measured,
            None,
            apart.between(1 / 1.5, 1.5).all(),
            "1 within a factor of 1.5: together, as in the toy model",
        )


def draw(
    results: Sequence[Result],
    every: pd.DataFrame,
    exponents: pd.DataFrame,
    toy: pd.DataFrame,
    settings: Settings,
) -> Plot:
    """Draw all panels at one learning rate, so that parts can be compared."""
    pairs, tokens = settings.shown
    table = every[every["learning_rate"] == settings.rates[-1]]
    few_pairs = table[table["pairs"] == pairs]
    few_tokens = table[table["vocabulary"] == tokens]
    kept = {*few_pairs["identity"]} & {*few_tokens["identity"]}
    titles = (
        *("a  toy model", "b  recall", "c  both form"),
        *("d  more pairs", "e  more tokens", "f  exponent of pairs"),
    )
    plot, (a, b, c, d, e, f) = panels(4.6, *titles, rows=2, y=1.08)
    draw_toy(a, toy)
    for result in [result for result in results if result.run.identity in kept]:
        part = part_of(result)
        draw_curve(b, result, "accuracy", color=COLOURS[part], lw=1)
        if part == BOTH:
            draw_curve(c, result, "accuracy", color=BLACK, lw=1)
            for name, colour in CIRCUITS.items():
                c.plot(curve(result, "step"), strength(result, name), color=colour, lw=1)
    for axes, label in ((b, "test accuracy"), (c, "accuracy, attention")):
        level(axes, 1 / pairs, "guess" if axes is b else "")
        axes.set(xscale="log", xlabel="step", ylabel=label)
        subtitle(axes, f"{pairs} pairs, {tokens} tokens")
    key(c, entries({"accuracy": BLACK} | CIRCUITS), loc="upper left")
    draw_times(d, few_tokens, "pairs", "pairs")
    subtitle(d, f"{tokens} tokens")
    draw_times(e, few_pairs, "vocabulary", "tokens")
    subtitle(e, f"{pairs} pairs")
    draw_exponents(f, exponents)
    outside(f, "", [*entries(COLOURS), CENSORED])
    return plot


def draw_toy(axes: Axes, toy: pd.DataFrame) -> None:
    """Draw the plateaus of the toy model, integrated (dots) and derived (lines)."""
    words = ("one attention", "two", *(f"two, $g$ = {own:g}" for own in OWN[1:]))
    colours = dict(zip(words, (GREY, *shades(len(OWN))), strict=True))
    groups = toy.groupby(toy["own"].fillna(-1))
    for (_, rows), colour in zip(groups, colours.values(), strict=True):
        axes.plot(rows["length"], rows["predicted"], color=colour, lw=1.1)
        axes.plot(rows["length"], rows["plateau"], color=colour, **DOT)
    doubling(axes)
    axes.set(yscale="log", xlabel="length $T$ of each attention", ylabel="plateau (flow time)")
    axes.set_ylim(top=100 * toy["plateau"].max())  # space for the legend
    key(axes, entries(colours), loc="upper left")
    subtitle(axes, "dots: integrated, lines: derived")


def draw_times(axes: Axes, table: pd.DataFrame, x: str, label: str) -> None:
    """Draw the steps of every part."""
    for part, rows in table.groupby("part"):
        draw_cells(axes, rows, x, "plateau", COLOURS[str(part)])
    doubling(axes)
    axes.set(yscale="log", xlabel=label, ylabel="steps to half way")


def draw_exponents(axes: Axes, exponents: pd.DataFrame) -> None:
    """Draw the exponents of pairs with their intervals, and the published one."""
    rows = exponents[exponents["of"] == "pairs"].sort_values("at")
    for part, some in rows.groupby("part"):
        colour = COLOURS[str(part)]
        axes.vlines(some["at"], some["low"], some["high"], color=colour, lw=1)
        axes.plot(some["at"], some["exponent"], "o-", color=colour, lw=1)
    doubling(axes)
    axes.axhline(PUBLISHED, color=GREY, ls="--", lw=0.9)
    axes.set(xlabel="tokens", ylabel="exponent of pairs")
    subtitle(axes, "where all seeds emerge; dashed: published")


WIDE = SHALLOW.replace(width=128)
BASE = PAPER.replace(model=WIDE, optimizer__learning_rate=1e-3, steps=20_000)
FIGURE = Figure(
    "emergo/coupled",
    "recall with copying or selecting given: what each circuit costs, and what it costs that "
    "they need each other",
    {
        "paper": Settings(BASE, caps=((16, 30_000),)),
        "laptop": Settings(SMALL, (4, 3), (8, 12), (1e-3,), seeds=2, shown=(4, 12)),
        "smoke": Settings(TINY, (3, 2), (4, 6), (1e-2,), seeds=1, shown=(3, 6), lengths=(16, 64)),
    },
    make,
    {"paper": 1e5, "laptop": 96, "smoke": 28},
    curves=True,
)
