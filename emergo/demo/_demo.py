"""`emergo demo`: flows, training, and a law with intervals at laptop scale, on one page."""

import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from .. import __version__, theory
from ..core.cache import keep_programs
from ..core.files import output_folder, staged
from ..core.json import to_jsonable
from ..measure import Law, emergence, fit_law, law_json
from ..papers import toy_probe, train_toy
from ..study import Watcher
from ..tasks import SingleLocation
from ._threads import Tell, in_two_threads
from ._transformer import Watched, watch_transformer

HERE = Path(__file__).parent


class DemoSettings(NamedTuple):
    """Sizes that take two CPU cores well under a minute."""

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
    """The results on the page."""

    settings: DemoSettings
    # One row per evaluation: length, dim, burst, seed, step, loss, attention, alignment.
    curves: pd.DataFrame
    flow: pd.DataFrame  # trajectory of the reduced flow in the middle cell
    runs: pd.DataFrame  # one row per run: its plateau, and the plateaus of the flows
    law: Law
    flow_law: Law
    repetition: pd.DataFrame  # plateau of the reduced flow in the middle cell, by repeat
    transformer: Watched

    def at_middle(self, table: pd.DataFrame) -> pd.DataFrame:
        """Select the rows with the middle length and dim."""
        length, dim = self.settings.middle
        return table[(table["length"] == length) & (table["dim"] == dim)]


def compute_demo(settings: DemoSettings, show: Watcher) -> Demo:
    """Integrate the flows, train toy models and a Transformer, and fit laws to the plateaus."""
    tasks = [SingleLocation(T, d) for T in settings.lengths for d in settings.dims]
    tasks += [SingleLocation(*settings.middle, burst=b) for b in settings.bursts]
    cell = theory.cells(*(np.array([getattr(t, n) for t in tasks]) for n in theory.Cell._fields))
    jobs: dict[str, Callable[[Tell], Any]] = {
        "a Transformer": watch_transformer,
        "flows": partial(_flows, cell, settings),
    }
    # Start with the largest task, so that both threads are busy until the end.
    largest_first = sorted(tasks, key=lambda task: -task.length * task.dim)
    jobs |= {_words(task): partial(_train, task, settings) for task in largest_first}
    done = in_two_threads(jobs, lambda share, names: show("training and integrating", share, names))
    reduced, exact, flow, repetition = done["flows"]
    curves, rows = zip(*(run for task in tasks for run in done[_words(task)]), strict=True)
    runs = pd.DataFrame(rows).assign(
        reduced=np.repeat(reduced, settings.seeds), exact=np.repeat(exact, settings.seeds)
    )
    show("fitting the law", 0.0)
    law = fit_law(runs[runs["burst"] == 1], x=["length", "dim"])
    flow_cells = pd.DataFrame({"length": cell.length, "dim": cell.dim, "plateau": reduced})
    flow_law = fit_law(flow_cells[cell.burst == 1], x=["length", "dim"])
    show("fitting the law", 1.0)
    table = pd.concat(curves, ignore_index=True)
    return Demo(settings, table, flow, runs, law, flow_law, repetition, done["a Transformer"])


def _flows(
    cell: theory.Cell, settings: DemoSettings, tell: Tell
) -> tuple[np.ndarray, np.ndarray, pd.DataFrame, pd.DataFrame]:
    """Integrate the flows.

    **Returns:** plateaus of the reduced and the exact flow, the trajectory of the middle cell, and
    its plateau as a function of cross-sample repetition.
    """
    middle = settings.middle
    reduced = theory.plateau(cell, "reduced").time
    tell(0.25)
    exact = theory.plateau(cell, "exact").time
    tell(0.5)
    repeats = np.linspace(0, 0.5, 26)
    across = theory.plateau(theory.cells(*middle, repeat=repeats)).time
    tell(0.75)
    until = settings.points * _every(SingleLocation(*middle), settings)  # as long as the runs
    path = theory.trajectory(theory.cells(*middle), np.linspace(0, until, 360))
    flow = pd.DataFrame({"time": path.time, "loss": path.test_loss})
    return reduced, exact, flow, pd.DataFrame({"repeat": repeats, "plateau": across})


def _words(task: SingleLocation) -> str:
    burst = f", burst {task.burst}" if task.burst > 1 else ""
    return f"length {task.length}, dim {task.dim}{burst}"


def _sizes(task: SingleLocation) -> dict[str, int]:
    return {"length": task.length, "dim": task.dim, "burst": task.burst}


def _every(task: SingleLocation, settings: DemoSettings) -> int:
    """Return the steps between evaluations; a run takes 2.5 times the predicted plateau."""
    expected = float(theory.predicted_plateau(theory.cells(**_sizes(task)), "exact")) + task.dim
    return max(1, round(2.5 * expected / settings.points))


def _train(
    task: SingleLocation, settings: DemoSettings, tell: Tell
) -> list[tuple[pd.DataFrame, dict[str, Any]]]:
    """Train all seeds of one task, and return the curve and the measured plateau of each."""
    sizes = _sizes(task)
    every = _every(task, settings)
    steps = every * settings.points
    options = {"seeds": settings.seeds, "steps": steps, "every": every, "batch": settings.batch}
    curves = train_toy(
        task, toy_probe(task.burst), **options, progress=lambda step: tell(step / steps)
    )
    runs = []
    for seed in range(settings.seeds):
        values = {name: v[seed] for name, v in curves.values.items()}
        plateau = emergence(curves.step, values["loss"], theory.THRESHOLD * values["loss"][0])
        row = sizes | {
            "seed": seed,
            "plateau": plateau.time,
            "low": plateau.low,
            "high": plateau.high,
            "censored": plateau.censored,
            "state": plateau.state,
        }
        runs.append((pd.DataFrame(sizes | {"seed": seed, "step": curves.step} | values), row))
    return runs


