"""What several figures share: tables of integrated plateaus and the log-log panels that show them."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .. import theory
from .._errors import InputError
from .._style import GREY, outside, shades
from ..measure import Law, emergence


def plateau_table(cell: theory.Cell, flow: theory.Flow = "reduced") -> pd.DataFrame:
    """One row per cell: its plateau under the flow, and what the two formulas say."""
    plateau = theory.plateau(cell, flow)
    return pd.DataFrame(
        {
            "length": np.asarray(cell.length).astype(int),
            "dim": np.asarray(cell.dim).astype(int),
            "burst": np.asarray(cell.burst).astype(int),
            "repeat": np.asarray(cell.repeat),
            "flow": flow,
            "plateau": plateau.time,
            "censored": plateau.censored,
            "predicted": theory.predicted_plateau(cell, flow),
            "escape_linear": theory.escape_time(cell, flow),
        }
    )


def follow(cell: theory.Cell, times: np.ndarray) -> tuple[theory.Trajectory, np.ndarray]:
    """The reduced flow at the given times, and where each of its test losses crosses the threshold on them.

    For figures that show whole curves: it saves compiling a second program for the plateau alone.
    """
    path = theory.trajectory(cell, times)
    rows = zip(path.time.reshape(-1, path.time.shape[-1]), path.test_loss.reshape(-1, path.time.shape[-1]), strict=True)
    plateaus = [emergence(time, loss, theory.THRESHOLD * loss[0]) for time, loss in rows]
    if any(plateau.state != "reached" for plateau in plateaus):
        raise InputError("the times end before the plateau does; follow the flow for longer")
    return path, np.array([plateau.time for plateau in plateaus]).reshape(np.shape(cell.length))


def curve_table(cell: theory.Cell, path: theory.Trajectory) -> pd.DataFrame:
    """A long table of trajectories: one row per cell and time."""
    count = path.time.shape[-1]
    sizes = {name: np.repeat(np.ravel(getattr(cell, name)), count) for name in cell._fields}
    return pd.DataFrame(sizes | {name: np.ravel(getattr(path, name)) for name in path._fields})


def scatter_by(axes: Axes, table: pd.DataFrame, law: Law | None, by: str, label: str, legend: bool = True) -> None:
    """Plateau against dim, one colour per value of `by`: dots as integrated, lines from the law."""
    values = sorted(table[by].unique())
    colours = shades(len(values))
    dims = np.geomspace(table["dim"].min(), table["dim"].max(), 60)
    for value, colour in zip(values, colours, strict=True):
        rows = table[table[by] == value]
        axes.plot(rows["dim"], rows["plateau"], "o", color=colour, mec="white", mew=0.5, zorder=3)
        if law is not None:
            line = pd.DataFrame({"dim": dims} | {n: rows[n].iloc[0] for n in ("length", "burst", "repeat")})
            axes.plot(dims, law.predict(line), color=colour, lw=1.2)
    axes.set(xscale="log", yscale="log", xlabel="input dimension $d$", ylabel="plateau (flow time)")
    base = 2 if table["dim"].max() / table["dim"].min() <= 64 else 10
    if base == 2:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if legend:
        entries = [(f"{v:g}", {"color": c, "marker": "o"}) for v, c in zip(values, colours, strict=True)]
        outside(axes, label, entries)


def show_law(axes: Axes, lines: list[str], x: float = 0.03, y: float = 0.97, top: bool = True) -> None:
    """A few words about a law inside a panel."""
    axes.text(x, y, "\n".join(lines), transform=axes.transAxes, va="top" if top else "bottom", fontsize=6.5, color=GREY)
