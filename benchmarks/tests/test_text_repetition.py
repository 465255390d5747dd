"""Corpora of text, and what is read from runs on them."""

import zipfile
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import text_corpora, text_repetition
from benchmarks.text_repetition import NONE, Repetition

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


def test_no_token_is_read_twice():
    for name in ("code", "english"):
        tokens = text_repetition.corpus_of(name).training_tokens
        for batch, length in ((64, 256), (8, 64), (128, 512)):
            steps = text_repetition.steps_of(name, length, batch)
            assert batch * length * steps <= min(tokens, text_repetition.TOKENS)


def test_conditions_repeat_one_way_each_and_share_a_program():
    study = text_repetition.screen()["code"]
    tasks: set[Any] = {run.config.task for run in study.runs}
    assert len(tasks) == len(text_repetition.SCREENED) + 1
    for task in tasks:
        amounts = [getattr(task, kind).before for kind in text_repetition.KINDS]
        assert sum(amount > 0 for amount in amounts) <= 1
    ends = {task.copy.at for task in tasks if task.copy.before == 0.3}
    assert ends == {study.base.steps, study.base.steps // 2, study.base.steps // 5}


STEP = np.arange(0, 1001, 50)


def curves(rate: float, new_share: float, **changes):
    loss = 2 + 6 * np.exp(-rate * STEP)
    accuracy = np.where(STEP >= 400, 0.9, 0.0)
    head = np.where(STEP >= 300, 0.8, 0.1)[:, None, None]
    same = {"step": STEP, "loss": loss, "new_share": np.full(len(STEP), new_share)}
    same |= {"accuracy_copied": accuracy, "in_context": accuracy}
    return same | {"induction_head": head} | changes


def test_what_a_run_saves_over_text_without_repetition():
    plain = curves(0.005, 1.0)
    saved = 1000 * (1 - 1 / 1.25)
    row = text_repetition.compared_rows({(0, NONE): plain, (0, "copy"): curves(0.00625, 0.8)})[1]
    assert row["copying"] == pytest.approx(375, abs=25)
    assert row["induction"] == pytest.approx(275, abs=25)
    assert 1000 * row["steps_saved"] == pytest.approx(saved, abs=50)
    # With four fifths of the tokens new, and 1.25 times the rate, the loss is as at equal tokens.
    assert row["excess"] == pytest.approx(row["loss"] - plain["loss"][16])
    assert row["loss_change"] < 0


def test_a_run_that_never_gets_as_good_saves_nothing_and_is_counted():
    plain = curves(0.005, 1.0)
    worse = curves(0.005, 1.0, loss=plain["loss"] + 0.1)
    rows = text_repetition.compared_rows({(0, NONE): plain, (0, "copy"): worse})
    assert (rows[1]["steps_saved"], rows[1]["never as good"]) == (0.0, True)
    table = text_repetition.conditions(pd.DataFrame(rows).assign(corpus="code"))
    assert table["never as good"].tolist() == [0, 1]


def test_a_run_that_never_copies_has_no_step():
    never = curves(0.005, 1.0, accuracy_copied=np.zeros(len(STEP)))
    (row,) = text_repetition.compared_rows({(0, NONE): never})
    assert np.isnan(row["copying"])
    assert row["copied_at_end"] == 0


def test_conditions_count_runs_that_never_copy():
    rows = pd.DataFrame(
        {
            "corpus": "code",
            "task": NONE,
            "copying": [100.0, 120.0, np.nan],
            "induction": np.nan,
            "copied_at_end": 0.5,
            "in_context": 0.1,
        }
    )
    (row,) = text_repetition.conditions(rows).to_dict("records")
    assert (row["runs"], row["never copied"], row["induction"]) == (3, 1, "-")
    assert row["copying"].startswith("110 [")


def test_the_law_varies_batch_length_and_model():
    (study,) = text_repetition.law().values()
    configs: list[Any] = [run.config for run in study.runs]
    sizes = {(c.batch, c.task.length, c.model.layers, c.model.width) for c in configs}
    assert len(sizes) == 14
    for config in configs:
        assert config.steps == text_repetition.steps_of("code", config.task.length, config.batch)


def test_the_label_of_a_repetition():
    assert Repetition("copy", 0.3).label == "copy 0.3"
    assert Repetition("copy", 0.3, 0.2).label == "copy 0.3 until 20%"
