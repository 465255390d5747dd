"""Forecasts of logs: signals, logs without a signal, and invalid logs."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import emergo as em
from emergo.forecasting import forecast_logs
from emergo.store.records import SHIPPED

STEP = np.arange(0, 2001, 25)


def log(loss, **columns) -> pd.DataFrame:
    return pd.DataFrame({"step": STEP, "loss": loss, **columns})


def falling(at: float = 2000.0) -> np.ndarray:
    """A loss that falls from 0.5 to 0.1 around a step."""
    return 0.5 - 0.4 / (1 + np.exp((at - STEP) / 60))


def accelerating(size: float = 0.01) -> np.ndarray:
    """Attention whose logarithm grows with the sixth power of the steps."""
    return size * np.exp((STEP / 2000) ** 6)


def test_a_falling_metric_is_forecast():
    found = em.forecast(log(falling()), below=0.2)
    assert (found.state, found.metric, found.at) == ("forecast", "loss", 2000.0)
    assert found.drop is not None
    assert found.drop.signal == "loss"
    truth = 2000 + 60 * np.log(3)
    for low, high in found.intervals.values():
        assert 2000 <= low < high
    assert found.intervals[95][0] < truth < found.intervals[95][1]
    ends = [found.intervals[percent][i] for i, percent in ((0, 80), (0, 50), (1, 50), (1, 80))]
    assert sorted([*ends, found.step]) == [*ends[:2], found.step, *ends[2:]]


def test_accelerating_attention_means_a_coming_drop():
    table = log(0.5, attention_0_0=np.full(len(STEP), 0.01), attention_0_1=accelerating())
    for threshold in ({"below": 0.1}, {}):
        found = em.forecast(table, **threshold)
        assert (found.state, found.intervals) == ("coming", {})
        assert found.drop is not None
        assert found.drop.signal == "attention_0_1"
        assert 0.5 < found.drop.probability < 1
        assert str(found) == f"a drop is coming ({found.drop.probability:.0%})"
    twin = log(0.5, attention_0_0=accelerating())
    assert em.forecast(table, below=0.1, twin=twin).state == "no signal"


@pytest.mark.parametrize(
    "attention",
    [
        np.full(len(STEP), 0.01),
        0.01 * (1 + STEP / 2000),
        0.01 * (2 - np.exp(-STEP / 300)),
        accelerating()[::-1],
    ],
    ids=["flat", "even", "slowing", "falling"],
)
def test_movement_without_acceleration_is_not_a_signal(attention):
    found = em.forecast(log(0.5, attention_0_0=attention), below=0.1)
    assert (found.state, found.intervals, bool(np.isnan(found.step))) == ("no signal", {}, True)
    assert found.why


@given(st.integers(0, 1000))
def test_noise_is_not_a_signal(seed):
    rng = np.random.default_rng(seed)
    loss = 0.5 + 0.01 * rng.standard_normal(len(STEP))
    noise = {
        f"attention_0_{i}": 0.01 * np.exp(0.02 * rng.standard_normal(len(STEP))) for i in range(4)
    }
    assert em.forecast(log(loss, **noise), below=0.1).state == "no signal"


def test_random_walks_and_saturating_curves_are_rarely_a_signal():
    rng = np.random.default_rng(0)
    walks = rng.standard_normal((200, 2, len(STEP))).cumsum(-1)
    states = [
        em.forecast(log(0.5 * np.exp(0.005 * a), attention_0_0=np.exp(0.02 * b)), below=0.1).state
        for a, b in walks
    ]
    # 0.3% of walks of the metric are expected, and fewer of those of a probe.
    assert states.count("no signal") >= 195
    for late in (STEP / (STEP + 300), 1 - np.exp(-STEP / 1000), np.log1p(STEP / 100)):
        assert em.forecast(log(0.5 - 0.05 * late), below=0.1).state == "no signal"


def test_a_run_that_has_emerged():
    found = em.forecast(log(falling(1000.0)), below=0.2)
    assert found.state == "emerged"
    assert found.step == pytest.approx(1000 + 60 * np.log(3), abs=1)
    assert "emerged at 1,066" in str(found)


def test_a_rising_metric_is_forecast():
    table = log(0.5, accuracy=1 - falling())
    assert em.forecast(table, "accuracy", above=0.8).state == "forecast"


def test_a_recorded_run_is_foretold_before_its_loss_falls():
    """Step 3000 of 4911: the loss has fallen from 0.545 to 0.541. At 3500 it begins to fall."""
    curves = pd.read_parquet(
        SHIPPED / "capacity.curves.parquet", filters=[("identity", "==", "637ae792489963f0")]
    )
    table = curves.drop(columns="identity").dropna(axis=1, how="all")
    states = [em.forecast(table[table["step"] <= at], below=0.1).state for at in (2000, 3000, 3500)]
    assert states == ["no signal", "coming", "forecast"]


def test_json_and_picture():
    found = em.forecast(log(falling()), below=0.2)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["state"] == "forecast"
    assert set(data["intervals"]) == {"50%", "80%", "95%"}
    for one in (
        found,
        em.forecast(log(0.5), below=0.1),
        em.forecast(log(falling(1000.0)), below=0.2),
    ):
        assert one._repr_png_().startswith(b"\x89PNG")
    probed = em.forecast(log(0.5, attention_0_1=accelerating()), below=0.1)
    assert [axes.get_ylabel() for axes in probed.plot().axes] == ["loss", "attention_0_1"]


def test_files_of_one_run_and_of_several(tmp_path):
    one = tmp_path / "one.csv"
    two = tmp_path / "two.csv"
    log(falling()).to_csv(one, index=False)
    pd.concat([log(falling()).assign(run="a"), log(0.5).assign(run="b")]).to_csv(two, index=False)
    assert str(em.forecast(one, below=0.2)) == str(em.forecast(log(falling()), below=0.2))
    assert [(f.name, f.state) for f in forecast_logs([two], "loss", 0.2)] == [
        ("a", "forecast"),
        ("b", "no signal"),
    ]
    with pytest.raises(em.InputError, match="holds 2 runs"):
        em.forecast(two, below=0.2)


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (log(0.5), {"below": 0.1, "above": 0.9}, "give one threshold"),
        (log(0.5), {"below": 0.1, "metric": "los"}, "unknown column 'los'"),
        (log(0.5).drop(columns="step"), {"below": 0.1}, "unknown column 'step'"),
        (log("high"), {"below": 0.1}, "must hold numbers"),
        (log(0.5).assign(run=STEP % 2), {"below": 0.1}, "holds 2 runs"),
        (log(0.5), {"below": 0.1, "colums": "x"}, "no option 'colums'"),
    ],
)
def test_invalid_tables(table, options, words):
    with pytest.raises(em.InputError, match=words):
        em.forecast(table, **options)


def test_unsorted_tables_gaps_and_restarts():
    whole = em.forecast(log(falling()), below=0.2)
    shuffled = log(falling()).sample(frac=1, random_state=0)
    resumed = pd.concat([log(0.9)[30:40], log(falling())])  # repeated steps: the last count
    gaps = pd.concat(
        [log(falling()), pd.DataFrame({"step": STEP + 1, "loss": np.nan, "note": 1.0})]
    )
    for table in (shuffled, resumed, gaps):
        assert em.forecast(table, below=0.2) == whole
    diverged = em.forecast(log(np.where(STEP > 1900, np.inf, 0.5)), below=0.2)
    assert (diverged.state, diverged.why) == ("no signal", "loss is not finite any more")
    assert "too few evaluations" in em.forecast(log(0.5)[:0], below=0.1).why
