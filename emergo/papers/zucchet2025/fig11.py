"""Figure 11: learning curves of Transformers, with their attention and their value path."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import NullFormatter

from ..._style import BLUE, ORANGE, RED, WIDTH, level, outside, panel, shades
from ...engine import Run
from ...measure import emergence
from ...studies import Result, curve_frame, grid_runs, provenance_of
from ...tasks import MarkovChain
from .._figure import Check, Figure, Outcome
from .._transformers import SMALL, TINY, Grid, distinct, run_table
from .._work import Work


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    seeds: int = 3
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    dim: int = 32
    """Where the length varies."""
    length: int = 256
    """Where the dim varies."""

    def parts(self) -> dict[str, list[Run]]:
        base = dataclasses.replace(self.base, beyond=0.5)
        return {
            "dim": grid_runs(base, self.seeds, length=(self.length,), dim=self.dims),
            "length": grid_runs(base, self.seeds, length=self.lengths, dim=(self.dim,)),
        }


def runs(settings: Settings) -> list[Run]:
    return distinct(settings.parts())


def curve_table(results: Sequence[Result]) -> pd.DataFrame:
    """All curves, a row an evaluation."""
    frames = []
    for result in results:
        task = result.run.config.task
        assert not isinstance(task, MarkovChain)
        sizes = {"length": task.length, "dim": task.inputs, "burst": task.burst, "repeat": task.repeat, "seed": result.run.seed}
        frames.append(curve_frame(result).assign(**sizes))
    return pd.concat(frames, ignore_index=True)


def attention_of(result: Result) -> np.ndarray:
    """Attention of the last position to the relevant token: the head that has the most at the end."""
    assert result.curves is not None
    flat = result.curves["attention"].reshape(len(result.curves["step"]), -1)
    return flat[:, int(np.argmax(flat[-1]))]


def half_times(result: Result) -> tuple[float, float]:
    """When the value path has half of its final alignment, and when attention has half of its final height."""
    assert result.curves is not None
    step, aligned, attention = result.curves["step"], result.curves["alignment"], attention_of(result)
    return tuple(emergence(step, curve, float(curve[-1]) / 2, "above").time for curve in (aligned, attention))  # pyright: ignore[reportReturnType]


def make(settings: Settings, work: Work) -> Outcome:
    parts = work.by_part(settings.parts(), curves=True)
    everything = list({result.run.identity: result for part in parts.values() for result in part}.values())
    table = run_table(everything)
    height, sharp, order = [], [], []
    for result in everything:
        assert result.curves is not None
        if result.emergence.state == "reached":
            height.append(np.interp(result.emergence.time / 4, result.curves["step"], result.curves["loss"]))
            begin = emergence(result.curves["step"], result.curves["loss"], 0.4).time
            sharp.append((result.emergence.time - begin) / result.emergence.time)
            aligned, attended = half_times(result)
            order.append(aligned / attended)
    checks = [
        Check(
            "test loss after a quarter of the plateau, mean over runs",
            float(np.mean(height)),
            0.5,
            bool(abs(np.mean(height) - 0.5) < 0.1),
        ),
        Check(
            "from loss 0.4 to 0.1, as a share of the plateau, mean over runs",
            float(np.mean(sharp)),
            "a sharp transition",
            bool(np.mean(sharp) < 0.5),
        ),
        Check(
            "half alignment of the value path before half attention: share of runs",
            float(np.mean(np.array(order) < 1)),
            None,
            bool(np.mean(np.array(order) < 1) > 0.5),
            "over 0.5: the feed-forward path aligns before attention moves, as in the toy model (Fig. 1b)",
        ),
    ]
    return Outcome(
        tables={"runs": table, "curves": curve_table(everything)},
        plot=draw(parts, settings),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def curves_by(axes: Axes, results: Sequence[Result], by: str, label: str) -> None:
    """Test loss against step, one colour a value of `by`, a line a seed.

    The first loss, of the untrained readout, is several times the plateau's and gone within 50 steps; it is left out.
    """
    values = sorted({getattr(r.run.config.task, by) for r in results})
    colours = dict(zip(values, shades(len(values)), strict=True))
    for result in results:
        assert result.curves is not None
        axes.plot(
            result.curves["step"][1:],
            result.curves["loss"][1:],
            color=colours[getattr(result.run.config.task, by)],
            lw=1,
            alpha=0.85,
        )
    axes.set(xscale="log", xlabel="step", ylabel="test loss", ylim=(0, 0.8))
    axes.set_xlim(left=20)
    axes.xaxis.set_minor_formatter(NullFormatter())
    level(axes, results[0].run.config.threshold, "threshold")
    outside(axes, label, [(f"{value:g}", {"color": colour}) for value, colour in colours.items()])


def draw(parts: dict[str, list[Result]], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.4), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    curves_by(a, parts["dim"], "dim", "$d$")
    panel(a, "a", f"T = {settings.length}")
    curves_by(b, parts["length"], "length", "$T$")
    panel(b, "b", f"d = {settings.dim}")
    shown = parts["dim"][0]
    assert shown.curves is not None
    step = shown.curves["step"]
    c.plot(step[1:], 2 * shown.curves["loss"][1:], color=ORANGE)
    c.plot(step, attention_of(shown), color=RED)
    c.plot(step, shown.curves["alignment"], color=BLUE)
    c.set(xlabel="step")
    panel(c, "c", f"d = {shown.run.config.task.inputs}, T = {settings.length}, one run")
    lines = (
        ("test loss\nover 0.5", ORANGE),
        ("attention to\nthe relevant\ntoken", RED),
        ("alignment of\nvalue path", BLUE),
    )
    outside(c, "", [(label, {"color": colour}) for label, colour in lines])
    return plot


FIGURE = Figure(
    id="zucchet2025/fig11",
    shows="learning curves of Transformers, with attention and value path",
    presets={
        "paper": Settings(),
        "laptop": Settings(SMALL, dims=(8, 16), lengths=(8, 32), dim=16, length=32),
        "smoke": Settings(TINY, seeds=1, dims=(2, 4), lengths=(8,), dim=4, length=8),
    },
    make=make,
    runs=runs,
    seconds={"paper": 8e4, "laptop": 53, "smoke": 15},
    shrunk={
        "laptop": "width 64, batch 16, learning rate 1e-3, d ≤ 16, T ≤ 32",
        "smoke": "width 16, d ≤ 4, T = 8, one seed",
    },
)
