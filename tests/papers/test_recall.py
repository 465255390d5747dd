"""When recall emerges, and which learning rates and seeds Figure 4 asks for, on curves made by hand."""

import dataclasses
import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from emergo._errors import InputError
from emergo.engine import History, Run, State
from emergo.papers import _recall as recall
from emergo.papers._figure import seconds_needed
from emergo.papers._work import Work
from emergo.papers.own import reading
from emergo.papers.zucchet2025 import fig4, fig5, fig16, fig17
from emergo.studies import Records, Result, read_records, record_tables
from emergo.tasks import Recall

PAPER = fig4.FIGURE.presets["paper"]


def emerging(run: Run, at: float, guessing: float = math.inf) -> Result:
    """A run whose accuracy jumps at a step, and may first jump to guessing, seen every 500 steps as far as the run goes."""
    step = np.arange(0, run.config.steps + 1, 500)
    accuracy = np.where(step >= at, 1.0, (step >= guessing) / pairs_of(run)).astype(np.float32)
    curves = {"step": step, "accuracy": accuracy, "loss": 1 - accuracy}
    return Result.of(History(run, "reached" if at <= step[-1] else "exhausted", None, curves, "cpu"))


def pairs_of(run: Run) -> int:
    assert isinstance(run.config.task, Recall)
    return run.config.task.pairs


def rate_of(run: Run) -> float:
    return run.config.optimizer.learning_rate


def test_the_next_rate_runs_for_about_as_long_as_the_first_took():
    first = [emerging(run, 30_000 if pairs_of(run) == 16 else 1e9) for run in fig4.runs(PAPER)]
    assert {(pairs_of(r.run), r.run.config.steps) for r in first} == {(8, 200_000), (16, 200_000), (32, 300_000)}
    others = fig4.next_rates(PAPER, first)
    assert {rate_of(run) for run in others} == {3e-5}
    assert {(pairs_of(run), run.config.steps) for run in others} == {(8, 200_000), (16, 50_000), (32, 300_000)}
    assert len(others) == len(first) == 12


def test_rates_are_tried_until_one_is_no_better():
    first = [emerging(run, 20_000) for run in fig4.runs(PAPER)]
    second = [emerging(run, 10_000 if pairs_of(run) == 16 else 22_000) for run in fig4.next_rates(PAPER, first)]
    third = fig4.next_rates(PAPER, first + second)
    assert {(pairs_of(run), rate_of(run), run.config.steps) for run in third} == {(16, 1e-5, 12_500)}
    tried = first + second + [emerging(run, 12_000) for run in third]
    assert fig4.next_rates(PAPER, tried) == []
    assert {task.pairs: rate for task, rate in fig4.chosen_rates(tried).items()} == {8: 1e-4, 16: 3e-5, 32: 1e-4}
    shown = fig4.shown_runs(PAPER, tried)
    assert {pairs_of(run): rate_of(run) for run in shown} == {8: 1e-4, 16: 3e-5, 32: 1e-4, 64: 1e-4}
    assert {pairs_of(run): run.config.steps for run in shown} == {8: 200_000, 16: 200_000, 32: 300_000, 64: 20_000}
    assert {run.seed for run in shown if pairs_of(run) == 16} == {0, 1, 2}, "the first was cut short at this rate"
    assert {run.seed for run in shown if pairs_of(run) == 64} == {0}
    assert len(shown) == 8 * 3 + 3 * 3 + 1 + 3


def test_where_no_rate_emerges_the_largest_is_chosen():
    first = [emerging(run, 1e9) for run in fig4.runs(PAPER)]
    second = [emerging(run, 1e9) for run in fig4.next_rates(PAPER, first)]
    assert set(fig4.chosen_rates(first + second).values()) == {1e-4}
    assert fig4.next_rates(PAPER, first + second) == []


def test_figures_4_5_and_17_share_runs():
    tried = [emerging(run, 20_000) for run in fig4.runs(PAPER)]
    known = {run.identity for run in fig4.shown_runs(PAPER, tried)}
    assert {run.identity for run in fig17.runs(fig17.FIGURE.presets["paper"])} <= known
    five = fig5.runs(fig5.FIGURE.presets["paper"])
    assert {run.config.task for run in five if run.identity in known} == {Recall(32, 256)}