def _page(demo: Demo, footer: str) -> str:
    """Return the page as HTML: the template demo.html with numbers and data filled in."""
    import vl_convert  # draws the charts; an import that only the page needs

    length, dim = demo.settings.middle
    middle = demo.at_middle(demo.runs)
    plateaus = middle.groupby("burst")[["plateau", "reduced", "exact"]].mean()
    gains = plateaus.iloc[0] / plateaus.iloc[-1]
    seeds = middle[middle["burst"] == 1]
    repeats = demo.repetition["plateau"]
    tables = {name: table.to_dict("records") for name, table in _chart_tables(demo).items()}
    files = {
        name: (HERE / name).read_text("utf-8") for name in ("demo.html", "page.css", "page.js")
    }
    return Template(files["demo.html"]).substitute(
        style=files["page.css"],
        show_charts=files["page.js"],
        bundle=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        tables=_script_json(tables),
        level=theory.THRESHOLD * 0.5,
        dims=list(demo.settings.dims),
        bursts=list(plateaus.index),
        runs=len(demo.runs),
        censored=demo.runs["censored"].sum(),
        steps=f"{seeds['plateau'].mean():.0f}",
        seeds=len(seeds),
        length=length,
        dim=dim,
        burst=plateaus.index[-1],
        speedup=f"{gains['plateau']:.1f}",
        reduced_gain=f"{gains['reduced']:.1f}",
        exact_gain=f"{gains['exact']:.1f}",
        repeat=f"{demo.repetition['repeat'][repeats.argmin()]:.2f}",
        repeat_gain=f"{repeats[0] / repeats.min():.1f}",
        footer=footer,
        watched=_script_json(demo.transformer.data()),
        transformer_steps=f"{demo.transformer.plateau:.0f}",
        transformer_share=f"{100 * demo.transformer.share[0]:.0f}",
        transformer_end=f"{100 * demo.transformer.share[-1]:.0f}",
        **_law_words(demo.law, "law"),
        **_law_words(demo.flow_law, "flow"),
    )


def _script_json(value: Any) -> str:
    """Encode data for a script element, such that no text in it can end the element."""
    return json.dumps(to_jsonable(value), allow_nan=False).replace("<", "\\u003c")


def _law_words(law: Law, prefix: str) -> dict[str, Any]:
    """Return the numbers of a law by their names in the template."""
    words: dict[str, Any] = {"r2": f"{law.r2:.3f}", "runs": law.runs, "censored": law.censored}
    words["kind"] = law.ci_kind
    for name, value in {"C": law.C, **law.exponents}.items():
        low, high = law.ci95[name]
        words[name] = f"{value:.2f}"
        words[f"{name}_interval"] = f"[{low:.2f}, {high:.2f}]"
    return {f"{prefix}_{name}": word for name, word in words.items()}


def _chart_tables(demo: Demo) -> dict[str, pd.DataFrame]:
    """Return the data of the charts, by their names in the template."""
    curves = demo.at_middle(demo.curves[demo.curves["burst"] == 1])
    runs = demo.runs[demo.runs["state"] != "failed"]
    shares = {
        "weights: what to do": curves["alignment"] / np.sqrt(demo.settings.middle[1]),
        "attention: where to look": curves["attention"],
    }
    dims = np.geomspace(min(demo.settings.dims), max(demo.settings.dims), 20)
    lengths, dims = np.meshgrid(demo.settings.lengths, dims, indexing="ij")
    law = pd.DataFrame({"length": lengths.ravel(), "dim": dims.ravel()})
    flows = demo.at_middle(runs).groupby("burst", as_index=False)[["reduced", "exact"]].first()
    flows = flows.rename(columns={"reduced": "the paper's reduced flow", "exact": "the exact flow"})
    return {
        "curves": curves[["step", "loss", "seed"]].assign(**shares),
        "flow": demo.flow.rename(columns={"time": "step"}),
        "law": law.assign(plateau=demo.law.predict(law)),
        "runs": runs[runs["burst"] == 1],
        "middle": demo.at_middle(runs),
        "flows": flows.melt("burst", var_name="what", value_name="plateau"),
    }


def run_demo(
    out: Path | str, show: Watcher, settings: DemoSettings | None = None
) -> dict[str, Any]:
    """Run the demo and write `report.html`.

    **Arguments:**

    - `out`: the folder for the page.
    - `show`: receives progress.

    **Returns:** plain data: the laws with their intervals, the number of runs, and the file.
    """
    folder = output_folder(out)
    start = time.monotonic()
    keep_programs()
    demo = compute_demo(settings or DemoSettings(), show)
    trained = f"{len(demo.runs)} runs trained and measured in {time.monotonic() - start:.0f} s"
    on = f"JAX {jax.__version__} on {jax.devices()[0].platform} ({platform.machine()})"
    text = _page(demo, f"emergo {__version__}; {on}; {trained}. Made by <code>emergo demo</code>.")
    with staged(folder) as stage:
        (stage / "report.html").write_text(text, encoding="utf-8")
    report = {
        "law": law_json(demo.law),
        "flow_law": law_json(demo.flow_law),
        "runs": len(demo.runs),
        "censored": int(demo.runs["censored"].sum()),
        "files": [str(folder / "report.html")],
        "transformer": {
            "plateau": demo.transformer.plateau,
            "attention": demo.transformer.share[-1],
        },
        "seconds": round(time.monotonic() - start, 2),
    }
    return to_jsonable(report)
