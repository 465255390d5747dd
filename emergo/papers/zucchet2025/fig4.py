"""Figure 4: the emergence of associative recall against the number of pairs and the vocabulary.

Each cell is trained with its best learning rate. The search for it starts with the largest rate and
trains the next smaller one as long as that is better, so the runs depend on results (`followup`).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import CENSORED, subtitle
from ...measure import Law, Published, fit_law
from ...study import Study
from ...tasks import Recall
from ...training import Config, Result, Run
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource, Seconds
from .._panels import any_censored, colours_of, curves_by, law_words, legend, panels, strongest
from .._recall import (
    COLUMNS,
    CRITERIA,
    PAPER,
    SMALL,
    TINY,
    Criterion,
    criteria,
    emergence_table,
    recall_task,
    step_limits,
)
from .._source import curve, curve_table, distinct, distinct_results

LAW = Published("Fig. 4 right", 0.55, {"vocabulary": 0.79, "pairs": 2.25}, 0.982)
NAMES = {"vocabulary": "N_{tok}", "pairs": "N_{pairs}"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cells of Figure 4 and how their learning rates are chosen.

    - `rates`: the learning rates to choose from (D.3), the largest first, tried with the first seed
      of each cell. A rate is followed up for all steps, or for the half, quarter, ... that contains
      the best result so far, because a rate that emerges later than that cannot win. Each criterion
      of emergence has its best rate: the rate that guesses first need not recall first.
    - `tried`: the largest number of pairs for which rates are tried. With more pairs, a vocabulary
      uses the rate of that number. None sets no limit.
    - `vocabulary`: the vocabulary of the learning curves.
    - `caps`: numbers of pairs whose runs have a different number of steps.
    - `few`: numbers of pairs that have a different number of seeds.
    """

    base: Config
    rates: tuple[float, ...] = (1e-4, 3e-5, 1e-5)
    tried: int | None = None
    seeds: int = 3
    pairs: tuple[int, ...] = (8, 16, 32, 64)
    vocabularies: tuple[int, ...] = (64, 128, 256, 512)
    vocabulary: int = 256
    caps: tuple[tuple[int, int], ...] = ()
    few: tuple[tuple[int, int], ...] = ()

    def tasks(self) -> list[Recall]:
        return [
            Recall(pairs, size)
            for pairs in self.pairs
            for size in self.vocabularies
            if size > pairs
        ]

    def cell(
        self, task: Recall, rate: float, steps: int | None = None, seeds: int | None = None
    ) -> tuple[str, Study]:
        """Return the name and the study of a cell at a learning rate, by default with all its
        seeds."""
        steps = steps or self.steps(task)
        if seeds is None:
            seeds = dict(self.few).get(task.pairs, self.seeds)
        name = f"{task.pairs} pairs, {task.vocabulary} tokens, rate {rate:g}, {steps} steps"
        return name, Study.of(
            self.base.replace(task=task, optimizer__learning_rate=rate, steps=steps), seeds=seeds
        )

    def steps(self, task: Recall) -> int:
        return dict(self.caps).get(task.pairs, self.base.steps)

    def studies(self) -> dict[str, Study]:
        """Return the first seed of the cells where rates are tried, at the first learning rate."""
        limit = self.tried or max(self.pairs)
        first = [task for task in reversed(self.tasks()) if task.pairs <= limit]
        return dict(self.cell(task, self.rates[0], seeds=1) for task in first)


def rate_of(run: Run) -> float:
    return run.config.optimizer.learning_rate


def next_rates(settings: Settings, tried: Sequence[Result]) -> dict[str, Study]:
    """Return the first seed at the next rate, for cells whose smallest rate so far is their
    best."""
    cells = []
    best = {by: chosen_rates(tried, by) for by in CRITERIA}
    for result in tried:
        task = recall_task(result.run)
        rate = rate_of(result.run)
        smallest = min(rate_of(r.run) for r in tried if r.run.config.task == task)
        asking = [criteria(result)[by] for by in CRITERIA if rate == best[by][task] == smallest]
        if asking and rate != settings.rates[-1]:
            steps = settings.steps(task)
            while steps % 2 == 0 and all(
                mark.state == "reached" and mark.time <= steps / 2 for mark in asking
            ):
                steps //= 2
            cells.append(
                settings.cell(task, settings.rates[settings.rates.index(rate) + 1], steps, seeds=1)
            )
    return dict(cells)


