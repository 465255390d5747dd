"""Figure 4: the emergence of associative recall against the number of pairs and the vocabulary.

Each cell is trained with its best learning rate. The search for it starts with the largest rate and
trains the next smaller one as long as that is better, so the runs depend on results (`followup`).
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import CENSORED, GREY, doubling, key, subtitle
from ...measure import Law, Published, fit_law
from ...study import Study
from ...tasks import Recall
from ...training import Config, Result, Run
from .. import _recall as recall
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import any_censored, colours_of, curves_by, law_words, legend, panels, strongest
from .._recall import CRITERIA, PAPER, SMALL, TINY, Criterion, emergence_table, recall_task
from .._source import curve, curve_table, distinct, distinct_results

LAW = Published("Fig. 4 right", 0.55, {"vocabulary": 0.79, "pairs": 2.25}, 0.982)
CROSS = {"marker": "x", "ls": "", "color": GREY, "ms": 3.5}
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
        seeds = seeds or dict(self.few).get(task.pairs, self.seeds)
        config = self.base.replace(task=task, optimizer__learning_rate=rate, steps=steps)
        name = f"{task.pairs} pairs, {task.vocabulary} tokens, rate {rate:g}, {steps} steps"
        return name, Study.of(config, seeds=seeds)

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
    following = dict(itertools.pairwise(settings.rates))
    best = {by: chosen_rates(tried, by) for by in CRITERIA}
    cells = []
    for result in tried:
        task = recall_task(result.run)
        rate = rate_of(result.run)
        smallest = min(rate_of(r.run) for r in tried if r.run.config.task == task)
        marks = recall.criteria(result)
        asking = [marks[by] for by in CRITERIA if rate == best[by][task] == smallest]
        if asking and rate in following:
            steps = settings.steps(task)
            while steps % 2 == 0 and all(
                mark.state == "reached" and mark.time <= steps / 2 for mark in asking
            ):
                steps //= 2
            cells.append(settings.cell(task, following[rate], steps, seeds=1))
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
        cells = zip(by_pairs["plateau"].mean(), by_pairs["censored"].any(), strict=True)
        for (time, censored), (later, later_censored) in itertools.pairwise(cells):
            if not censored and (not later_censored or later > time):
                ratios.append(later / time)
    return ratios


def over_the_law(table: pd.DataFrame) -> Check:
    """Compare emergence by the paper's criterion, the first evaluation at 5%, with its law.

    Guessing passes it below 20 pairs. A censored run counts with the steps it
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
    tables["first"] = emergence_table(shown["plain"], "first")
    table = tables["corrected"]
    law = fit_law(table, x=["vocabulary", "pairs"])
    cells = table.groupby(["vocabulary", "pairs"])
    means = cells["plateau"].mean()[~cells["censored"].any()].unstack()
    least = min(later_with_more(table), default=float("nan"))
    more = (means.iloc[-1] / means.iloc[0]).mean()
    reached = table[table["state"] == "reached"]
    recalled = (reached["accuracy"] / reached["guess"]).min()
    pairs = "emergence is later with more pairs: smallest ratio of neighbours, where it can be told"
    larger = "and with a larger vocabulary: largest over smallest, mean over pairs"
    end = (
        "accuracy at the end over that of guessing a value of the context, smallest over runs "
        "that emerged"
    )
    comparisons = [Comparison(CRITERIA["corrected"], law, LAW)]
    checks = [
        Check(pairs, least, "above 1", least > 1),
        Check(larger, more, "above 1", more > 1),
        Check(end, recalled, None, recalled > 2, "above 2: it is recall"),
    ]
    if settings.base.model == PAPER.model:  # comparable with the published law
        others: dict[Criterion, str] = {
            "first": "5%, first evaluation",
            "plain": "5%, three in a row",
        }
        for by, name in others.items():
            law_by = fit_law(tables[by], x=["vocabulary", "pairs"])
            comparisons.append(Comparison(f"{name}; below 20 pairs of guessing", law_by, LAW))
        checks.append(over_the_law(tables["first"]))
    at = [r for r in shown["corrected"] if recall_task(r.run).vocabulary == settings.vocabulary]
    drawn = {
        "runs": table,
        "plain": tables["plain"],
        "first": tables["first"],
        "rates": pd.concat([emergence_table(tried, by).assign(criterion=by) for by in CRITERIA]),
        "curves": curve_table(at, recall.COLUMNS),
    }
    plot = draw(at, tables, law.best, settings)
    return Outcome(drawn, plot, comparisons, checks, {"cells": summary(tables)})


