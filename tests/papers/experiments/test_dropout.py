"""Dropout in every step or in one of three: the table and the checks, on runs made by hand."""

import pandas as pd

from emergo.papers.experiments import dropout

from ..by_hand import chain_runs, flat, staged


def table_of(always, seldom, published):
    parts = zip(dropout.CHANGES, (always, seldom, published), strict=True)
    return pd.DataFrame(
        [dropout.row_of(how, run) for how, make in parts if make for run in chain_runs(make)]
    )


def test_less_dropout_learns_more_and_the_published_start_sooner():
    table = table_of(flat, staged, lambda run: staged(run, 400))
    assert len(table) == 6
    checks = dropout.dropout_checks("a task", table)
    assert [check.holds for check in checks[:3]] == [True] * 3
    assert checks[2].measured == [0.0, 3.0, 3.0]
    assert checks[3].measured[-1] < checks[3].measured[-3]  # the second reference is left sooner


def test_the_checks_can_fail():
    checks = dropout.dropout_checks("a task", table_of(staged, flat, flat))
    assert [check.holds for check in checks] == [False] * 4


def test_parts_that_are_not_there_are_not_checked():
    assert dropout.dropout_checks("a task", table_of(staged, None, staged)) == []
    assert len(dropout.dropout_checks("a task", table_of(staged, staged, None))) == 3


def test_what_differs_is_the_dropout_and_the_start():
    studies = dropout.FIGURE.presets["laptop"].studies()
    models = [study.base.model for study in studies.values()]
    assert [(getattr(m, "dropout_every", 0), getattr(m, "start", 0)) for m in models] == [
        (None, None),
        (3, None),
        (3, "xavier"),
    ]
    assert all(model.replace(dropout_every=None, start=None) == models[0] for model in models)