def chosen_rates(tried: Sequence[Result], by: Criterion = "corrected") -> dict[Recall, float]:
    """Return the learning rate that meets a criterion first, for each task.

    Rates that do not meet it rank next, then rates whose runs fail.
    """
    table = emergence_table(tried, by)
    # Rates that did not emerge tie, and the largest of them is chosen.
    table["emerged"] = table["plateau"].mask(table["censored"], np.inf)
    ordered = table.sort_values(["emerged", "learning_rate"], ascending=[True, False])
    best = ordered.groupby(["pairs", "vocabulary"])["learning_rate"].first().to_dict()
    tasks = dict.fromkeys(recall_task(result.run) for result in tried)
    return {task: float(best[task.pairs, task.vocabulary]) for task in tasks}


def shown_cells(
    settings: Settings, tried: Sequence[Result], by: Criterion = "corrected"
) -> dict[str, Study]:
    """Return all seeds of all cells with a tried rate, at the rate that the first seed chooses."""
    best = chosen_rates(tried, by)
    like = {
        task: task.replace(pairs=min(task.pairs, settings.tried or task.pairs))
        for task in settings.tasks()
    }
    return dict(settings.cell(task, best[other]) for task, other in like.items() if other in best)


def followup(settings: Settings, source: RunSource) -> dict[str, Study]:
    """Return the further rates as far as results determine them, then the other seeds and cells."""
    tried = finished(source, settings.studies())
    others: dict[str, Study] = {}
    while following := next_rates(settings, tried):
        others |= following
        if source.missing(distinct(following), curves=True):
            return others
        tried += finished(source, following)
    return (
        others | shown_cells(settings, tried, "corrected") | shown_cells(settings, tried, "plain")
    )


def finished(source: RunSource, cells: Mapping[str, Study]) -> list[Result]:
    """Return the runs of some cells; a partial figure may lack all of them."""
    if not cells or (source.partial and not source.complete_cells(distinct(cells), curves=True)):
        return []
    return distinct_results(source.runs(cells, curves=True))


def later_with_more(table: pd.DataFrame) -> list[float]:
    """Return the ratios of emergence between neighbouring numbers of pairs.

    A ratio counts if the smaller number emerged, and the larger one emerged or was trained for
    longer.
    """
    ratios = []
    for _, rows in table[table["state"] != "failed"].groupby("vocabulary"):
        by_pairs = rows.groupby("pairs")
        times = by_pairs["plateau"].mean().to_numpy()
        censored = by_pairs["censored"].any().to_numpy()
        known = [
            ~censored[i - 1] and (not censored[i] or times[i] > times[i - 1])
            for i in range(1, len(times))
        ]
        ratios += (times[1:] / times[:-1])[known].tolist()
    return ratios


def over_the_law(table: pd.DataFrame) -> Check:
    """Compare emergence by the paper's criterion with the paper's law.

    Guessing passes the paper's criterion below 20 pairs. A censored run counts with the steps it
    was trained for; its cell is left out if they are too few to contradict the law.
    """
    ratio = table["plateau"] / LAW.at(vocabulary=table["vocabulary"], pairs=table["pairs"])
    by_cell = [table["pairs"], table["vocabulary"]]
    unknown = table["censored"] & (ratio < 2)
    cells = np.exp(np.log(ratio).groupby(by_cell).mean())[~unknown.groupby(by_cell).any()].dropna()
    name = (
        "steps to 5% accuracy within twice and half of the published law: over it, smallest, "
        "median and largest of cells"
    )
    within = cells.between(0.5, 2).all() and not cells.empty
    return Check(
        name, [cells.min(), cells.median(), cells.max()], "1", within, "within a factor of 2"
    )


