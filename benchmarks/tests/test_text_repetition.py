"""Corpora of text, and what is read from runs on them."""

import zipfile
from typing import Any

import pytest

from benchmarks import text_corpora, text_repetition
from emergo.papers.experiments.text import KINDS, steps_of

PAGES = """First line.
   Second line.

Postel                                                          [Page 1]
\f
RFC 793                     Transmission Control            September 1981


Third line.



Fourth line.
"""


def test_pages_of_an_rfc_are_joined():
    expected = "First line.\n   Second line.\n\nThird line.\n\nFourth line.\n"
    assert text_corpora.without_pages(PAGES) == expected


def test_modules_of_a_wheel_in_another_encoding_are_left_out(tmp_path):
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("b.py", "b = 1\n")
        wheel.writestr("a.py", "a = 1\n")
        wheel.writestr("latin.py", b"# \xe9\n")
        wheel.writestr("empty.py", "\n")
        wheel.writestr("data.json", "{}")
    assert list(text_corpora.modules(path)) == ["a = 1\n", "b = 1\n"]
    assert text_corpora.package_file(tmp_path, "package==1.0") == path
    with pytest.raises(SystemExit, match="has 0 files of package"):
        text_corpora.package_file(tmp_path, "package==2.0")


def test_conditions_of_the_screen_repeat_one_way_each_and_share_a_program():
    study = text_repetition.screen()["code"]
    tasks: set[Any] = {run.config.task for run in study.runs}
    assert len(tasks) == len(text_repetition.SCREENED) + 1
    for task in tasks:
        amounts = [getattr(task, kind).before for kind in KINDS]
        assert sum(amount > 0 for amount in amounts) <= 1
    ends = {task.copy.at for task in tasks if task.copy.before == 0.3}
    assert ends == {study.base.steps, study.base.steps // 2, study.base.steps // 5}


def test_the_law_varies_batch_length_and_model():
    (study,) = text_repetition.law().values()
    configs: list[Any] = [run.config for run in study.runs]
    sizes = {(c.batch, c.task.length, c.model.layers, c.model.width) for c in configs}
    assert len(sizes) == 14
    for config in configs:
        assert config.steps == steps_of("code", config.task.length, config.batch)


def test_the_report_prints_the_recorded_campaigns(capsys):
    text_repetition.report(text_repetition.FOLDER)
    printed = capsys.readouterr().out
    assert {"screen", "confirm-code", "confirm-english"} <= set(printed.splitlines())
    assert "phrase 12 times until a head" in printed
