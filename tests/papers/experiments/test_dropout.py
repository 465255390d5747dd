"""Dropout in every step or in every third: the table and the checks, on made-up runs."""

import pandas as pd

from emergo.papers.experiments import dropout

from ..by_hand import chain_runs, flat, staged


def checks_of(*makers):
    rows = [
        dropout.row_of(how, run)
        for how, make in zip(dropout.CHANGES, makers, strict=True)
        for run in (chain_runs(make) if make else ())
    ]
    return [*dropout.dropout_checks("a task", pd.DataFrame(rows))]


def test_less_dropout_learns_more_and_the_published_start_sooner():
    checks = checks_of(flat, staged, lambda run: staged(run, 400))
    assert [check.holds for check in checks[:3]] == [True] * 3
    assert checks[2].measured == [0.0, 3.0, 3.0]
    assert checks[3].measured[-1] < checks[3].measured[-3]  # leaves the second reference sooner


def test_checks_can_fail():
    assert [check.holds for check in checks_of(staged, flat, flat)] == [False] * 4


def test_missing_parts_are_not_checked():
    assert checks_of(staged, None, staged) == []
    assert len(checks_of(staged, staged, None)) == 3
