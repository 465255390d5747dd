"""The integrated plateau over the paper's formula and over ours, across six decades of √d·T."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import BLUE, GREY, ORANGE, WIDTH, key, panel, shades
from .._figure import Check, Figure, Outcome
from .._plateaus import plateau_table
from .._source import RunSource


@dataclasses.dataclass(frozen=True)
class Settings:
    dims: tuple[int, ...] = (4, 16, 64, 256)
    decades: tuple[float, float] = (2.0, 8.0)
    """Of √d·T."""
    per_decade: int = 4
    repetitions: tuple[tuple[int, float], ...] = ((4, 0.0), (1, 0.1), (4, 0.1))
    dim: int = 64


def make(settings: Settings, source: RunSource) -> Outcome:
    low, high = settings.decades
    size = np.logspace(low, high, round(settings.per_decade * (high - low)) + 1)

    def column(dim: int, burst: int, repeat: float, flow: theory.Flow) -> pd.DataFrame:
        lengths = np.unique(np.round(size / np.sqrt(dim)))
        return plateau_table(theory.cells(lengths[lengths > burst + 1], dim, burst, repeat), flow)

    plain = pd.concat([column(d, 1, 0.0, "reduced") for d in settings.dims], ignore_index=True)
    source("with repetition", 0.5)
    repeated = pd.concat([column(settings.dim, b, p, "exact") for b, p in settings.repetitions], ignore_index=True)
    table = pd.concat([plain, repeated], ignore_index=True)
    table["size"] = np.sqrt(table["dim"]) * table["length"]
    table["over_predicted"] = table["plateau"] / table["predicted"]
    table["over_escape_linear"] = table["plateau"] / table["escape_linear"]
    plain = table[table["flow"] == "reduced"].sort_values("size")
    largest = plain.groupby("dim").last()
    ours, theirs = largest["over_predicted"], largest["over_escape_linear"]
    # docs/theory.md: to next order the plateau exceeds the closed form by (1 - pi/4)/sqrt(pi/2) / sqrt(d) of it.
    excess = (ours - 1) * np.sqrt(ours.index.to_numpy())
    next_order = (1 - np.pi / 4) / np.sqrt(np.pi / 2)
    onset = float(plain["size"][(plain["over_predicted"] - 1).abs() > 0.1].max())
    both = table[(table["burst"] > 1) & (table["repeat"] > 0)].sort_values("size")["over_predicted"]
    small = f"dims {', '.join(map(str, settings.dims))}"
    checks = [
        Check(
            f"plateau over our formula at the largest size, {small}",
            ours.tolist(),
            None,
            bool((ours - 1).abs().max() < 0.1),
            expected="within 10% of 1",
        ),
        Check(
            "its excess over 1, times √d, at the largest dim",
            float(excess.iloc[-1]),
            None,
            bool(abs(excess.iloc[-1] / next_order - 1) < 0.1),
            expected=f"{next_order:.3f}, derived to next order, within 10%",
        ),
        Check(
            f"plateau over the paper's formula at the largest size, {small}",
            theirs.tolist(),
            None,
            bool((theirs - 1).abs().max() < 0.25),
            expected="1 if the formula gave the time; held to within 25%",
        ),
        Check(
            f"largest √d·T on the grid at which our formula is off by over 10%, {small}",
            onset,
            None,
            bool(onset < 1e4),
            expected="below 10,000",
        ),
        Check(
            "plateau over our formula with both repetitions, at the largest size",
            float(both.iloc[-1]),
            None,
            bool(abs(both.iloc[-1] - 1) < 0.05),
            expected="within 5% of 1",
        ),
    ]
    return Outcome(tables={"plateaus": table}, plot=draw(table, settings), checks=checks)


def ratios(axes: Axes, rows: pd.DataFrame, **look) -> None:
    axes.plot(rows["size"], rows["over_predicted"], "o-", ms=3, lw=1, **look)
    axes.plot(rows["size"], rows["over_escape_linear"], "s--", ms=3, lw=1, mfc="white", **look)


def draw(table: pd.DataFrame, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.9), layout="constrained")
    a, b = plot.subplots(1, 2, sharey=True)
    colours = shades(len(settings.dims))
    for dim, colour in zip(settings.dims, colours, strict=True):
        ratios(a, table[(table["flow"] == "reduced") & (table["dim"] == dim)].sort_values("size"), color=colour)
    marks = [BLUE, ORANGE, "#000000"]
    for (burst, repeat), colour in zip(settings.repetitions, marks, strict=False):
        rows = table[(table["flow"] == "exact") & (table["burst"] == burst) & (table["repeat"] == repeat)]
        ratios(b, rows.sort_values("size"), color=colour)
    for axes in (a, b):
        axes.axhline(1, color=GREY, lw=0.8)
        axes.set(xscale="log", yscale="log", xlabel=r"$\sqrt{d}\,T$")
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
        axes.minorticks_off()
        axes.set_ylim(0.08, 7)
    a.set_ylabel("integrated plateau / formula")
    panel(a, "a", "reduced flow, no repetition")
    panel(b, "b", f"exact flow with repetition, $d$ = {settings.dim}")
    key(a, [(f"$d$ = {d}", {"color": c}) for d, c in zip(settings.dims, colours, strict=True)], loc="upper right", ncols=2)
    key(
        b,
        [(f"$B$ = {n}, $p$ = {p:g}", {"color": c}) for (n, p), c in zip(settings.repetitions, marks, strict=False)],
        loc="upper right",
    )
    key(
        b,
        [
            (r"over $\sqrt{\pi/2}/\lambda$ (ours)", {"marker": "o", "ms": 3, "lw": 1}),
            ("over the arcsinh formula (A.3.2)", {"marker": "s", "ls": "--", "ms": 3, "lw": 1, "mfc": "white"}),
        ],
        loc="lower left",
    )
    return plot


FULL = Settings()
FIGURE = Figure(
    id="emergo/closed-form",
    title="integrated plateau over the paper's formula and over ours, across six decades of √d·T",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(dims=(16, 64), per_decade=1)},
    make=make,
    seconds={"paper": 10, "laptop": 10, "smoke": 9},
    caveat={"smoke": "fewer sizes"},
)
