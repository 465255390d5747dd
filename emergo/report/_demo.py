"""`emergo demo`: the whole idea at laptop scale, from the flows to a law with intervals, on one page."""

import dataclasses
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from .. import __version__, theory
from .._files import output_folder
from ..engine import train_toy
from ..measure import Law, emergence, fit_law
from ..papers import law_json, plain, toy_probe
from ..tasks import SingleLocation
from ._demo_page import demo_page


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


Advance = Callable[[str, int, int], None]
"""Called with the stage, the steps done in it and the steps it has."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """All that the page shows."""

    settings: DemoSettings
    curves: pd.DataFrame
    """One row a run and evaluation: length, dim, burst, seed, step, loss, attention, alignment."""
    flow: pd.DataFrame
    """The reduced flow of the middle cell."""
    runs: pd.DataFrame
    """One row a run: its plateau and the plateaus of the flows."""
    law: Law
    flow_law: Law
    repetition: pd.DataFrame
    """Plateaus of the flows against burst and repeat."""

    @property
    def middle(self) -> tuple[int, int]:
        s = self.settings
        return s.lengths[len(s.lengths) // 2], s.dims[len(s.dims) // 2]


def compute_demo(settings: DemoSettings, advance: Advance = lambda stage, done, of: None) -> Demo:
    """Integrates the flows, trains the toy models, measures their plateaus and fits the law."""
    middle = settings.lengths[len(settings.lengths) // 2], settings.dims[len(settings.dims) // 2]
    tasks = [SingleLocation(T, d) for T in settings.lengths for d in settings.dims]
    tasks += [SingleLocation(*middle, burst=b) for b in settings.bursts]
    cell = theory.cells(*(np.array([getattr(t, n) for t in tasks]) for n in ("length", "dim", "burst", "repeat")))
    advance("integrating the flows", 0, 3)
    reduced = theory.plateau(cell, "reduced").time
    advance("integrating the flows", 1, 3)
    exact = theory.plateau(cell, "exact").time
    advance("integrating the flows", 2, 3)
    end = 2.0 * float(reduced[tasks.index(SingleLocation(*middle))])
    path = theory.trajectory(theory.cells(*middle), np.linspace(0, end, 300))
    flow = pd.DataFrame(
        {"time": path.time, "loss": path.test_loss, "attention": path.attention, "alignment": path.alignment}
    )
    advance("integrating the flows", 3, 3)

    curves, rows = [], []
    for task, slow, fast in zip(tasks, exact, reduced, strict=True):
        every = max(1, round(2.5 * slow / settings.points))
        steps = every * settings.points
        stage = f"training length {task.length}, dim {task.dim}, burst {task.burst}"
        seen = train_toy(
            task,
            toy_probe(task.burst),
            seeds=settings.seeds,
            steps=steps,
            every=every,
            batch=settings.batch,
            progress=lambda done, stage=stage, steps=steps: advance(stage, done, steps),
        )
        sizes = {"length": task.length, "dim": task.dim, "burst": task.burst}
        for seed in range(settings.seeds):
            values = {name: v[seed] for name, v in seen.values.items()}
            curves.append(pd.DataFrame(sizes | {"seed": seed, "step": seen.step} | values))
            found = emergence(seen.step, values["loss"], theory.THRESHOLD * values["loss"][0])
            measured = {
                "plateau": found.time,
                "low": found.low,
                "high": found.high,
                "censored": found.censored,
                "state": found.state,
            }
            rows.append(sizes | {"seed": seed} | measured | {"reduced": fast, "exact": slow})
    runs = pd.DataFrame(rows)
    advance("fitting the law", 0, 1)
    law = fit_law(runs[runs["burst"] == 1], x=["length", "dim"])
    flow_law = fit_law(
        pd.DataFrame({"length": cell.length, "dim": cell.dim, "plateau": reduced})[: -len(settings.bursts)],
        x=["length", "dim"],
    )

    repeats = np.linspace(0, 0.5, 26)
    across = theory.plateau(theory.cells(*middle, repeat=repeats)).time
    repetition = pd.DataFrame({"length": middle[0], "dim": middle[1], "repeat": repeats, "plateau": across})
    advance("fitting the law", 1, 1)
    return Demo(settings, pd.concat(curves, ignore_index=True), flow, runs, law, flow_law, repetition)


def run_demo(
    out: Path | str, settings: DemoSettings | None = None, advance: Advance = lambda stage, done, of: None
) -> dict[str, Any]:
    """Runs the demo and writes `report.html` into `out`.

    **Returns:**

    What was found: the law with its intervals, and where the page is.
    """
    folder = output_folder(out)
    start = time.monotonic()
    demo = compute_demo(settings or DemoSettings(), advance)
    seconds = time.monotonic() - start
    path = folder / "report.html"
    device = jax.devices()[0]
    footer = (
        f"emergo {__version__}; JAX {jax.__version__} on {device.platform} ({platform.machine()}); {len(demo.runs)} runs "
        f"trained and measured in {seconds:.0f} s. Made by <code>emergo demo</code>."
    )
    demo_page(demo).write(path, footer)
    return plain(
        {
            "law": law_json(demo.law),
            "flow_law": law_json(demo.flow_law),
            "runs": len(demo.runs),
            "censored": int(demo.runs["censored"].sum()),
            "files": [str(path)],
            "seconds": round(time.monotonic() - start, 2),
        }
    )
