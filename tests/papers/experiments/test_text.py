"""Repetition in text: the corpora and runs of the figure, and what is concluded from them."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from emergo.papers import FIGURES
from emergo.papers.experiments import text
from emergo.papers.experiments.text import NONE, Repetition, UntilInduction

CORPORA = Path(__file__).parents[3] / "results" / "corpora.csv"
PRESETS = FIGURES["emergo/text"].presets


def test_the_corpora_are_those_of_the_recipe():
    table = pd.read_csv(CORPORA, index_col="name")[["source", "tokenizer", "training_tokens"]]
    rows = {name: tuple(table.loc[name.lower()]) for name in text.CORPORA}
    assert rows == text.CORPORA


def test_no_run_reads_a_token_twice():
    for settings in (PRESETS["laptop"], PRESETS["smoke"]):
        for base in settings.bases.values():
            assert base.steps < base.task.epoch(base.batch)
    for name, (_, _, tokens) in text.CORPORA.items():
        for batch, length in ((64, 256), (8, 64), (128, 512)):
            steps = text.steps_of(name, length, batch)
            assert batch * length * steps <= min(tokens, text.TOKENS)


def test_conditions_repeat_one_way_each_and_share_a_program():
    for study in PRESETS["paper"].studies().values():
        tasks: set[Any] = {run.config.task for run in study.runs}
        assert len(tasks) == len(text.CONFIRMED) + 1
        for task in tasks:
            schedules = [getattr(task, kind) for kind in text.KINDS]
            assert {type(schedule) for schedule in schedules} == {UntilInduction}
            assert sum(schedule.before > 0 for schedule in schedules) <= 1


def test_repetition_ends_at_its_step_or_with_the_first_head():
    switch = Repetition("copy", 0.3, 0.2).schedule(1000)
    state = switch.update(switch.start(), {"induction_head": jnp.ones((2, 2))})
    assert [float(switch.value(step, state)) for step in (199, 200)] == [pytest.approx(0.3), 0]
    policy = Repetition("copy", 0.3, None).schedule(1000)
    state = policy.update(policy.start(), {"induction_head": jnp.full((2, 2), 0.2)})
    assert float(policy.value(900, state)) == pytest.approx(0.3)
    state = policy.update(state, {"induction_head": jnp.array([[0.1, 0.4]])})
    state = policy.update(state, {"induction_head": jnp.zeros((2, 2))})
    assert float(policy.value(900, state)) == 0


def test_the_label_of_a_repetition():
    assert Repetition("copy", 0.3).label == "copies 0.3"
    assert Repetition("phrase_repeats", 12, 0.2).label == "phrase 12 times until 20%"
    assert Repetition("subset_share", 0.6, None).label == "subset 0.6 until a head"


STEP = np.arange(0, 1001, 50)


def curves(rate: float, new_share: float, **changes):
    loss = 2 + 6 * np.exp(-rate * STEP)
    accuracy = np.where(STEP >= 400, 0.9, 0.0)
    head = np.where(STEP >= 300, 0.8, 0.1)[:, None, None]
    same = {"step": STEP, "loss": loss, "new_share": np.full(len(STEP), new_share)}
    same |= {"accuracy_copied": accuracy, "in_context": accuracy}
    return same | {"induction_head": head} | changes


PLAIN = curves(0.005, 1.0)


def test_what_a_run_saves_over_text_without_repetition():
    faster = curves(0.00625, 0.8)
    row = text.row_of(faster, PLAIN)
    assert row["copying"] == pytest.approx(375, abs=25)
    assert row["induction"] == pytest.approx(275, abs=25)
    assert 1000 * row["saved"] == pytest.approx(1000 * (1 - 1 / 1.25), abs=50)
    assert 500 * row["saved_halfway"] == pytest.approx(500 * (1 - 1 / 1.25), abs=50)
    # With four fifths of the tokens new, and 1.25 times the rate, the loss is as at equal tokens.
    assert row["excess"] == pytest.approx(row["loss"] - PLAIN["loss"][16])
    assert row["loss_change"] < 0
    speed = text.speed_up(faster, PLAIN)
    known = np.isfinite(speed) & (faster["step"] > 0)
    assert known.sum() >= 15
    # Interpolating an exponential over 50 steps is exact to a few percent.
    np.testing.assert_allclose(speed[known], 1.25, rtol=0.03)
    assert np.isnan(speed[-1])


def test_a_run_that_never_gets_as_good_saves_nothing_and_is_counted():
    worse = curves(0.005, 1.0, loss=PLAIN["loss"] + 0.1)
    row = text.row_of(worse, PLAIN)
    assert (row["saved"], row["behind"]) == (0.0, True)
    table = text.rows_of({(NONE, 0): PLAIN, ("copies 0.8", 0): worse}).assign(corpus="code")
    assert text.summary_of(table)["behind"].tolist() == [0, 1]


def test_a_run_without_heads_has_no_step():
    never = curves(0.005, 1.0, accuracy_copied=0 * STEP, induction_head=np.zeros((21, 2, 2)))
    row = text.row_of(never, None)
    assert np.isnan([row["copying"], row["induction"]]).all()
    assert row["copied"] == 0
    assert "saved" not in row


def test_intervals_are_those_of_students_t_and_wider_for_several_candidates():
    mean, low, high = text.interval([1.0, 2.0, 3.0, 4.0])
    # 3.182 is the 97.5% quantile with three degrees of freedom.
    half = float(3.182 * np.std([1, 2, 3, 4], ddof=1) / 2)
    np.testing.assert_allclose([mean, low, high], [2.5, 2.5 - half, 2.5 + half], rtol=1e-3)
    assert text.interval([1.0, 2.0, 3.0, 4.0], candidates=3)[1] < low
    assert np.isnan(text.interval([1.0])[1:]).all()


def test_checks_follow_from_the_runs():
    settings: Any = PRESETS["paper"]
    labels = [NONE, *(r.label for r in settings.repetitions)]
    rows = [
        {
            "corpus": "code",
            "repetition": label,
            "seed": seed,
            "saved": 0.1 + 0.01 * seed,
            "induction": 500.0 if label in labels[1:3] else 1000.0 + seed,
            "loss": 2.0,
            "loss_change": 0.3 if label == labels[-1] else 0.001 * seed,
        }
        for label in labels
        for seed in range(4)
    ]
    found = {c.name: c.holds for c in text.checks_of(pd.DataFrame(rows), settings)}
    assert set(found.values()) == {True}
    assert len(found) == 7
    worse = pd.DataFrame(rows)
    worse["loss_change"] = 0.1 + 0.001 * worse["seed"]
    assert [c.holds for c in text.checks_of(worse, settings)] == [*[True] * 4, *[False] * 3]
