"""`emergo train`."""

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from emergo.engine import History, Progress
from emergo.studies import Store

from .command import call


class Engine:
    """Stands for the engine: seed 0 reaches its threshold at step 10 * dim, seed 1 is censored, seed 2 fails."""

    def __init__(self):
        self.asked = []

    def __call__(self, runs, *, on_end, progress, width, **_):
        self.asked.append((runs, width))
        for done, run in enumerate(runs):
            end, low = 10 * run.config.task.dim, run.config.threshold
            loss = {0: [1.0, low], 1: [1.0, 0.9], 2: [1.0, math.nan]}[run.seed]
            shown = np.ones((2, run.config.model.layers, run.config.model.heads), np.float32)
            curves = {"step": np.array([0, end]), "loss": np.array(loss), "attention": shown, "entropy": shown}
            state = ("reached", "exhausted", "failed")[run.seed]
            on_end(History(run, state, end if state == "failed" else None, curves, "cpu"))
            progress(Progress(len(runs), done + 1, 0, [(run, end, loss[0])], end, 1.0, None, 10**6))


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setattr("emergo.studies._run.train", made)
    return made


def test_train_prints_a_row_a_cell_and_asking_again_costs_nothing(capsys, tmp_path, engine):
    arguments = ("train", "--dim", "4", "8", "8", "--seeds", "3", "--together", "2", "--out", str(tmp_path / "runs"))
    status, out, err = call(capsys, *arguments)
    assert (status, err) == (0, "")
    head, four, eight, last = out.splitlines()
    assert head.split() == ["length", "dim", "burst", "repeat", "rate", "runs", "plateau", "min-max", "censored", "failed"]
    # Seeds 0 and 1 have plateaus 40 and over 40, so that the median is a bound too; seed 2 has none.
    assert four.split() == ["32", "4", "1", "0", "0.0005", "3", ">40", "40->40", "1", "1"]
    assert eight.split() == ["32", "8", "1", "0", "0.0005", "3", ">80", "80->80", "1", "1"]
    assert last == f"6 runs, 0 s; kept in {tmp_path / 'runs'}"
    assert [(len(runs), width) for runs, width in engine.asked] == [(6, 2)]
    again = call(capsys, *arguments)[1].splitlines()
    assert again[:3] == [head, four, eight]
    assert again[3].startswith("6 runs (6 were there)")
    call(capsys, "train", "--dim", "8", "2", "--seeds", "2", "--out", str(tmp_path / "runs"))
    assert [run.config.task.dim for run in engine.asked[1][0]] == [2, 2]
    assert len(engine.asked) == 2


def test_train_prints_one_json_object(capsys, tmp_path, engine):
    status, out, err = call(capsys, "train", "--dim", "4", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert [(r["seed"], r["state"]) for r in found["runs"]] == [(0, "reached"), (1, "censored"), (2, "failed")]
    assert {"plateau", "plateau_low", "plateau_high", "censored", "learning_rate", "precision"} <= set(found["runs"][0])
    cell = {"length": 32, "dim": 4, "burst": 1, "repeat": 0.0, "learning_rate": 5e-4, "runs": 3}
    outcome = {"plateau": 40, "plateau_min": 40, "plateau_max": 40, "bound": True, "censored": 1, "failed": 1}
    assert found["cells"] == [cell | outcome]
    assert found["out"] == str(tmp_path)


def test_every_option_of_train_reaches_its_run(capsys, tmp_path, engine):
    task = "--length 8 --dim 2 --burst 3 --repeat 0.5 --position last --no-indicator --special basis --seeds 1"
    model = "--layers 2 --heads 2 --width 8 --mlp-factor 2 --norm pre --mask causal --activation gelu --attention biased"
    more = "--initial xavier --positions learned --no-skip --no-mlp --optimizer sgd --momentum 0.9 --learning-rate 0.01"
    rest = "--batch 4 --precision bf16 --steps 7 --threshold 0.3 --beyond 0.5"
    status, _, err = call(capsys, "train", *f"{task} {model} {more} {rest} --out {tmp_path}".split())
    assert (status, err) == (0, "")
    [run] = engine.asked[0][0]
    assert run.seed == 0
    asked = {
        "task": {"length": 8, "dim": 2, "burst": 3, "repeat": 0.5, "position": "last", "indicator": False, "special": "basis"},
        "model": {
            "layers": 2,
            "heads": 2,
            "width": 8,
            "mlp_factor": 2,
            "norm": "pre",
            "mask": "causal",
            "activation": "gelu",
            "attention": "biased",
            "initial": "xavier",
            "positions": "learned",
            "skip": False,
            "mlp": False,
        },
        "optimizer": {"method": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01},
        "batch": 4,
        "precision": "bf16",
        "steps": 7,
        "threshold": 0.3,
        "beyond": 0.5,
    }
    found = run.config.describe()
    for name, value in asked.items():
        assert (found[name] | value if isinstance(value, dict) else value) == found[name], name


@pytest.mark.slow
def test_train_trains(capsys, tmp_path):
    small = ("--length", "4", "--dim", "2", "--width", "16", "--learning-rate", "1e-2", "--seeds", "2", "--batch", "8")
    status, out, _ = call(capsys, "train", *small, "--steps", "1000", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert status == 0
    assert [run["state"] for run in found["runs"]] == ["reached", "reached"]
    assert sorted(run["identity"] for run in found["runs"]) == list(Store(tmp_path))
    assert not list((tmp_path / ".checkpoints").glob("*.npz"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_training_keeps_what_is_finished_and_says_so(tmp_path, number):
    """Or being told to end, as by a scheduler. Dim 2 is learned at once; dim 64 cannot be, with a width of 8."""
    options = "--length 4 --dim 2 64 --width 8 --learning-rate 1e-2 --seeds 1 --batch 4 --steps 1000000"
    command = [sys.executable, "-m", "emergo", "train", *options.split(), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180  # usually 10 s
    while not list((tmp_path / "runs").glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "emergo: interrupted; 1 of 2 runs are finished; the same command goes on from there"
    assert len(list(Store(tmp_path / "runs"))) == 1
    assert len(list((tmp_path / "runs" / ".checkpoints").glob("*.npz"))) == 1
