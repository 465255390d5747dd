"""What a figure is: a computation with presets, its laws and checks beside the published numbers, and a plot."""

import dataclasses
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Plot

from .. import __version__
from .._errors import unknown
from .._files import output_folder, staged
from .._json import plain
from .._style import save, save_animation, style
from ..engine import Run
from ..measure import Agreement, Law, Published, compare, law_json
from ..studies import read_records
from ._work import Progress, Work

Preset = Literal["paper", "laptop", "smoke"]


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that is not a law: a measured value and what it is held against."""

    name: str
    measured: Any
    published: Any
    """What the paper says, a number or words; None where it says nothing."""
    holds: bool
    expected: str | None = None
    """Where nothing is published: what we expect, in words."""

    def describe(self) -> dict[str, Any]:
        agrees = self.holds if self.published is not None else None
        return dataclasses.asdict(self) | {"agrees": agrees}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fitted law with its published counterpart."""

    name: str
    law: Law
    published: Published | None = None
    agreement: Agreement | None = None

    @classmethod
    def of(cls, name: str, law: Law, table: pd.DataFrame, published: Published) -> "Comparison":
        return cls(name, law, published, compare(law, table, published))


@dataclasses.dataclass(frozen=True)
class Animation:
    """A plot that changes."""

    plot: Plot
    frames: int
    draw: Callable[[int], Sequence[Artist]]
    """Makes the plot what it is in that frame, and returns what moves."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What making a figure yields."""

    tables: Mapping[str, pd.DataFrame]
    plot: Plot
    laws: Sequence[Comparison] = ()
    checks: Sequence[Check] = ()
    precision: str = "float64"
    device: str | None = None
    """Where the runs were trained, if that was not here."""
    animation: Animation | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that `emergo figure` can make."""

    id: str
    shows: str
    presets: Mapping[Preset, Any]
    """The settings of each preset."""
    make: Callable[[Any, Work], Outcome]
    seconds: Mapping[Preset, float]
    """What each preset takes on two CPU cores, compilation included; for those that nobody would train there, an estimate."""
    shrunk: Mapping[Preset, str] = dataclasses.field(default_factory=dict)
    """How a preset differs from the paper's setting; no verdict is given on its laws and checks."""
    runs: Callable[[Any], Sequence[Run]] | None = None
    """The runs that the figure is made of, where it trains any."""
    then: Callable[[Any, Work], Sequence[Run]] | None = None
    """Those that follow from the results of others, as far as these are there."""

    def wanted(self, preset: Preset, work: Work) -> list[Run]:
        """All runs that are known to be needed."""
        settings = self.presets[preset]
        first = list(self.runs(settings)) if self.runs else []
        return first + list(self.then(settings, work)) if self.then and not work.missing(first) else first


def find_preset(preset: str) -> Preset:
    """The preset of that name, or an `InputError` with the nearest names."""
    chosen = next((p for p in get_args(Preset) if p == preset), None)
    if chosen is None:
        raise unknown("preset", preset, get_args(Preset))
    return chosen


def work_for(
    out: Path | str, progress: Progress = lambda what, share: None, fresh: bool = False, partial: bool = False
) -> Work:
    """What figures in `out` work with: runs are kept in `out`/runs; unless `fresh`, this checkout's records are used."""
    return Work(progress, Path(out) / "runs", None if fresh else read_records(), partial)


def seconds_needed(figure: Figure, preset: str, work: Work) -> float:
    """About how long making a figure takes on two CPU cores, given the runs that are already there."""
    chosen = find_preset(preset)
    if figure.runs is None:
        return figure.seconds[chosen]
    runs = figure.wanted(chosen, work)
    return figure.seconds[chosen] * len(work.missing(runs)) / len(runs)