def summary(tables: Mapping[Criterion, pd.DataFrame]) -> pd.DataFrame:
    """Return the steps of cells next to the published law, as geometric means over uncensored
    seeds."""
    steps = {}
    for by, table in tables.items():
        times = table["plateau"].clip(lower=1).mask(table["censored"])
        cells = times.apply(np.log).groupby([table["pairs"], table["vocabulary"]])
        steps[by] = np.exp(cells.mean())
    cells = pd.DataFrame(steps).reset_index()
    published = LAW.at(vocabulary=cells["vocabulary"], pairs=cells["pairs"])
    seeds = tables["corrected"].groupby(["pairs", "vocabulary"])
    late = seeds["censored"].sum()
    return pd.DataFrame(
        {
            "pairs": cells["pairs"],
            "tokens": cells["vocabulary"],
            "published law": published,
            "5%, first": cells["first"],
            "over the law": cells["first"] / published,
            "5%, three in a row": cells["plain"],
            "recall": cells["corrected"],
            "at rate": seeds["learning_rate"].first().to_numpy(),
            "seeds that recall": [
                f"{count - censored} of {count}"
                for count, censored in zip(seeds.size(), late, strict=True)
            ],
        }
    )


def draw(
    shown: list[Result], tables: dict[Criterion, pd.DataFrame], law: Law, settings: Settings
) -> Plot:
    """Draw learning curves and emergence.

    The `paper` preset has two panels of emergence: by the paper's criterion with its law, and by
    ours.
    """
    criteria: list[tuple[str, Criterion, Law | Published]] = [("recall", "corrected", law)]
    if settings.base.model == PAPER.model:
        criteria.insert(0, ("first evaluation at 5% accuracy", "first", LAW))
    rows = len(criteria)
    titles = ["test loss", "accuracy and attention", *(title for title, _, _ in criteria)]
    plot, (left, middle, *rights) = panels(2.6 * rows, *titles, rows=rows, y=1.1)
    colours = curves_by(left, shown, "pairs", "loss", None, apart=True)
    curves_by(middle, shown, "pairs", "accuracy", "pairs", apart=True)
    for result in shown:
        middle.plot(
            curve(result, "step")[1:],
            strongest(result, "selecting")[1:],
            color=colours[recall_task(result.run).pairs],
            lw=0.9,
            ls=":",
        )
    left.set(ylabel="test loss", ylim=(0, None))
    middle.set(ylabel="test accuracy; dotted: attention\nof the query to its value")
    if shown:
        subtitle(left, f"{settings.vocabulary} tokens")
        for axes in (left, middle):
            axes.set_xlim(recall.step_limits(shown))
    for axes, (_, by, line) in zip(rights, criteria, strict=True):
        draw_times(axes, tables[by], line, settings)
        if by == "first":
            rows = tables["plain"][~tables["plain"]["censored"]]
            axes.plot(rows["pairs"], rows["plateau"], "x", color=GREY, ms=3.5, zorder=1)
            key(axes, [("three evaluations in a row", CROSS)], loc="lower right")
        whose = "published" if line is LAW else "ours"
        subtitle(axes, f"lines, {whose}: {law_words(line, NAMES)}")
        axes.sharey(rights[0])
    hollow = [CENSORED] * any_censored(*tables.values())
    legend(rights[-1], "tokens", colours_of(settings.vocabularies), *hollow, marker="o")
    return plot


def draw_times(axes: Axes, table: pd.DataFrame, law: Law | Published, settings: Settings) -> None:
    """Draw emergence against pairs, one colour per vocabulary, with a law.

    Our law is drawn over the range of uncensored runs.
    """
    spanned = table if isinstance(law, Published) else table[~table["censored"]]
    points = np.geomspace(spanned["pairs"].min(), spanned["pairs"].max(), 40)
    looks = {False: {"marker": "o", "ls": ""}, True: CENSORED[1]}
    for size, colour in colours_of(settings.vocabularies).items():
        rows = table[table["vocabulary"] == size]
        for late, look in looks.items():
            some = rows[rows["censored"] == late]
            axes.plot(some["pairs"], some["plateau"], color=colour, **look)
        at = {"vocabulary": size, "pairs": points}
        line = law.at(**at) if isinstance(law, Published) else law.predict(pd.DataFrame(at))
        axes.plot(points, line, color=colour, lw=1.2)
    doubling(axes)
    axes.set(yscale="log", xlabel="pairs", ylabel="emergence (steps)")


FIGURE = Figure(
    "zucchet2025/fig4",
    "associative recall emerges, later with more pairs and a larger vocabulary",
    {
        "paper": Settings(PAPER, tried=32, caps=((32, 300_000), (64, 150_000)), few=((64, 2),)),
        "laptop": Settings(
            SMALL, rates=(1e-3,), seeds=2, pairs=(3, 4, 6), vocabularies=(12, 24), vocabulary=24
        ),
        "smoke": Settings(
            TINY, rates=(1e-2,), seeds=1, pairs=(2, 3), vocabularies=(4, 6), vocabulary=6
        ),
    },
    make,
    {"paper": 2e6, "laptop": 87, "smoke": 12},
    followup=followup,
    curves=True,
)
