"""Repetition in text: which runs there are, and what is concluded from them."""

import pandas as pd

from emergo.papers import FIGURES
from emergo.papers.experiments.text import copying_checks

COLUMNS = ["repetition", "kind", "at", "copying", "copying_state", "accuracy_copied"]


def test_every_kind_of_repetition_is_kept_and_dropped():
    settings = FIGURES["emergo/text"].presets["paper"]
    studies = settings.studies()
    assert [study.count for study in studies.values()] == [20, 18, 18]  # the first has none, too
    for name, study in studies.items():
        (field,) = study.grid
        switches = [getattr(config.task, field) for config in study.configs]
        amounts = {switch.before for switch in switches}
        assert len(amounts - {0.0}) == 3
        assert {switch.after for switch in switches} == {0.0}
        assert {switch.at for switch in switches} == {550, 1100, 2200}
        assert (0.0 in amounts) == (name == "copies")


def test_no_run_reads_a_token_twice():
    for settings in FIGURES["emergo/text"].presets.values():
        assert settings.base.steps < settings.base.task.epoch(settings.base.batch)


def test_checks_follow_from_the_runs():
    rows = [
        ("none", "none", 100, 100, "censored", 0.02),
        ("copies", "kept", 100, 40, "reached", 0.9),
        ("copies", "dropped", 50, 40, "reached", 0.3),
        ("copies", "dropped", 20, 100, "censored", 0.01),
    ]
    found = list(copying_checks(pd.DataFrame(rows, columns=pd.Index(COLUMNS))))
    assert [(check.measured, check.holds) for check in found] == [
        (1.0, True),
        (0.0, True),
        (0.3, False),  # of the run that copied before the repetition was dropped
    ]
