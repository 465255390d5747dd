"""The second plateau of the full Transformer: rows and checks, on made-up runs."""

import pandas as pd

from emergo.papers.experiments import second_plateau
from emergo.papers.experiments.second_plateau import BASE, plateau_checks, row_of
from emergo.papers.yuksel2026._chains import ChainRuns

from ..by_hand import STUDY, measured, staged

RUNS = STUDY.replace(seeds=3).runs
SPREAD = (480, 500, 520)


def table_of(**late):
    """Make runs that leave the second plateau at these steps, by setting."""
    rows = []
    for how, steps in late.items():
        runs = ChainRuns(staged(run, at) for run, at in zip(RUNS, steps, strict=True))
        rows += [row_of(BASE if how == "base" else how, run, 1000) for run in runs]
    return pd.DataFrame(rows)


def test_changes_that_matter():
    table = table_of(base=SPREAD, same=(490, 495, 525), early=(280, 300, 320))
    published, _, same, early = plateau_checks(table)
    assert [check.holds for check in (published, same, early)] == [True, True, False]
    assert early.measured[0] < 0.75
    assert not [*plateau_checks(table_of(same=SPREAD))]


def test_a_late_plateau_disagrees_with_the_paper():
    check, _ = plateau_checks(table_of(base=(880, 900, 920)))
    assert (check.published, check.holds) == (450, False)


def test_the_level_at_the_end_distinguishes_settings():
    table = table_of(base=SPREAD, same=SPREAD)
    for level, holds in ((3.0, True), (3.5, False)):
        table["kl_1"] = [level] * 3 + [3.25] * 3
        _, check, _ = plateau_checks(table)
        assert check.measured == {BASE: level, "same": 3.25}
        assert check.holds is holds


def test_rows_use_the_steps_that_all_runs_have():
    run = measured(staged(RUNS[0]))
    whole = row_of("base", run, 2000)
    assert whole["end"] < 0.1 < row_of("base", run, 300)["end"]
    assert abs(whole["plateau"] - 0.35) < 0.05


def test_one_seed_shows_no_difference():
    table = table_of(base=SPREAD)
    alone, other = (second_plateau.left_plateau(table[:n], BASE) for n in (1, 3))
    assert not second_plateau.apart(alone, other._replace(step=9.0, low=8.0, high=10.0))