def make(settings: Settings, source: RunSource) -> Outcome:
    tried = distinct_results(source.runs(settings.studies(), curves=True))
    while following := finished(source, next_rates(settings, tried)):
        tried += following
    shown = {by: finished(source, shown_cells(settings, tried, by)) for by in CRITERIA}
    tables: dict[Criterion, pd.DataFrame] = {by: emergence_table(shown[by], by) for by in CRITERIA}
    table = tables["corrected"]
    law = fit_law(table, x=["vocabulary", "pairs"])
    cells = table.groupby(["vocabulary", "pairs"])
    means = cells["plateau"].mean()[~cells["censored"].any()].unstack()
    ratios = later_with_more(table)
    reached = table[table["state"] == "reached"]
    least = min(ratios, default=float("nan"))
    more = (means.iloc[-1] / means.iloc[0]).mean()
    recalled = (reached["accuracy"] / reached["guess"]).min()
    end = (
        "accuracy at the end over that of guessing a value of the context, smallest over runs "
        "that emerged"
    )
    pairs = "emergence is later with more pairs: smallest ratio of neighbours, where it can be told"
    comparisons = [Comparison(CRITERIA["corrected"], law, LAW)]
    checks = [
        Check(pairs, least, "above 1", least > 1),
        Check(
            "and with a larger vocabulary: largest over smallest, mean over pairs",
            more,
            "above 1",
            more > 1,
        ),
        Check(end, recalled, None, recalled > 2, "above 2: it is recall"),
    ]
    if settings.base.model == PAPER.model:  # comparable with the published law
        plain = fit_law(tables["plain"], x=["vocabulary", "pairs"])
        comparisons.append(Comparison("5%, below 20 pairs of guessing", plain, LAW))
        checks.append(over_the_law(tables["plain"]))
    at = [r for r in shown["corrected"] if recall_task(r.run).vocabulary == settings.vocabulary]
    rates = pd.concat([emergence_table(tried, by).assign(criterion=by) for by in CRITERIA])
    shown_tables = {
        "runs": table,
        "plain": tables["plain"],
        "rates": rates,
        "curves": curve_table(at, COLUMNS),
    }
    return Outcome(
        shown_tables,
        draw(at, tables, law, settings),
        comparisons,
        checks,
        {"cells": summary(tables)},
    )


def summary(tables: Mapping[Criterion, pd.DataFrame]) -> pd.DataFrame:
    """Return the steps of cells next to the published law, as geometric means over uncensored
    seeds."""
    rows = []
    for (pairs, vocabulary), plain in tables["plain"].groupby(["pairs", "vocabulary"]):
        recalled = tables["corrected"].query("pairs == @pairs and vocabulary == @vocabulary")
        published = float(LAW.at(vocabulary=vocabulary, pairs=pairs))
        steps, recall = (
            float(np.exp(np.log(t["plateau"][~t["censored"]].clip(lower=1)).mean()))
            for t in (plain, recalled)
        )
        row = {
            "pairs": pairs,
            "tokens": vocabulary,
            "published law": published,
            "5%": steps,
            "over the law": steps / published,
        }
        reached = f"{(~recalled['censored']).sum()} of {len(recalled)}"
        rows.append(
            row
            | {
                "recall": recall,
                "at rate": recalled["learning_rate"].iloc[0],
                "seeds that recall": reached,
            }
        )
    return pd.DataFrame(rows)