def test_a_figure_is_whole_only_with_the_runs_that_follow_from_others():
    first = [emerging(run, 20_000) for run in fig4.runs(PAPER)]

    def needed(results):
        work = Work(records=Records(*record_tables(results, [r.run.identity for r in results])))
        return len(fig4.FIGURE.wanted("paper", work)), seconds_needed(fig4.FIGURE, "paper", work)

    nothing, some = needed(first[:3]), needed(first)
    assert nothing[0] == len(first) == 12
    assert some[0] == 12 + 12, "the next rate of 8, 16 and 32 pairs"
    assert 0 < some[1] < nothing[1] == pytest.approx(9 / 12 * fig4.FIGURE.seconds["paper"])
    others = [emerging(run, 1e9) for run in fig4.next_rates(PAPER, first)]
    assert needed(first + others)[0] == 12 + 12 + 2 * 11 + 3, "and the other two seeds, of all but one cell, and 64 pairs"


def test_a_criterion_has_rates_of_its_own():
    """The first rate is the first to guess, which passes 5% with fewer than 20 pairs, and the second the first to recall."""
    first = [emerging(run, 60_000, guessing=10_000) for run in fig4.runs(PAPER)]
    second = [emerging(run, 40_000, guessing=20_000) for run in fig4.next_rates(PAPER, first)]
    tried = first + second
    assert set(fig4.chosen_rates(tried).values()) == {3e-5}
    assert {task.pairs: rate for task, rate in fig4.chosen_rates(tried, "plain").items()} == {8: 1e-4, 16: 1e-4, 32: 3e-5}
    tried += [emerging(run, 1e9) for run in fig4.next_rates(PAPER, tried)]
    work = Work(records=Records(*record_tables(tried, [r.run.identity for r in tried])))
    wanted = {run.identity for run in fig4.FIGURE.wanted("paper", work)}
    assert all(run.identity in wanted for by in recall.CRITERIA for run in fig4.shown_runs(PAPER, tried, by))


def test_the_next_rate_is_tried_where_either_criterion_asks_for_it():
    first = [emerging(run, 30_000, guessing=20_000) for run in fig4.runs(PAPER)]
    second = [emerging(run, 40_000, guessing=10_000) for run in fig4.next_rates(PAPER, first)]
    third = fig4.next_rates(PAPER, first + second)
    assert {(pairs_of(run), rate_of(run), run.config.steps) for run in third} == {(8, 1e-5, 12_500), (16, 1e-5, 12_500)}


def test_of_rates_that_do_not_emerge_one_that_fails_is_the_last_choice():
    first = [emerging(run, 1e9) for run in fig4.runs(PAPER)]
    failed = [result._replace(failed_step=100) for result in first]
    second = [emerging(run, 1e9) for run in fig4.next_rates(PAPER, failed)]
    assert set(fig4.chosen_rates(failed + second).values()) == {3e-5}
    assert {rate_of(run) for run in fig4.next_rates(PAPER, failed + second)} == {1e-5}


def test_emergence_is_later_with_more_pairs_where_that_can_be_told():
    def table(times):
        shown = fig4.shown_runs(PAPER, [emerging(run, 20_000) for run in fig4.runs(PAPER)])
        runs = {run.config.task: run for run in shown if run.config.task.inputs == 256}
        return recall.emergence_table([emerging(run, times[pairs_of(run)]) for run in runs.values()])

    rising = fig4.later_with_more(table({8: 10_000, 16: 50_000, 32: 100_000, 64: 1e9}))
    assert rising == [pytest.approx(5, rel=0.1), pytest.approx(2, rel=0.1)], "64 pairs were not followed for as long as 32"
    assert min(fig4.later_with_more(table({8: 20_000, 16: 10_000, 32: 50_000, 64: 1e9}))) < 1
    assert fig4.later_with_more(table({8: 10_000, 16: 1e9, 32: 50_000, 64: 1e9})) == [pytest.approx(20, rel=0.1)]
    some = table({8: 10_000, 16: 20_000, 32: 50_000, 64: 1e9})
    failed = some.assign(state=some["state"].mask(some["pairs"] == 16, "failed"))
    assert fig4.later_with_more(failed) == [pytest.approx(5, rel=0.1)], "32 over 8 pairs"


def test_five_percent_is_held_against_the_published_law():
    rows = [{"pairs": n, "vocabulary": v, "law": 0.55 * v**0.79 * n**2.25} for n in (8, 16) for v in (64, 128)]
    table = pd.DataFrame(rows).assign(censored=False)
    check = fig4.over_the_law(table.assign(plateau=1.2 * table["law"]))
    assert check.measured == pytest.approx([1.2, 1.2, 1.2], rel=1e-6)
    assert check.holds
    assert not fig4.over_the_law(table.assign(plateau=np.where(table["pairs"] == 8, 3, 1) * table["law"])).holds
    assert not fig4.over_the_law(table.assign(plateau=math.nan)).holds, "all failed"
    early = table["pairs"] == 16
    short = table.assign(plateau=np.where(early, 0.1, 1.2) * table["law"], censored=early)
    assert fig4.over_the_law(short).measured == pytest.approx([1.2, 1.2, 1.2], rel=1e-6), "censored too soon to tell"
    assert not fig4.over_the_law(short.assign(plateau=np.where(early, 2.5, 1.2) * table["law"])).holds


