"""`emergo demo`: the whole idea at laptop scale, from the flows to a law with intervals, on one page."""

import dataclasses
import platform
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from .. import __version__, theory
from .._files import output_folder
from .._json import to_jsonable
from .._terminal import Show
from ..engine import train_toy
from ..measure import Law, emergence, fit_law, law_json
from ..papers._probe import toy_probe
from ..tasks import SingleLocation


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """Sizes that two CPU cores finish in well under a minute."""

    lengths: tuple[int, ...] = (32, 64, 128)
    dims: tuple[int, ...] = (16, 64)
    bursts: tuple[int, ...] = (4, 16)
    """Extra cells at the middle length and dim."""
    seeds: int = 8
    batch: int = 32
    points: int = 150


def _silent(what: str, share: float, detail: str = "") -> None: ...


@dataclasses.dataclass(frozen=True)
class Demo:
    """All that the page shows."""

    settings: DemoSettings
    curves: pd.DataFrame
    """One row per evaluation of a run: length, dim, burst, seed, step, loss, attention, alignment."""
    flow: pd.DataFrame
    """The reduced flow of the middle cell."""
    runs: pd.DataFrame
    """One row per run: its plateau and the plateaus of the flows."""
    law: Law
    flow_law: Law
    repetition: pd.DataFrame
    """Plateau of the reduced flow at the middle cell against repeat."""

    @property
    def middle(self) -> tuple[int, int]:
        s = self.settings
        return s.lengths[len(s.lengths) // 2], s.dims[len(s.dims) // 2]


def compute_demo(settings: DemoSettings, show: Show = _silent) -> Demo:
    """Integrates the flows, trains the toy models, measures their plateaus and fits the law."""
    middle = settings.lengths[len(settings.lengths) // 2], settings.dims[len(settings.dims) // 2]
    tasks = [SingleLocation(T, d) for T in settings.lengths for d in settings.dims]
    tasks += [SingleLocation(*middle, burst=b) for b in settings.bursts]
    cell = theory.cells(*(np.array([getattr(t, n) for t in tasks]) for n in theory.Cell._fields))
    # Most of both is compilation, on one core each: the flows are integrated beside the training.
    with ThreadPoolExecutor(1) as beside:
        flows = beside.submit(_flows, cell, middle)
        curves, rows = [], []
        for task in tasks:
            show("integrating the flows", float(flows.done()))
            for curve, row in _train(task, settings, show):
                curves.append(curve)
                rows.append(row)
        reduced, exact, flow, repetition = flows.result()
    show("integrating the flows", 1.0)
    runs = pd.DataFrame(rows)
    runs["reduced"], runs["exact"] = np.repeat(reduced, settings.seeds), np.repeat(exact, settings.seeds)
    show("fitting the law", 0.0)
    law = fit_law(runs[runs["burst"] == 1], x=["length", "dim"])
    plain_cells = pd.DataFrame({"length": cell.length, "dim": cell.dim, "plateau": reduced})[cell.burst == 1]
    flow_law = fit_law(plain_cells, x=["length", "dim"])
    show("fitting the law", 1.0)
    return Demo(settings, pd.concat(curves, ignore_index=True), flow, runs, law, flow_law, repetition)


def _flows(cell: theory.Cell, middle: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, pd.DataFrame, pd.DataFrame]:
    """Plateaus of both flows, the path of the middle cell, and plateaus of that cell against cross-sample repetition."""
    reduced, exact = theory.plateau(cell, "reduced").time, theory.plateau(cell, "exact").time
    repeats = np.linspace(0, 0.5, 26)
    across = theory.plateau(theory.cells(*middle, repeat=repeats)).time
    path = theory.trajectory(theory.cells(*middle), np.linspace(0, 2 * across[0], 300))
    flow = {"time": path.time, "loss": path.test_loss, "attention": path.attention, "alignment": path.alignment}
    return reduced, exact, pd.DataFrame(flow), pd.DataFrame({"repeat": repeats, "plateau": across})


def _train(task: SingleLocation, settings: DemoSettings, show: Show) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The curve and the measured plateau of every seed of one task."""
    expected = float(theory.predicted_plateau(theory.cells(task.length, task.dim, task.burst), "exact")) + task.dim
    every = max(1, round(2.5 * expected / settings.points))
    steps = every * settings.points
    stage = f"training length {task.length}, dim {task.dim}, burst {task.burst}"
    curves = train_toy(
        task,
        toy_probe(task.burst),
        seeds=settings.seeds,
        steps=steps,
        every=every,
        batch=settings.batch,
        progress=lambda step: show(stage, step / steps),
    )
    sizes = {"length": task.length, "dim": task.dim, "burst": task.burst}
    for seed in range(settings.seeds):
        values = {name: v[seed] for name, v in curves.values.items()}
        plateau = emergence(curves.step, values["loss"], theory.THRESHOLD * values["loss"][0])
        measured = {"plateau": plateau.time, "low": plateau.low, "high": plateau.high}
        row = sizes | {"seed": seed} | measured | {"censored": plateau.state == "censored", "state": plateau.state}
        yield pd.DataFrame(sizes | {"seed": seed, "step": curves.step} | values), row


def run_demo(out: Path | str, settings: DemoSettings | None = None, show: Show = _silent) -> dict[str, Any]:
    """Runs the demo and writes `report.html` into `out`.

    **Returns:**

    The law with its intervals, and where the page is.
    """
    folder = output_folder(out)
    start = time.monotonic()
    demo = compute_demo(settings or DemoSettings(), show)
    seconds = time.monotonic() - start
    from ._demo_page import demo_page  # Altair is needed for the page alone

    path = folder / "report.html"
    device = jax.devices()[0]
    footer = (
        f"emergo {__version__}; JAX {jax.__version__} on {device.platform} ({platform.machine()}); {len(demo.runs)} runs "
        f"trained and measured in {seconds:.0f} s. Made by <code>emergo demo</code>."
    )
    demo_page(demo).write(path, footer)
    return to_jsonable(
        {
            "law": law_json(demo.law),
            "flow_law": law_json(demo.flow_law),
            "runs": len(demo.runs),
            "censored": int(demo.runs["censored"].sum()),
            "files": [str(path)],
            "seconds": round(time.monotonic() - start, 2),
        }
    )