def draw(
    shown: list[Result], tables: dict[Criterion, pd.DataFrame], law: Law, settings: Settings
) -> Plot:
    """Draw learning curves and emergence.

    The `paper` preset has two panels of emergence: by the paper's criterion with its law, and by
    ours.
    """
    published = settings.base.model == PAPER.model
    titles = [
        "test loss",
        "accuracy and attention",
        *["5% accuracy: guessing below 20 pairs"] * published,
        "recall",
    ]
    plot, (left, middle, *rights) = panels(
        5.2 if published else 2.6, *titles, rows=1 + published, y=1.1
    )
    colours = curves_by(left, shown, "pairs", "loss", None, apart=True)
    left.set(ylabel="test loss", ylim=(0, None))
    curves_by(middle, shown, "pairs", "accuracy", "pairs", apart=True)
    for result in shown:
        line = {"color": colours[recall_task(result.run).pairs], "lw": 0.9, "ls": ":"}
        middle.plot(curve(result, "step")[1:], strongest(result, "selecting")[1:], **line)
    middle.set(
        ylabel="test accuracy; dotted: attention\nof the query to its value", ylim=(-0.03, 1.03)
    )
    for axes in (left, middle) if shown else ():
        subtitle(axes, f"{settings.vocabulary} tokens, {rates_in_words(shown)}")
        axes.set_xlim(step_limits(shown))
    if published:
        draw_times(rights[0], tables["plain"], LAW, settings)
        subtitle(rights[0], f"lines, published: {law_words(LAW, NAMES)}")
    draw_times(rights[-1], tables["corrected"], law, settings)
    subtitle(rights[-1], f"lines, ours: {law_words(law, NAMES)}")
    ends = [axes.get_ylim() for axes in rights]
    for axes in rights:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    hollow = [CENSORED] * any_censored(*tables.values())
    legend(rights[-1], "tokens", colours_of(settings.vocabularies), *hollow, marker="o")
    return plot


def rates_in_words(results: list[Result]) -> str:
    """Return the most common learning rate in words, and the cells that have another."""
    rates = {recall_task(result.run): rate_of(result.run) for result in results}
    common = max(rates.values(), key=[*rates.values()].count)
    others = [f"{task.pairs} pairs: {rate:g}" for task, rate in rates.items() if rate != common]
    return "; ".join([f"rate {common:g}", *others])


def draw_times(axes: Axes, table: pd.DataFrame, law: Law | Published, settings: Settings) -> None:
    """Draw emergence against pairs, one colour per vocabulary, with a law.

    Our law is drawn over the range of uncensored runs.
    """
    spanned = table if isinstance(law, Published) else table[~table["censored"]]
    points = np.geomspace(spanned["pairs"].min(), spanned["pairs"].max(), 40)
    colours = colours_of(settings.vocabularies)
    # Shift the points of each vocabulary a little, so that they do not cover each other.
    shifts = np.linspace(-0.03, 0.03, len(colours))
    asides = (max(settings.pairs) / min(settings.pairs)) ** shifts
    for (size, colour), aside in zip(colours.items(), asides, strict=True):
        rows = table[table["vocabulary"] == size]
        for late, look in (
            (False, {"marker": "o", "mec": "white", "mew": 0.4, "ms": 4}),
            (True, CENSORED[1]),
        ):
            some = rows[rows["censored"] == late]
            axes.plot(
                some["pairs"] * aside,
                some["plateau"],
                **{"ls": "", "color": colour, "zorder": 3} | look,
            )
        if len(rows):
            at = {"vocabulary": size, "pairs": points}
            line = law.at(**at) if isinstance(law, Published) else law.predict(pd.DataFrame(at))
            axes.plot(points, line, color=colour, lw=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(settings.pairs, [f"{pairs}" for pairs in settings.pairs])
    axes.set_xlim(min(settings.pairs) / 1.2, max(settings.pairs) * 1.2)
    axes.set(xlabel="pairs", ylabel="emergence (steps)")


TITLE = "associative recall emerges, later with more pairs and a larger vocabulary"
PRESETS: Presets = {
    "paper": Settings(PAPER, tried=32, caps=((32, 300_000), (64, 150_000)), few=((64, 2),)),
    "laptop": Settings(
        SMALL, rates=(1e-3,), seeds=2, pairs=(3, 4, 6), vocabularies=(12, 24), vocabulary=24
    ),
    "smoke": Settings(
        TINY, rates=(1e-2,), seeds=1, pairs=(2, 3), vocabularies=(4, 6), vocabulary=6
    ),
}
SECONDS: Seconds = {"paper": 2e6, "laptop": 87, "smoke": 12}
FIGURE = Figure("zucchet2025/fig4", TITLE, PRESETS, make, SECONDS, followup=followup, curves=True)