def test_a_lucky_last_evaluation_is_no_emergence_but_the_end_of_a_run_that_has_learned_is():
    run = fig4.runs(PAPER)[0]
    step, mark = np.arange(0, 500, 100), 0.5

    def seen(accuracy, state: State = "exhausted", failed=None):
        curves = {"step": step, "accuracy": np.array(accuracy), "loss": np.zeros(5)}
        return recall.passed(Result.of(History(run, state, failed, curves, "cpu")), curves["accuracy"], mark)

    assert seen([0, 0, 0, 0, 0.6]) == (400.0, 400.0, math.inf, "censored")
    assert seen([0, 0, 0, 0, 0.95], "reached").state == "reached"
    assert seen([0, 0, 0, 0, 0.0], "failed", 350).state == "failed"
    assert seen([0, 0.6, 0.6, 0.6, 0.6], "failed", 450).time == pytest.approx(100 * 0.5 / 0.6)


def test_the_campaign_trains_all_that_the_figures_show():
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "campaign.py"))
    others = {run.identity for f in (fig5, fig16, fig17, reading) for run in f.runs(f.FIGURE.presets["paper"])}
    times = [dict(zip(PAPER.rates, at, strict=True)) for at in ((2e4, 1e4, 3e4), (2e4, 1e4, 5e3), (1e9, 1e9, 1e9))]
    for at, guessing in itertools.product(times, (math.inf, 2_000)):
        made: dict[str, Result] = {}

        def results(runs, made=made, at=at, guessing=guessing):
            later_with_smaller_rates = guessing * 1e-4
            new = [run for run in runs if run.identity not in made]
            made |= {r.identity: emerging(r, at[rate_of(r)], later_with_smaller_rates / rate_of(r)) for r in new}
            return [made[run.identity] for run in runs]

        for runs in campaign["recall"]().values():
            results(runs(results))
        work = Work(records=Records(*record_tables(list(made.values()), list(made))))
        assert {run.identity for run in fig4.FIGURE.wanted("paper", work)} | others <= set(made)


def test_figure_4_shows_all_that_it_wants_a_panel_a_criterion():
    work = Work(records=read_records())
    outcome = fig4.make(PAPER, work)
    tables, wanted = outcome.tables, {run.identity for run in fig4.FIGURE.wanted("paper", work)}
    assert {identity for name in ("runs", "plain", "rates") for identity in tables[name]["identity"]} == wanted
    recalled, guessed = (tables[name].groupby(["pairs", "vocabulary"])["plateau"].mean() for name in ("runs", "plain"))
    assert (guessed <= recalled).all()
    assert (guessed < recalled / 1.5).sum() == 8, "8 and 16 pairs"
    *_, plain, corrected = outcome.plot.axes
    for axes, name in ((plain, "plain"), (corrected, "runs")):
        seen = tables[name][~tables[name]["censored"]]
        drawn = [y for line in axes.lines if line.get_marker() == "o" for y in np.asarray(line.get_ydata())]
        assert sorted(drawn) == sorted(seen["plateau"])
    [check] = [check for check in outcome.checks if "published law" in check.name]
    cells = guessed.loc[:32].reset_index()
    over = cells["plateau"] / fig4.LAW.at(vocabulary=cells["vocabulary"], pairs=cells["pairs"])
    expected = [over.min(), over.median(), over.max()]
    assert check.measured == pytest.approx(expected, rel=0.02), "but for arithmetic means of seeds, a few percent apart"


def test_where_nothing_emerges_figure_4_says_that_there_is_no_law():
    made: dict[str, Result] = {}

    def results(runs):
        made.update((run.identity, emerging(run, 1e9)) for run in runs)
        return [made[run.identity] for run in runs]

    tried = results(fig4.runs(PAPER))
    while following := fig4.next_rates(PAPER, tried):
        tried += results(following)
    for by in recall.CRITERIA:
        results(fig4.shown_runs(PAPER, tried, by))
    with pytest.raises(InputError, match="0 usable runs"):
        fig4.make(PAPER, Work(records=Records(*record_tables(list(made.values()), list(made)))))


