"""Finished runs as plain data, as a store takes them."""

import math
from typing import Any

import numpy as np

from emergo.core.json import digest
from emergo.store.curves import StoredRun

# State, plateau with its interval, and losses at steps 0, 25 and 50.
KINDS: dict[str, tuple[Any, ...]] = {
    "reached": ("reached", 48.0, 25.0, 50.0, [1.0, 0.5, 0.05]),
    "at once": ("reached", 0.0, None, 0.0, [0.01, 0.01, 0.01]),
    "censored": ("censored", 50.0, 50.0, None, [1.0, 0.9, 0.8]),
    "trained": ("trained", None, None, None, [1.0, 0.9, 0.8]),
    "failed": ("failed", None, None, None, [1.0, 0.9, math.nan]),
}


def content(kind: str = "reached", seed: int = 0, **provenance: str) -> dict[str, Any]:
    """Return the content of `run.json` for a run that ended in this way."""
    state, time, low, high, _ = KINDS[kind]
    described = {"semantics": 1, "config": {"task": {"type": "SingleLocation"}}, "seed": seed}
    outcome = {"state": state, "time": time, "low": low, "high": high, "steps": 50}
    outcome["failed_step"] = 41 if kind == "failed" else None
    if kind == "failed":
        outcome["reason"] = "the loss was not finite at step 41"
    return {
        "identity": digest(described),
        **described,
        "columns": {"dim": 4, "optimizer": "adamw", "threshold": 0.1},
        "outcome": outcome,
        "curves": sorted(curves()),
        "provenance": {"device": "cpu"} | provenance,
        "probes": {},
    }


def curves(kind: str = "reached", seed: int = 0) -> dict[str, np.ndarray]:
    """Return curves with one and with several values per evaluation.

    Arrays have few significant bits, so that records keep them exactly.
    """
    rng = np.random.default_rng(seed)
    return {
        "step": np.array([0, 25, 50]),
        "loss": np.array(KINDS[kind][-1], np.float32),
        "train_loss": np.array([math.nan, 0.7, 0.3], np.float32),
        "attention": rng.integers(0, 256, (3, 2, 3)).astype(np.float32) / 256,
        "alignment": rng.random(3).astype(np.float32),
        "loss_single": rng.random(3).astype(np.float32),
    }


def same_curves(one: StoredRun, expected: dict[str, np.ndarray]) -> None:
    """Assert that curves are equal bit for bit."""
    assert one.curves is not None
    assert set(one.curves) == set(expected)
    for name, values in expected.items():
        assert one.curves[name].dtype == values.dtype
        np.testing.assert_array_equal(one.curves[name], values)
