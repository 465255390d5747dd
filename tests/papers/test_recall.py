"""The stages of Figure 4: which learning rates and seeds are asked for, on curves made by hand."""

import numpy as np

from emergo.engine import History, Run
from emergo.papers.zucchet2025 import fig4, fig5, fig17
from emergo.studies import Result
from emergo.tasks import Recall

PAPER = fig4.FIGURE.presets["paper"]


def emerging(run: Run, at: float) -> Result:
    """A run whose accuracy jumps at a step, seen every 100 steps as far as the run goes."""
    step = np.arange(0, run.config.steps + 1, 100)
    curves = {"step": step, "accuracy": (step >= at).astype(np.float32), "loss": (step < at).astype(np.float32)}
    return Result.of(History(run, "reached" if at <= step[-1] else "exhausted", None, curves, "cpu"))


def pairs_of(run: Run) -> int:
    assert isinstance(run.config.task, Recall)
    return run.config.task.pairs


def test_the_other_rates_run_for_as_long_as_the_first_took():
    first = [
        emerging(run, 30_000 if pairs_of(run) == 32 else 5_000 if pairs_of(run) == 16 else 1e9) for run in fig4.runs(PAPER)
    ]
    assert {(pairs_of(r.run), r.run.config.steps) for r in first} == {(8, 200_000), (16, 200_000), (32, 200_000), (64, 60_000)}
    others = fig4.other_rates(PAPER, first)
    assert {run.config.optimizer.learning_rate for run in others} == {3e-5, 1e-5}
    caps = {(pairs_of(run), run.config.steps) for run in others}
    assert {pairs for pairs, _ in caps} == {8, 16, 32}
    assert all(cap == 200_000 for pairs, cap in caps if pairs == 8), "a censored one has no end to stop the others at"
    assert all(29_900 < cap <= 30_000 for pairs, cap in caps if pairs == 32)


def test_the_rate_that_emerges_first_is_chosen_and_the_largest_where_none_does():
    first = [emerging(run, 1e9 if pairs_of(run) == 8 else 20_000) for run in fig4.runs(PAPER)]
    others = fig4.other_rates(PAPER, first)
    quick = [
        emerging(run, 15_000 if pairs_of(run) == 32 and run.config.optimizer.learning_rate == 3e-5 else 1e9) for run in others
    ]
    chosen = {task.pairs: rate for task, rate in fig4.chosen_rates(first + quick).items()}
    assert chosen == {8: 1e-4, 16: 1e-4, 32: 3e-5, 64: 1e-4}
    more = fig4.more_runs(PAPER, first + quick)
    assert {run.seed for run in more if pairs_of(run) == 16} == {1, 2, 3, 4}
    assert {run.seed for run in more if pairs_of(run) == 32} == {0, 1, 2, 3, 4}, "the first was cut short at this rate"
    assert all(run.config.steps == 200_000 for run in more)
    assert 64 not in {pairs_of(run) for run in more}


def test_figure_17_shows_runs_of_figure_5():
    shown = {run.identity for run in fig17.runs(fig17.FIGURE.presets["paper"])}
    assert shown <= {run.identity for run in fig5.runs(fig5.FIGURE.presets["paper"])}