def test_a_part_of_figure_4_keeps_its_colours():
    """Without the vocabulary of the curves, and without runs that only one criterion shows."""
    records = read_records()
    everything = [records.read(run) for run in fig4.FIGURE.wanted("paper", Work(records=records))]
    some = [r for r in everything if r.run.config.task.inputs != 256 and (r.run.config.task.inputs, r.run.seed) != (512, 2)]
    work = Work(records=Records(*record_tables(some, [r.run.identity for r in some])), partial=True)
    plot = fig4.make(PAPER, work).plot
    colours = fig4.vocabulary_colours(PAPER)
    *_, plain, corrected = plot.axes
    for axes in (plain, corrected):
        shown = [line.get_color() for line in axes.lines if line.get_marker() == "o" and len(np.asarray(line.get_xdata()))]
        assert set(shown) <= {colours[size] for size in (64, 128, 512)}
        assert {colours[64], colours[128]} <= set(shown)


def test_where_heads_are_and_when_attention_is_half_way():
    run = fig17.runs(fig17.FIGURE.presets["smoke"])[0]
    step = np.arange(0, 1001, 10)
    rise = (step / 1000)[:, None, None]
    heads = {"copying": np.array([[0.2], [0.8]]), "selecting": np.array([[0.1], [0.9]])}  # layers x heads
    curves = {name: 0.1 + rise * (end - 0.1) for name, end in heads.items()} | {"accuracy": (step >= 400).astype(float)}
    result = Result.of(History(run, "reached", None, curves | {"step": step, "loss": 0.0 * step}, "cpu"))
    assert fig17.holders(result) == {"copying": 2, "selecting": 2}
    assert fig17.half_times(result) == {
        "copying": pytest.approx(500, abs=10),
        "selecting": pytest.approx(500, abs=10),
        "accuracy": pytest.approx(395, abs=10),
    }


def test_the_interval_of_a_gain_is_that_of_a_t_test_where_two_cells_are_all():
    rng = np.random.default_rng(0)
    logs = {1.0: rng.normal(3, 0.1, 4), 2.0: rng.normal(2, 0.1, 4)}
    rows = [{"part": "in_context", "amount": a, "test": math.exp(x)} for a, xs in logs.items() for x in xs]
    table = pd.DataFrame(rows).assign(test_censored=False)
    gain, theirs = fig5.speed_up(table, "in_context", "test"), ttest_ind(logs[1.0], logs[2.0]).confidence_interval()
    assert gain is not None
    assert math.log(gain.high / gain.low) == pytest.approx(theirs.high - theirs.low, rel=1e-10)
    assert gain.low < math.exp(np.mean(logs[1.0]) - np.mean(logs[2.0])) < gain.high
    late = fig5.speed_up(table.assign(test_censored=table["amount"] == 2), "in_context", "test")
    assert late is not None
    assert math.isnan(late.high), "a bound has no interval"


def test_a_gain_needs_runs_without_repetition_and_grokking_runs_that_get_there():
    settings = dataclasses.replace(fig5.FIGURE.presets["laptop"], seeds=1)

    def result(run, test, train):
        step = np.arange(0, 2001, 25)
        curves = {name: (step >= at).astype(float) for name, at in (("accuracy", test), ("accuracy_repeated", train))}
        return Result.of(History(run, "exhausted", None, curves | {"step": step, "loss": 0.0 * step}, "cpu"))

    runs = settings.parts()["in_context"]  # the hardest first, all of one size: bursts 1, 2, 3
    parts = {"in_context": [result(run, at, at / 3) for run, at in zip(runs, (1200, 400, 1500), strict=True)]}
    table = fig5.times(parts)
    gain = fig5.speed_up(table, "in_context", "test")
    assert gain is not None
    assert (gain.times, gain.amount) == (pytest.approx(3, rel=0.1), 2.0)
    assert math.isnan(gain.low), "one seed"
    assert fig5.speed_up(table[table["amount"] > 1], "in_context", "test") is None
    assert fig5.speed_up(table, "across_samples", "test") is None
    assert [check.holds for check in fig5.overfitting(table, 3.0)] == [True, True]
    never, at_once = (fig5.times({"in_context": [result(runs[2], at, 400)]}) for at in (1e9, 400))
    assert [check.holds for check in fig5.overfitting(never, 3.0)] == [True, False]
    assert "at least" in fig5.overfitting(never, 3.0)[0].name
    assert [check.holds for check in fig5.overfitting(at_once, 3.0)] == [False, False]
    assert fig5.overfitting(table, 99.0) == []