def run_figure(
    figure: Figure,
    preset: str,
    out: Path | str,
    progress: Progress = lambda what, share: None,
    fresh: bool = False,
    partial: bool = False,
) -> dict[str, Any]:
    """Makes a figure and writes it: `<id>.svg`, `<id>.png`, for some `<id>.gif`, `<id>.<table>.parquet` and, last, `<id>.json`.

    Runs that it has to train are kept under `out`/runs and not trained again. Where the checkout has records of them, those
    are used, unless `fresh` is set. With `partial` nothing is trained: the figure shows the cells that are there with all
    their seeds, and `partial` in the JSON says how many runs those are.

    **Returns:**

    The content of the JSON file, with `files` as paths that start with `out` (in the file itself they are names beside it).
    """
    chosen = find_preset(preset)
    folder = output_folder(Path(out) / Path(figure.id).parent)
    start = time.monotonic()
    with style():
        work = work_for(out, progress, fresh, partial)
        outcome = figure.make(figure.presets[chosen], work)
    report = describe(figure, chosen, outcome) | {"partial": _left_out(figure, chosen, work)}
    name = Path(figure.id).name
    with staged(folder) as stage:
        save(outcome.plot, stage / name)
        if outcome.animation is not None:
            moving = outcome.animation
            save_animation(moving.plot, moving.frames, moving.draw, stage / f"{name}.gif")
        for table_name, table in outcome.tables.items():
            table.to_parquet(stage / f"{name}.{table_name}.parquet", index=False)
        files = [*sorted(f.name for f in stage.iterdir()), f"{name}.json"]
        report = report | {"files": files, "seconds": round(time.monotonic() - start, 2)}
        (stage / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    return report | {"files": [str(folder / f) for f in files]}


def _left_out(figure: Figure, preset: Preset, work: Work) -> str | None:
    """What a partial figure is made of, in words; None for a whole one."""
    runs = figure.wanted(preset, work)
    used = len(work.whole(runs)) if work.partial else len(runs)
    first = "the first " if figure.then is not None else ""
    return f"{used} of {first}{len(runs)} runs: cells that lack a seed are left out" if used < len(runs) else None


def made_preset(figure: Figure, out: Path | str) -> str | None:
    """The preset of the figure that lies in `out`, if there is one."""
    try:
        return json.loads((Path(out) / f"{figure.id}.json").read_text())["preset"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(figure: Figure, preset: Preset, outcome: Outcome) -> dict[str, Any]:
    """The JSON object of a figure, without its files and seconds."""
    device = jax.devices()[0]
    shrunk = figure.shrunk.get(preset)
    verdict = {"agrees": None, "why": f"{preset} preset: {shrunk}"} if shrunk else {}
    unheld = verdict | {"holds": None} if shrunk else {}
    return plain(
        {
            "schema": 1,
            "figure": figure.id,
            "shows": figure.shows,
            "preset": preset,
            "shrunk": shrunk,
            "laws": [describe_law(c) | verdict for c in outcome.laws],
            "checks": [c.describe() | unheld for c in outcome.checks],
            "provenance": {
                "version": __version__,
                "commit": commit(),
                "device": outcome.device or (device.device_kind if device.platform != "cpu" else f"cpu ({platform.machine()})"),
                "precision": outcome.precision,
                "jax": jax.__version__,
            },
        }
    )


def describe_law(comparison: Comparison) -> dict[str, Any]:
    published, agreement = comparison.published, comparison.agreement
    printed = None
    if published:
        parts = " ".join(f"{n}^{v:g}" for n, v in published.exponents.items())
        printed = {
            "source": published.source,
            "formula": f"{comparison.law.y} = {published.C:.3g} {parts}",
            "C": published.C,
            "exponents": published.exponents,
            "ci95": None,
            "r2": published.r2,
        }
    return (
        {"name": comparison.name}
        | law_json(comparison.law)
        | {
            "published": printed,
            "level": agreement.level if agreement else None,
            "agrees": agreement.agrees if agreement else None,
            "why": agreement.why if agreement else "nothing is published to set beside it",
        }
    )


def commit() -> str | None:
    """The commit of the checkout that the package runs from, if it runs from one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
