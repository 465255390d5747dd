"""Finished studies without training: plateaus follow a power law, and the loss and the attention
change where the plateau ends."""

from pathlib import Path
from typing import Any

import numpy as np

from emergo.forecasting._runs import forecast_run, note_of
from emergo.models import Transformer
from emergo.store import Store, StudyFolder
from emergo.study import Fit, Study
from emergo.study.results import write_result
from emergo.tasks import SingleLocation
from emergo.training import Optimizer, Result

HEADS = (2, 4)  # layers and heads of the attention


def made_up_study(dims=(8, 16, 32), lengths=(32, 64), seeds=3, steps=4000, name="made up") -> Study:
    model = Transformer(layers=HEADS[0], heads=HEADS[1], width=16)
    optimizer = Optimizer(learning_rate=1e-3)
    grid = {"dim": list(dims), "length": list(lengths)}
    law = Fit(["dim", "length"]) if min(len(dims), len(lengths)) > 1 else None
    return Study(
        SingleLocation(32, 8),
        model,
        optimizer,
        grid=grid,
        seeds=seeds,
        steps=steps,
        law=law,
        name=name,
        precision="fp32",
    )


def plateau_of(dim: float, length: float, noise: float = 0.0) -> float:
    """Return the plateau by a power law; `noise` is a standard normal number."""
    return 1.5 * dim**1.2 * length**0.8 * np.exp(0.1 * noise)


def finish(
    study: Study, path: Path | str, runs=None, evaluations: int = 80, fail: int | None = 0
) -> StudyFolder:
    """Write a study with finished runs (by default all); run number `fail` fails."""
    folder = StudyFolder(path)
    if not folder.exists():
        study.open(folder)
    store = Store(folder.runs)
    for number, run in enumerate(study.runs):
        if runs is None or number in runs:
            write_result(store, made_up_result(run, evaluations, failed=number == fail))
    return folder


def made_up_result(run, evaluations: int, failed: bool = False) -> Result:
    task = run.config.task
    last = run.config.steps
    rng = np.random.default_rng(run.seed + 1000 * task.dim + task.length)
    plateau = plateau_of(task.dim, task.length, rng.normal())
    steps = np.unique(np.append(0, np.geomspace(10, last, evaluations).astype(int)))
    share = 1 / (1 + (np.maximum(steps, 1) / plateau) ** 6)
    learned = share <= run.config.threshold
    end = int(np.argmax(learned)) + 1 if learned.any() else len(steps)
    late = np.linspace(1.0, 1.6, HEADS[0] * HEADS[1]).reshape(HEADS)
    attention = 1 / task.length + 0.9 / (
        1 + (plateau * late / np.maximum(steps, 1)[:, None, None]) ** 4
    )
    curves = {
        "step": steps,
        "loss": share,
        "train_loss": share * np.exp(0.05 * rng.normal(size=len(steps))),
    }
    curves |= {"attention": attention, "entropy": np.log(task.length) * (1 - attention)}
    curves = {
        name: np.asarray(values[:end], None if name == "step" else np.float32)
        for name, values in curves.items()
    }
    if failed:
        curves["loss"][-1] = np.nan
    return Result.measured(run, curves, int(curves["step"][-1]) if failed else None, "made up")


def note_on(run) -> dict[str, Any]:
    """Return a worker's note on a run at step 2000.

    Its loss falls by a factor of 100, gradually, around step 2300.
    """
    step = np.arange(0, 2001, 25)
    loss = 0.5 * np.exp(-4.6 / (1 + np.exp((2300 - step) / 250)))
    curves = {"step": step, "loss": loss, "attention": np.full((len(step), 1, 1), 0.01)}
    forecast = forecast_run(run, curves)
    assert forecast is not None
    return {"run": run.identity, **note_of(forecast)._asdict()}
