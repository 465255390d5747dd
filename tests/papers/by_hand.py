"""Runs of chains with hand-made curves."""

import numpy as np

from emergo.models import MinimalAttention
from emergo.papers.yuksel2026._chains import ChainRuns, paper
from emergo.training import Result

STEPS = np.arange(5, 2001, 5)
STUDY = paper(MinimalAttention(), seeds=2)


def result(run, kl, shares, lags=None, **more):
    """Return a run with this KL divergence from the teacher.

    `shares` has the axes (evaluation, head, group). It is spread over the two positions of each
    group unless `lags` are given.
    """
    lags = np.repeat(shares, 2, -1)[:, None] / 2 if lags is None else lags
    truncated = [
        abs(kl - level) + level for level in (0.9, 0.35)
    ]  # nearest on the plateau of that level
    curves = {"step": STEPS, "loss": kl + 0.5, "kl_teacher": kl, "attention_by_lag": lags}
    curves["teacher_loss"] = np.full(len(STEPS), 0.5)
    return Result.measured(
        run, curves | {"kl_references": np.stack([*truncated, kl], -1)} | more, None, "by hand"
    )


def staged(run, late=500, **more):
    """Return a run that falls at steps 20, 200 and `late`.

    All heads attend to group 1, then one head leaves it for each other group.
    """

    def past(step):
        return 1 / (1 + (STEPS / step) ** -12.0)

    kl = 3.3 - 2.4 * past(20) - 0.55 * past(200) - 0.33 * past(late)
    one = past(200)[:, None]
    two = past(late)[:, None]
    group = np.eye(3) * 0.9
    heads = [
        group[0] + 0 * one,
        group[0] * (1 - one) + group[1] * one,
        group[0] * (1 - two) + group[2] * two,
    ]
    return result(run, kl, np.stack(heads, 1) * past(20)[:, None, None], **more)


def flat(run):
    """Return a run that learns nothing."""
    return result(run, np.full(len(STEPS), 3.3), np.full((len(STEPS), 3, 3), 0.2))


def measured(one):
    """Return the measurements of a hand-made run."""
    return ChainRuns([one])[0]


def chain_runs(make=staged, study=STUDY):
    return ChainRuns(make(run) for run in study.runs)
