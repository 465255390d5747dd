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
WIDTH = 250  # steps in which a falling loss falls by a factor of e


def log(loss, **columns) -> pd.DataFrame:
    return pd.DataFrame({"step": STEP, "loss": loss, **columns})


def falling(at: float = 2000.0) -> np.ndarray:
    """A loss that falls from 0.5 to 0.1 around a step."""
    return 0.5 - 0.4 / (1 + np.exp((at - STEP) / WIDTH))


def growing(size: float = 0.01) -> np.ndarray:
    """Attention that grows by 6 e-folds, most of them at the end."""
    return size * np.exp(3 * (STEP / 2000) ** 8)


def test_a_falling_metric_is_forecast():
    found = em.forecast(log(falling()), below=0.2)
    assert (found.state, found.metric, found.at) == ("forecast", "loss", 2000.0)
    truth = 2000 + WIDTH * np.log(3)
    for low, high in found.intervals.values():
        assert 2000 < low < high
    assert found.intervals[95][0] < truth < found.intervals[95][1]
    ends = [found.intervals[percent][i] for i, percent in ((0, 80), (0, 50), (1, 50), (1, 80))]
    assert sorted([*ends, found.step]) == [*ends[:2], found.step, *ends[2:]]


def test_a_sudden_fall_is_announced_without_a_step():
    sudden = 0.5 - 0.4 / (1 + np.exp((2000 - STEP) / 60))
    found = em.forecast(log(sudden), below=0.2)
    assert (found.state, found.intervals) == ("coming", {})
    assert found.why.endswith("in the first half; too early to name a step")


def test_without_a_threshold_a_drop_is_announced():
    found = em.forecast(log(falling()))
    assert (found.state, found.intervals) == ("coming", {})
    assert found.drop is not None
    assert found.drop.signal == "loss"
    assert 0.5 < found.drop.probability < 1
    assert 0 < found.drop.false_alarms < 0.02
    assert str(found) == f"a drop is coming ({found.drop.probability:.0%})"
    assert em.forecast(log(0.5)).state == "no signal"


def test_growing_attention_announces_a_drop_but_no_step():
    table = log(0.5, attention_0_0=np.full(len(STEP), 0.01), attention_0_1=growing())
    found = em.forecast(table, below=0.1)
    assert (found.state, found.intervals) == ("coming", {})
    assert found.drop is not None
    assert found.drop.signal == "attention_0_1"


def test_a_metric_that_has_not_moved_yet_is_no_signal(tmp_path):
    log(0.5, accuracy=0, attention_0_0=STEP + 1.0).to_csv(tmp_path / "log.csv", index=False)
    found = em.forecast(tmp_path / "log.csv", "accuracy", above=0.9)
    assert (found.state, found.value.max()) == ("no signal", 0.0)


def test_what_moves_in_a_twin_as_well_is_no_signal(tmp_path):
    table = log(0.5, attention_0_1=growing())
    twin = log(0.7, attention_0_3=growing())
    twin.to_csv(tmp_path / "twin.csv", index=False)
    for each in (twin, tmp_path / "twin.csv"):
        assert em.forecast(table, below=0.1, twin=each).state == "no signal"
    still = log(0.7, attention_0_3=np.full(len(STEP), 0.01))
    assert em.forecast(table, below=0.1, twin=still).state == "coming"


@pytest.mark.parametrize(
    "attention",
    [
        np.full(len(STEP), 0.01),
        0.01 * (1 + STEP / 2000),
        0.01 * (2 - np.exp(-STEP / 300)),
        growing()[::-1],
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
    found = em.forecast(log(loss, **noise), below=0.1)
    # One column in 300 random walks has a drift that counts, and of white noise fewer still.
    assert (found.state, found.drop) == ("no signal", None)


def test_a_run_that_has_emerged():
    found = em.forecast(log(falling(1000.0)), below=0.2)
    assert found.state == "emerged"
    assert found.step == pytest.approx(1000 + WIDTH * np.log(3), abs=1)
    assert "emerged at 1,275" in str(found)


def test_a_rising_metric_gets_no_step():
    table = log(0.5, accuracy=1 - falling(), error=falling())
    found = em.forecast(table, "accuracy", above=0.8)
    assert (found.state, found.intervals) == ("coming", {})
    assert "no step is named" in found.why
    assert em.forecast(table, "error", below=0.2).state == "forecast"


def test_a_recorded_run_is_forecast_before_its_loss_is_low():
    """The run emerges at step 4911. At 3000 its loss has fallen from 0.545 to 0.541."""
    curves = pd.read_parquet(
        SHIPPED / "capacity.curves.parquet", filters=[("identity", "==", "637ae792489963f0")]
    )
    table = curves.drop(columns="identity").dropna(axis=1, how="all")
    early, late = (em.forecast(table[table["step"] <= at], below=0.1) for at in (3000, 4500))
    assert early.state == "coming"
    assert early.drop is not None
    assert early.drop.signal.startswith("attention_0_")
    assert late.intervals[80][0] < 4911 < late.intervals[80][1]


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
    probed = em.forecast(log(0.5, attention_0_1=growing()), below=0.1)
    assert [axes.get_ylabel() for axes in probed.plot().axes] == ["loss", "attention_0_1"]
    for axes in (*found.plot().axes, *probed.plot().axes):
        assert axes.get_xscale() == "log"
        assert axes.get_xlim()[0] > 0
        assert min(axes.lines[0].get_xdata()) > 0  # without step 0


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


def test_unsorted_empty_and_diverged_tables_gaps_and_restarts():
    whole = em.forecast(log(falling()), below=0.2)
    shuffled = log(falling()).sample(frac=1, random_state=0)
    resumed = pd.concat([log(0.9)[30:40], log(falling())])  # repeated steps: the last count
    gaps = pd.concat(
        [log(falling()), pd.DataFrame({"step": STEP + 1, "loss": np.nan, "note": 1.0})]
    )
    for table in (shuffled, resumed, gaps):
        assert em.forecast(table, below=0.2) == whole
    empty = em.forecast(log(0.5)[:0], below=0.1)
    assert (empty.state, empty.why.partition(":")[0]) == (
        "no signal",
        "there are too few evaluations",
    )
    diverged = em.forecast(log(np.where(STEP > 1900, np.inf, 0.5)), below=0.2)
    assert (diverged.state, diverged.why) == ("no signal", "loss is not finite any more")
