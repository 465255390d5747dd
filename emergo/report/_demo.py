"""`emergo demo`: the whole idea at laptop scale, from the flows to a law with intervals, on one page."""

import platform
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from .. import __version__, theory
from .._files import output_folder, staged
from .._json import to_jsonable
from .._terminal import Show
from ..engine import train_toy
from ..measure import Law, emergence, fit_law, law_json
from ..papers._plateaus import toy_probe
from ..tasks import SingleLocation


class DemoSettings(NamedTuple):
    """Sizes that two CPU cores finish in well under a minute."""

    lengths: tuple[int, ...] = (32, 64, 128)
    dims: tuple[int, ...] = (16, 64)
    bursts: tuple[int, ...] = (4, 16)  # extra cells at the middle length and dim
    seeds: int = 8
    batch: int = 32
    points: int = 150

    @property
    def middle(self) -> tuple[int, int]:
        return self.lengths[len(self.lengths) // 2], self.dims[len(self.dims) // 2]


class Demo(NamedTuple):
    """All that the page shows."""

    settings: DemoSettings
    curves: pd.DataFrame  # one row per evaluation of a run: length, dim, burst, seed, step, loss, attention, alignment
    flow: pd.DataFrame  # the reduced flow of the middle cell
    runs: pd.DataFrame  # one row per run: its plateau and the plateaus of the flows
    law: Law
    flow_law: Law
    repetition: pd.DataFrame  # plateau of the reduced flow at the middle cell against repeat

    def at_middle(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows with the middle length and dim."""
        length, dim = self.settings.middle
        return table[(table["length"] == length) & (table["dim"] == dim)]


def compute_demo(settings: DemoSettings, show: Show) -> Demo:
    """Integrates the flows, trains the toy models, measures their plateaus and fits the law."""
    tasks = [SingleLocation(T, d) for T in settings.lengths for d in settings.dims]
    tasks += [SingleLocation(*settings.middle, burst=b) for b in settings.bursts]
    cell = theory.cells(*(np.array([getattr(t, n) for t in tasks]) for n in theory.Cell._fields))
    # Most of both is compilation, on one core each: the flows are integrated beside the training.
    with ThreadPoolExecutor(1) as beside:
        flows = beside.submit(_flows, cell, settings.middle)
        trained = []
        for task in tasks:
            show("integrating the flows", float(flows.done()))
            trained += _train(task, settings, show)
        reduced, exact, flow, repetition = flows.result()
    show("integrating the flows", 1.0)
    curves, rows = zip(*trained, strict=True)
    runs = pd.DataFrame(rows).assign(reduced=np.repeat(reduced, settings.seeds), exact=np.repeat(exact, settings.seeds))
    show("fitting the law", 0.0)
    law = fit_law(runs[runs["burst"] == 1], x=["length", "dim"])
    flow_cells = pd.DataFrame({"length": cell.length, "dim": cell.dim, "plateau": reduced})[cell.burst == 1]
    flow_law = fit_law(flow_cells, x=["length", "dim"])
    show("fitting the law", 1.0)
    return Demo(settings, pd.concat(curves, ignore_index=True), flow, runs, law, flow_law, repetition)


def _flows(cell: theory.Cell, middle: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, pd.DataFrame, pd.DataFrame]:
    """Plateaus of both flows, the path of the middle cell, and plateaus of that cell against cross-sample repetition."""
    reduced, exact = theory.plateau(cell, "reduced").time, theory.plateau(cell, "exact").time
    repeats = np.linspace(0, 0.5, 26)
    across = theory.plateau(theory.cells(*middle, repeat=repeats)).time
    path = theory.trajectory(theory.cells(*middle), np.linspace(0, 2 * across[0], 300))
    flow = pd.DataFrame({"time": path.time, "loss": path.test_loss})
    return reduced, exact, flow, pd.DataFrame({"repeat": repeats, "plateau": across})


def _train(task: SingleLocation, settings: DemoSettings, show: Show) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The curve and the measured plateau of every seed of one task."""
    sizes = {name: getattr(task, name) for name in ("length", "dim", "burst")}
    stage = f"training {', '.join(f'{name} {size}' for name, size in sizes.items())}"
    expected = float(theory.predicted_plateau(theory.cells(**sizes), "exact")) + task.dim
    every = max(1, round(2.5 * expected / settings.points))
    steps = every * settings.points
    options = {"seeds": settings.seeds, "steps": steps, "every": every, "batch": settings.batch}
    curves = train_toy(task, toy_probe(task.burst), **options, progress=lambda step: show(stage, step / steps))
    for seed in range(settings.seeds):
        values = {name: v[seed] for name, v in curves.values.items()}
        plateau = emergence(curves.step, values["loss"], theory.THRESHOLD * values["loss"][0])
        measured = {"plateau": plateau.time, "low": plateau.low, "high": plateau.high}
        row = sizes | {"seed": seed} | measured | {"censored": plateau.state == "censored", "state": plateau.state}
        yield pd.DataFrame(sizes | {"seed": seed, "step": curves.step} | values), row


def run_demo(out: Path | str, show: Show, settings: DemoSettings | None = None) -> dict[str, Any]:
    """Runs the demo, writes `report.html` into `out` and returns the law with its intervals, and where the page is."""
    folder, start = output_folder(out), time.monotonic()
    demo = compute_demo(settings or DemoSettings(), show)
    trained = f"{len(demo.runs)} runs trained and measured in {time.monotonic() - start:.0f} s"
    on = f"JAX {jax.__version__} on {jax.devices()[0].platform} ({platform.machine()})"
    from ._demo_page import demo_page  # vl-convert is needed for the page alone

    page = demo_page(demo, f"emergo {__version__}; {on}; {trained}. Made by <code>emergo demo</code>.")
    with staged(folder) as stage:
        (stage / "report.html").write_text(page, encoding="utf-8")
    report = {"law": law_json(demo.law), "flow_law": law_json(demo.flow_law), "runs": len(demo.runs)}
    report |= {"censored": int(demo.runs["censored"].sum()), "files": [str(folder / "report.html")]}
    return to_jsonable(report | {"seconds": round(time.monotonic() - start, 2)})
