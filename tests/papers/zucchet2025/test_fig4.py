"""Figure 4: the learning rates and seeds that it needs, on hand-made curves, and its records."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from emergo.papers import RunSource, seconds_needed
from emergo.papers import _recall as recall
from emergo.papers._source import distinct
from emergo.papers.zucchet2025 import fig4
from emergo.store import Records, read_records
from emergo.study.results import record_tables
from emergo.training import Result, Run

PAPER = fig4.FIGURE.presets["paper"]


def emerging(run: Run, at: float, guessing: float = math.inf) -> Result:
    """Return a run whose accuracy jumps at a step, perhaps first to guessing, with evaluations
    every 500 steps."""
    step = np.arange(0, run.config.steps + 1, 500)
    accuracy = np.where(step >= at, 1.0, (step >= guessing) / pairs_of(run)).astype(np.float32)
    return Result.measured(
        run, {"step": step, "accuracy": accuracy, "loss": 1 - accuracy}, None, "cpu"
    )


def recorded(results: Sequence[Result]) -> RunSource:
    """Return a source of these results only."""
    return RunSource(records=Records(*record_tables(results)))


def pairs_of(run: Run) -> int:
    return recall.recall_task(run).pairs


def first_runs() -> list[Run]:
    return distinct(PAPER.studies())


def next_runs(tried: Sequence[Result]) -> list[Run]:
    return distinct(fig4.next_rates(PAPER, tried))


def shown_runs(tried: Sequence[Result], by: recall.Criterion = "corrected") -> list[Run]:
    return distinct(fig4.shown_cells(PAPER, tried, by))


def test_the_next_rate_runs_for_about_as_long_as_the_first_took():
    first = [emerging(run, 30_000 if pairs_of(run) == 16 else 1e9) for run in first_runs()]
    assert {(pairs_of(r.run), r.run.config.steps) for r in first} == {
        (8, 200_000),
        (16, 200_000),
        (32, 300_000),
    }
    others = next_runs(first)
    assert {fig4.rate_of(run) for run in others} == {3e-5}
    assert {(pairs_of(run), run.config.steps) for run in others} == {
        (8, 200_000),
        (16, 50_000),
        (32, 300_000),
    }
    assert len(others) == len(first) == 12


def test_rates_are_tried_until_one_is_no_better():
    first = [emerging(run, 20_000) for run in first_runs()]
    second = [emerging(run, 10_000 if pairs_of(run) == 16 else 22_000) for run in next_runs(first)]
    third = next_runs(first + second)
    assert {(pairs_of(run), fig4.rate_of(run), run.config.steps) for run in third} == {
        (16, 1e-5, 12_500)
    }
    tried = first + second + [emerging(run, 12_000) for run in third]
    assert next_runs(tried) == []
    assert {task.pairs: rate for task, rate in fig4.chosen_rates(tried).items()} == {
        8: 1e-4,
        16: 3e-5,
        32: 1e-4,
    }
    shown = shown_runs(tried)
    assert {pairs_of(run): fig4.rate_of(run) for run in shown} == {
        8: 1e-4,
        16: 3e-5,
        32: 1e-4,
        64: 1e-4,
    }
    assert {pairs_of(run): run.config.steps for run in shown} == {
        8: 200_000,
        16: 200_000,
        32: 300_000,
        64: 150_000,
    }
    assert {run.seed for run in shown if pairs_of(run) == 16} == {0, 1, 2}, (
        "the first was cut short at this rate"
    )
    assert {run.seed for run in shown if pairs_of(run) == 64} == {0, 1}
    assert len(shown) == 12 * 3 + 3 * 2


def test_a_figure_is_whole_only_with_the_runs_that_follow_from_others():
    first = [emerging(run, 20_000) for run in first_runs()]

    def needed(results):
        source = recorded(results)
        return len(distinct(fig4.FIGURE.wanted("paper", source))), seconds_needed(
            fig4.FIGURE, "paper", source
        )

    nothing = needed(first[:3])
    some = needed(first)
    assert nothing[0] == len(first) == 12
    assert some[0] == 12 + 12, "the next rate of 8, 16 and 32 pairs"
    assert 0 < some[1] < nothing[1] == pytest.approx(9 / 12 * fig4.FIGURE.seconds["paper"])
    others = [emerging(run, 1e9) for run in next_runs(first)]
    assert needed(first + others)[0] == 12 + 12 + 2 * 12 + 2 * 3, (
        "and the other two seeds, and 64 pairs with two"
    )


def test_a_criterion_has_rates_of_its_own():
    """The first rate guesses first, which passes 5% with fewer than 20 pairs; the second recalls
    first."""
    first = [emerging(run, 60_000, guessing=10_000) for run in first_runs()]
    second = [emerging(run, 40_000, guessing=20_000) for run in next_runs(first)]
    tried = first + second
    assert set(fig4.chosen_rates(tried).values()) == {3e-5}
    assert {task.pairs: rate for task, rate in fig4.chosen_rates(tried, "plain").items()} == {
        8: 1e-4,
        16: 1e-4,
        32: 3e-5,
    }
    tried += [emerging(run, 1e9) for run in next_runs(tried)]
    source = recorded(tried)
    wanted = {run.identity for run in distinct(fig4.FIGURE.wanted("paper", source))}
    assert all(run.identity in wanted for by in recall.CRITERIA for run in shown_runs(tried, by))


def test_of_rates_that_do_not_emerge_one_that_fails_is_the_last_choice():
    first = [emerging(run, 1e9) for run in first_runs()]
    failed = [result._replace(failed_step=100) for result in first]
    second = [emerging(run, 1e9) for run in next_runs(failed)]
    assert set(fig4.chosen_rates(failed + second).values()) == {3e-5}
    assert {fig4.rate_of(run) for run in next_runs(failed + second)} == {1e-5}


def test_emergence_is_later_with_more_pairs_where_that_can_be_told():
    def table(times):
        shown = shown_runs([emerging(run, 20_000) for run in first_runs()])
        runs = {run.config.task: run for run in shown if recall.recall_task(run).vocabulary == 256}
        return recall.emergence_table(
            [emerging(run, times[pairs_of(run)]) for run in runs.values()]
        )

    rising = fig4.later_with_more(table({8: 10_000, 16: 50_000, 32: 200_000, 64: 1e9}))
    assert rising == pytest.approx([5, 4], rel=0.1), "64 pairs were not followed for as long as 32"
    assert fig4.later_with_more(
        table({8: 10_000, 16: 50_000, 32: 100_000, 64: 1e9})
    ) == pytest.approx([5, 2, 1.5], rel=0.1)
    assert min(fig4.later_with_more(table({8: 20_000, 16: 10_000, 32: 50_000, 64: 1e9}))) < 1
    assert fig4.later_with_more(table({8: 10_000, 16: 1e9, 32: 50_000, 64: 1e9})) == pytest.approx(
        [20, 3], rel=0.1
    )
    some = table({8: 10_000, 16: 20_000, 32: 50_000, 64: 1e9})
    failed = some.assign(state=some["state"].mask(some["pairs"] == 16, "failed"))
    assert fig4.later_with_more(failed) == pytest.approx([5, 3], rel=0.1), (
        "32 over 8 pairs, 64 over 32"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_figure_4_shows_all_that_it_wants_with_one_panel_per_criterion():
    source = RunSource(records=read_records())
    outcome = fig4.make(PAPER, source)
    tables = outcome.tables
    wanted = {run.identity for run in distinct(fig4.FIGURE.wanted("paper", source))}
    assert {
        identity for name in ("runs", "plain", "rates") for identity in tables[name]["identity"]
    } == wanted
    recalled, guessed = (
        tables[name].groupby(["pairs", "vocabulary"])["plateau"].mean()
        for name in ("runs", "plain")
    )
    assert (guessed <= recalled).all()
    assert (guessed < recalled / 1.5).sum() == 8, "8 and 16 pairs"
    [check] = [check for check in outcome.checks if "published law" in check.name]
    first = tables["first"].groupby(["pairs", "vocabulary"])["plateau"].mean()
    cells = first.loc[:32].reset_index()
    over = cells["plateau"] / fig4.LAW.at(vocabulary=cells["vocabulary"], pairs=cells["pairs"])
    expected = [over.min(), over.median(), over.max()]
    assert check.measured == pytest.approx(expected, rel=0.02), (
        "but for arithmetic means of seeds, a few percent apart"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "guessing"),
    [((2e4, 1e4, 3e4), 2_000), ((2e4, 1e4, 5e3), math.inf), ((1e9, 1e9, 1e9), 2_000)],
)
def test_training_what_is_wanted_round_by_round_ends_with_all_that_is_shown(at, guessing):
    times = dict(zip(PAPER.rates, at, strict=True))
    results = {}
    missing = first_runs()
    for _ in range(6):
        wanted = distinct(fig4.FIGURE.wanted("paper", recorded(list(results.values()))))
        missing = [run for run in wanted if run.identity not in results]
        if not missing:
            break
        for run in missing:
            rate = fig4.rate_of(run)
            results[run.identity] = emerging(
                run, times[rate], guessing * 1e-4 / rate
            )  # later with smaller rates
    assert not missing
    assert {fig4.rate_of(result.run) for result in results.values()} >= set(PAPER.rates[:2])
    first = list(results.values())[: len(first_runs())]
    while following := next_runs(first):
        first += [results[run.identity] for run in following]
    assert all(run.identity in results for by in recall.CRITERIA for run in shown_runs(first, by))


def test_five_percent_is_held_against_the_published_law():
    rows = [
        {"pairs": n, "vocabulary": v, "law": 0.55 * v**0.79 * n**2.25}
        for n in (8, 16)
        for v in (64, 128)
    ]
    table = pd.DataFrame(rows).assign(censored=False)
    check = fig4.over_the_law(table.assign(plateau=1.2 * table["law"]))
    assert check.measured == pytest.approx([1.2, 1.2, 1.2], rel=1e-6)
    assert check.holds
    assert not fig4.over_the_law(
        table.assign(plateau=np.where(table["pairs"] == 8, 3, 1) * table["law"])
    ).holds
    assert not fig4.over_the_law(table.assign(plateau=math.nan)).holds, "all failed"
    early = table["pairs"] == 16
    short = table.assign(plateau=np.where(early, 0.1, 1.2) * table["law"], censored=early)
    assert fig4.over_the_law(short).measured == pytest.approx([1.2, 1.2, 1.2], rel=1e-6), (
        "censored too soon to tell"
    )
    assert not fig4.over_the_law(
        short.assign(plateau=np.where(early, 2.5, 1.2) * table["law"])
    ).holds
