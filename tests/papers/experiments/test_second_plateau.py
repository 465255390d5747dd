"""One change at a time of the full Transformer's setting: the table and the checks, on runs made by
hand."""

import pandas as pd

from emergo.papers.experiments import second_plateau
from emergo.papers.yuksel2026._chains import ChainRuns

from ..by_hand import STUDY, staged

RUNS = STUDY.replace(seeds=3).runs
SPREAD = (480, 500, 520)


def table_of(**late):
    """Runs that leave the second plateau at these steps, by setting."""
    rows = []
    for how, steps in late.items():
        runs = ChainRuns(staged(run, at) for run, at in zip(RUNS, steps, strict=True))
        rows += [second_plateau.row_of(how, run, 1000) for run in runs]
    return pd.DataFrame(rows).replace({"how": {"base": second_plateau.BASE}})


def test_a_change_that_matters_is_told_from_one_that_does_not():
    checks = second_plateau.plateau_checks(
        table_of(base=SPREAD, same=(490, 495, 525), early=(280, 300, 320))
    )
    assert [check.holds for check in checks[:1] + checks[2:]] == [True, True, False]
    assert checks[3].measured[0] < 0.75
    assert second_plateau.plateau_checks(table_of(same=SPREAD)) == []


def test_a_late_plateau_disagrees_with_the_paper():
    check, _ = second_plateau.plateau_checks(table_of(base=(880, 900, 920)))
    assert (check.published, check.holds) == (450, False)


def test_the_level_at_the_end_tells_settings_apart():
    table = table_of(base=SPREAD, same=SPREAD)
    for level, holds in ((3.0, True), (3.5, False)):
        table["kl_1"] = [level] * 3 + [3.25] * 3
        check = second_plateau.plateau_checks(table)[1]
        assert check.measured == {second_plateau.BASE: level, "same": 3.25}
        assert check.holds is holds


def test_rows_are_of_the_steps_that_all_runs_have():
    whole, cut = (
        second_plateau.row_of("base", ChainRuns([staged(RUNS[0])])[0], steps)
        for steps in (2000, 300)
    )
    assert whole["end"] < 0.1 < cut["end"]
    assert abs(whole["plateau"] - 0.35) < 0.05


def test_every_study_has_one_change():
    settings = second_plateau.PRESETS["paper"]
    assert settings.changes == tuple(second_plateau.CHANGES)
    base = settings.changed.base
    for how in settings.changes:
        config = settings.studies()[how].base
        changed = [
            name
            for name in ("task", "model", "optimizer", "n_train")
            if getattr(config, name) != getattr(base, name)
        ]
        assert len(changed) == 1, how
        assert (config.steps, config.batch, config.n_test) == (base.steps, base.batch, base.n_test)


def test_the_plot_tells_a_change_that_moves_the_plateau():
    late = {second_plateau.BASE: SPREAD, "same": (490, 495, 525), "early": (280, 300, 320)}
    runs = {
        how: ChainRuns(staged(run, at) for run, at in zip(RUNS, steps, strict=True))
        for how, steps in late.items()
    }
    plot = second_plateau.draw(
        runs,
        pd.DataFrame([second_plateau.row_of(how, run, 1000) for how in runs for run in runs[how]]),
    )
    words = plot.axes[0].get_legend()
    assert words is not None
    assert [text.get_text() for text in words.get_texts()] == [
        second_plateau.BASE,
        "early",
        "other changes",
    ]
    assert [label.get_text() for label in plot.axes[1].get_yticklabels()] == list(late)


def test_one_seed_shows_nothing():
    alone, other = (
        second_plateau.left_plateau(table_of(base=SPREAD).iloc[:n], second_plateau.BASE)
        for n in (1, 3)
    )
    assert not second_plateau.apart(alone, other._replace(step=9.0, low=8.0, high=10.0))
