"""Fixtures shared by the tests of commands."""

import math

import numpy as np
import pytest

from emergo.training import Progress, Result


@pytest.fixture
def cpu(monkeypatch):
    """Behave as on a computer without a GPU."""
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")


class Engine:
    """Stand-in for training: seed 0 reaches its threshold at step 10 * dim, seed 1 is censored, and
    seed 2 fails."""

    def __init__(self):
        self.asked = []

    def __call__(self, runs, *, on_end, progress, n_parallel, keep, **_):
        self.asked.append((runs, n_parallel, keep))
        for done, run in enumerate(runs):
            end = 10 * getattr(run.config.task, "dim", 1)
            loss = {0: [1.0, run.config.threshold], 1: [1.0, 0.9], 2: [1.0, math.nan]}[run.seed]
            maps = np.ones((2, 1, 1), np.float32)
            curves = {
                "step": np.array([0, end]),
                "loss": np.array(loss),
                "attention": maps,
                "entropy": maps,
            }
            on_end(Result.measured(run, curves, end if run.seed == 2 else None, "cpu"))
            progress(Progress(len(runs), done + 1, 0, [(run, end, loss[0])], end, 1.0, None, 10**6))


@pytest.fixture
def engine(monkeypatch):
    """Replace training by `Engine`, which records its calls."""
    fake = Engine()
    monkeypatch.setattr("emergo.study.executor.train", fake)
    return fake
