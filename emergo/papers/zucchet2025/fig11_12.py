"""Figures 11 and 12: learning curves of Transformers, without and with repetition."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import QUANTITIES, level
from ...measure import emergence
from ...study import Runs, Study
from ...study.results import result_row
from ...training import Config, Result
from .._figure import Check, Figure, Outcome, Plot, RunSource, Studies
from .._panels import curves_by, legend, panels, strongest
from .._source import curve, curve_table, distinct_results
from ..transformers import PAPER, SMALL, TINY, Grid

COLUMNS = ("length", "dim", "burst", "repeat")


def curve_studies(
    base: Config,
    dims: Sequence[int],
    lengths: Sequence[int],
    dim: int,
    length: int,
    seeds: int = 3,
    ended: int | None = None,
) -> Studies:
    """Return studies of lengths at one dim, and of dims at one length.

    **Arguments:**

    - `ended`: if given, the number of seeds of the second study, whose runs then end with the
      plateau: they are runs of Fig. 3.
    """
    grid = Grid(base.replace(overtrain=0.5), seeds, tuple(dims), tuple(lengths))
    short = grid if ended is None else dataclasses.replace(grid, base=base, seeds=ended)
    return {"length": grid.study(dim=[dim]), "dim": short.study(length=[length])}


def half_time(result: Result, name: str) -> float:
    """Return the step at which a curve has half of its final height."""
    values = strongest(result, name)
    return emergence(curve(result, "step"), values, float(values[-1]) / 2, "above").time


def make_11(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    everything = distinct_results(parts)
    rows = []
    for result in everything:
        if result.state == "reached":
            step = curve(result, "step")
            loss = curve(result, "loss")
            plateau = result.plateau.time
            height = np.interp(plateau / 4, step, loss)
            sharp = (plateau - emergence(step, loss, 0.4).time) / plateau
            first = half_time(result, "alignment") < half_time(result, "attention")
            rows.append((height, sharp, first))
    early, drop, share = np.mean(rows, 0)
    height = "test loss after a quarter of the plateau, mean over runs"
    sharp = "from loss 0.4 to 0.1, as a share of the plateau, mean over runs"
    first = "half alignment of the value path before half attention: share of runs"
    words = (
        "over 0.5: the feed-forward path aligns before attention moves, as in the toy model "
        "(Fig. 1b)"
    )
    checks = [
        Check(height, early, 0.5, abs(early - 0.5) < 0.1),
        Check(sharp, drop, "a sharp transition", drop < 0.5),
        Check(first, share, None, share > 0.5, words),
    ]
    tables = {
        "runs": pd.DataFrame([result_row(r) for r in everything]),
        "curves": curve_table(everything, COLUMNS),
    }
    return Outcome(tables, draw_11(parts), checks=checks)


def loss_curves(axes: Axes, results: Sequence[Result], by: str, label: str | None) -> None:
    """Draw test loss against step.

    The untrained readout has several times the loss of the plateau for about 50 steps, which are
    cut off.
    """
    curves_by(axes, results, by, "loss", label)
    axes.set(ylabel="test loss", ylim=(0, 0.8), xlim=(20, None))
    threshold = results[0].run.config.threshold
    if isinstance(threshold, float):
        level(axes, threshold, "threshold")


def draw_11(parts: Mapping[str, Runs]) -> Plot:
    length = parts["dim"].table["length"].iloc[0]
    dim = parts["length"].table["dim"].iloc[0]
    shown = parts["length"].where(length=length)[0]
    one = f"d = {dim}, T = {length}, one run"
    plot, (a, b, c) = panels(2.4, f"a  T = {length}", f"b  d = {dim}", f"c  {one}")
    loss_curves(a, parts["dim"], "dim", "$d$")
    loss_curves(b, parts["length"], "length", "$T$")
    curves = {
        "loss": 2 * curve(shown, "loss"),
        "attention": strongest(shown, "attention"),
        "values": curve(shown, "alignment"),
    }
    for name, values in curves.items():
        c.plot(curve(shown, "step")[1:], values[1:], color=QUANTITIES[name])
    c.set(xscale="log", xlabel="step", xlim=(20, None))
    words = ("test loss\nover 0.5", "attention to\nthe relevant\ntoken", "alignment of\nvalue path")
    legend(c, "", dict(zip(words, (QUANTITIES[name] for name in curves), strict=True)))
    return plot


FIGURE_11 = Figure(
    "zucchet2025/fig11",
    "learning curves of Transformers, with attention and value path",
    {
        "paper": curve_studies(PAPER, (16, 32, 64, 128), (64, 128, 256, 512), 32, 128, ended=5),
        "laptop": curve_studies(SMALL, (8, 16), (8, 32), dim=16, length=32),
        "smoke": curve_studies(TINY, (2, 4), (8,), dim=4, length=8, seeds=1),
    },
    make_11,
    {"paper": 8e4, "laptop": 53, "smoke": 8},
    curves=True,
)


def study(
    base: Config, seeds: int = 3, repeats: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4)
) -> Studies:
    return {"runs": Study.of(base.replace(overtrain=0.25), grid={"repeat": repeats}, seeds=seeds)}


def make_12(studies: Studies, source: RunSource) -> Outcome:
    runs = source.runs(studies, curves=True)["runs"]

    def mean(repeat: float, level: float) -> float:
        """When the test loss falls to a level, or the last step observed: mean over seeds."""
        chosen = runs.where(repeat=repeat)
        times = [emergence(curve(r, "step"), curve(r, "loss"), level).time for r in chosen]
        return float(np.mean(times))

    first = runs.table["repeat"].min()
    last = runs.table["repeat"].max()
    early = mean(last, 0.4) / mean(first, 0.4)
    late = (mean(last, 0.1) - mean(last, 0.4)) / (mean(first, 0.1) - mean(first, 0.4))
    over = f"p = {last:g} over p = {first:g}"
    name = f"steps from loss 0.4 to 0.1, {over} (the last step counts where 0.1 is not reached)"
    checks = [
        Check(f"steps to loss 0.4, {over}", early, "below 1: emergence is earlier", early < 1),
        Check(name, late, "above 1: learning after emergence is slower", late > 1),
    ]
    tables = {"runs": runs.table, "curves": curve_table(runs, COLUMNS)}
    return Outcome(tables, draw_12(runs), checks=checks)


def draw_12(runs: Runs) -> Plot:
    sizes = runs.table.iloc[0]
    plot, (top, attention, bottom, values) = panels(
        4.4,
        f"a  trained distribution, $d$ = {sizes['dim']}, $T$ = {sizes['length']}",
        "b  attention",
        "c  no repetition",
        "d  value path",
        rows=2,
    )
    # Batches are fresh, so their loss is an unbiased estimate; a running median removes its noise.
    smooth = [
        r._replace(curves={"step": curve(r, "step"), "loss": medians(curve(r, "train_loss"))})
        for r in runs
    ]
    curves_by(top, smooth, "repeat", "loss", None)
    top.set(ylabel="loss", ylim=(0, 0.8), xlim=(20, None))
    loss_curves(bottom, runs, "repeat", None)
    level(bottom, 0.4, "threshold of Fig. 3 right", "--")
    curves_by(attention, runs, "repeat", "attention", "$p$")
    attention.set(ylabel="attention to\nthe relevant token", xlim=(20, None))
    curves_by(values, runs, "repeat", "alignment", None)
    values.set(ylabel="alignment of\nthe value path", xlim=(20, None))
    return plot


def medians(values: np.ndarray) -> np.ndarray:
    """Return the running median over nine evaluations."""
    return pd.Series(values).rolling(9, center=True, min_periods=1).median().to_numpy()


FIGURE_12 = Figure(
    "zucchet2025/fig12",
    "learning curves of Transformers under cross-sample repetition",
    {
        "paper": study(PAPER.replace(task__dim=64, task__length=256, steps=20_000)),
        "laptop": study(
            SMALL.replace(task__dim=16, task__length=32, steps=1500), repeats=(0.0, 0.2, 0.4)
        ),
        "smoke": study(TINY.replace(task__dim=4, task__length=8), 1, (0.0, 0.4)),
    },
    make_12,
    {"paper": 1e5, "laptop": 54, "smoke": 8},
    curves=True,
)
