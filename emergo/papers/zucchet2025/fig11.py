"""Figure 11: learning curves of Transformers, with their attention and their value path."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import NullFormatter

from ..._style import BLUE, ORANGE, RED, WIDTH, level, outside, panel, shades
from ...engine import Result
from ...measure import emergence
from ...studies import Runs, Study, curve_frame, provenance_of, result_row
from .._figure import Check, Figure, Outcome
from .._source import RunSource, curve, distinct_results
from .._transformers import SMALL, TINY, Grid


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    seeds: int = 3
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    dim: int = 32
    """Where the length varies."""
    length: int = 256
    """Where the dim varies."""

    def studies(self) -> dict[str, Study]:
        base = self.base.replace(overtrain=0.5)
        return {"dim": self.study(base, length=[self.length]), "length": self.study(base, dim=[self.dim])}


def curve_table(results: Sequence[Result]) -> pd.DataFrame:
    """All curves, one row per evaluation."""
    frames = []
    for result in results:
        sizes = {name: getattr(result.run.config.task, name) for name in ("length", "dim", "burst", "repeat")}
        frames.append(curve_frame(result.curves).assign(**sizes, seed=result.run.seed))
    return pd.concat(frames, ignore_index=True)


def attention_of(result: Result) -> np.ndarray:
    """Attention of the last position to the relevant token: the head that has the most at the end."""
    heads = curve(result, "attention").reshape(len(curve(result, "step")), -1)
    return heads[:, int(np.argmax(heads[-1]))]


def half_times(result: Result) -> tuple[float, float]:
    """When the value path has half of its final alignment, and when attention has half of its final height."""

    def half_time(values: np.ndarray) -> float:
        return emergence(curve(result, "step"), values, float(values[-1]) / 2, "above").time

    return half_time(curve(result, "alignment")), half_time(attention_of(result))


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    everything = distinct_results(parts)
    table = pd.DataFrame([result_row(result) for result in everything])
    height, sharp, order = [], [], []
    for result in everything:
        if result.state == "reached":
            step, loss, plateau = curve(result, "step"), curve(result, "loss"), result.plateau.time
            height.append(np.interp(plateau / 4, step, loss))
            sharp.append((plateau - emergence(step, loss, 0.4).time) / plateau)
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
    """Test loss against step, one colour per value of `by`, one line per seed.

    The first loss, of the untrained readout, is several times the plateau's and gone within 50 steps; it is left out.
    """
    values = sorted({getattr(r.run.config.task, by) for r in results})
    colours = dict(zip(values, shades(len(values)), strict=True))
    for result in results:
        colour = colours[getattr(result.run.config.task, by)]
        axes.plot(curve(result, "step")[1:], curve(result, "loss")[1:], color=colour, lw=1, alpha=0.85)
    axes.set(xscale="log", xlabel="step", ylabel="test loss", ylim=(0, 0.8))
    axes.set_xlim(left=20)
    axes.xaxis.set_minor_formatter(NullFormatter())
    threshold = results[0].run.config.threshold
    if isinstance(threshold, float):
        level(axes, threshold, "threshold")
    outside(axes, label, [(f"{value:g}", {"color": colour}) for value, colour in colours.items()])


def draw(parts: Mapping[str, Runs], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.4), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    curves_by(a, parts["dim"], "dim", "$d$")
    panel(a, "a", f"T = {settings.length}")
    curves_by(b, parts["length"], "length", "$T$")
    panel(b, "b", f"d = {settings.dim}")
    shown = parts["dim"][0]
    step = curve(shown, "step")
    c.plot(step[1:], 2 * curve(shown, "loss")[1:], color=ORANGE)
    c.plot(step, attention_of(shown), color=RED)
    c.plot(step, curve(shown, "alignment"), color=BLUE)
    c.set(xlabel="step")
    panel(c, "c", f"d = {max(settings.dims)}, T = {settings.length}, one run")
    lines = (("test loss\nover 0.5", ORANGE), ("attention to\nthe relevant\ntoken", RED), ("alignment of\nvalue path", BLUE))
    outside(c, "", [(label, {"color": colour}) for label, colour in lines])
    return plot


FIGURE = Figure(
    id="zucchet2025/fig11",
    title="learning curves of Transformers, with attention and value path",
    presets={
        "paper": Settings(),
        "laptop": Settings(SMALL, dims=(8, 16), lengths=(8, 32), dim=16, length=32),
        "smoke": Settings(TINY, seeds=1, dims=(2, 4), lengths=(8,), dim=4, length=8),
    },
    make=make,
    studies=Settings.studies,
    curves=True,
    seconds={"paper": 8e4, "laptop": 53, "smoke": 8},
    caveat={
        "laptop": "width 64, batch 16, learning rate 1e-3, d ≤ 16, T ≤ 32",
        "smoke": "one layer and head of width 16, d ≤ 4, T = 8, one seed",
    },
)
