"""What a figure is: studies with presets, its laws and checks beside the published numbers, and a plot."""

import dataclasses
import functools
import io
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
from .._errors import InputError, unknown
from .._files import output_folder, staged
from .._json import to_jsonable
from .._style import save, save_animation, style
from ..engine import Run
from ..measure import Agreement, Law, Published, compare, law_json
from ..studies import Study, read_records
from ._source import Report, RunSource, deadline_in, distinct, silent

Preset = Literal["paper", "laptop", "smoke"]
LONG = 600
"""Seconds of training on two CPU cores above which a preset is not started without being asked for."""


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
        """The check as plain data."""
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


Studies = Mapping[str, Study]
"""The parts of a figure by name, the most valuable first."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that can be made.

    **Arguments:**

    - `title`: what it shows, in one line.
    - `presets`: the settings of each preset.
    - `make`: the figure from its settings and a source of runs.
    - `seconds`: what each preset takes on two CPU cores, compilation included; for those that nobody would train there, an
      estimate.
    - `caveat`: how a preset differs from the paper's setting; no verdict is given on its laws and checks.
    - `studies`: the studies that the figure is made of, where it trains any.
    - `followup`: studies that follow from the results of others, as far as these are there.
    - `curves`: whether it draws curves of its runs, so that outcomes alone will not do.
    """

    id: str
    title: str
    presets: Mapping[Preset, Any]
    make: Callable[[Any, RunSource], Outcome]
    seconds: Mapping[Preset, float]
    caveat: Mapping[Preset, str] = dataclasses.field(default_factory=dict)
    studies: Callable[[Any], Studies] | None = None
    followup: Callable[[Any, RunSource], Studies] | None = None
    curves: bool = False

    def wanted(self, preset: Preset, source: RunSource) -> dict[str, Study]:
        """All studies that are known to be needed."""
        settings = self.presets[preset]
        first = dict(self.studies(settings)) if self.studies else {}
        if self.followup is None or source.missing(distinct(first), self.curves):
            return first
        return first | dict(self.followup(settings, source))

    def runs(self, preset: Preset = "paper") -> list[Run]:
        """The runs of the studies that do not follow from others."""
        return distinct(self.studies(self.presets[preset])) if self.studies else []


@dataclasses.dataclass(frozen=True)
class MadeFigure:
    """A figure in memory: `plot` is a matplotlib figure, `laws` and `checks` are plain data, `tables` are data frames.

    ```python
    >>> figure = em.figure("zucchet2025/fig3")
    >>> figure.laws[0]["formula"], len(figure.plot.axes)
    ('plateau = 0.886 dim^1.27 length^0.78 burst^-0.78', 3)

    ```
    """

    figure: Figure
    preset: Preset
    outcome: Outcome
    report: Mapping[str, Any]

    @property
    def plot(self) -> Plot:
        return self.outcome.plot

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        return self.outcome.tables

    @property
    def laws(self) -> list[dict[str, Any]]:
        """Every law as plain data: formula, exponents with intervals, the published ones beside them."""
        return self.report["laws"]

    @property
    def checks(self) -> list[dict[str, Any]]:
        """Every check as plain data: what was measured, and what is published or expected."""
        return self.report["checks"]

    def __repr__(self) -> str:
        lines = [f"{self.figure.id} ({self.preset}): {self.figure.title}"]
        lines += [f"  {law['formula']}   published: {(law['published'] or {}).get('formula', '-')}" for law in self.laws]
        verdicts = {True: "holds", False: "does not hold", None: "no verdict"}
        return "\n".join([*lines, *(f"  {check['name']}: {verdicts[check['holds']]}" for check in self.checks)])

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        with style():
            self.plot.savefig(image, format="png", dpi=150)
        return image.getvalue()

    def write(self, out: Path | str, begun: float | None = None) -> dict[str, Any]:
        """Writes `<id>.svg`, `<id>.png`, for some `<id>.gif`, `<id>.<table>.parquet` and, last, `<id>.json` under `out`.

        **Returns:**

        The content of the JSON file, with `files` as paths that start with `out` (in the file itself they are names beside it).
        """
        folder, name = output_folder(Path(out) / Path(self.figure.id).parent), Path(self.figure.id).name
        with style(), staged(folder) as stage:
            save(self.plot, stage / name)
            moving = self.outcome.animation
            if moving is not None:
                save_animation(moving.plot, moving.frames, moving.draw, stage / f"{name}.gif")
            for table_name, table in self.tables.items():
                table.to_parquet(stage / f"{name}.{table_name}.parquet", index=False)
            files = [*sorted(f.name for f in stage.iterdir()), f"{name}.json"]
            seconds = round(time.monotonic() - begun, 2) if begun is not None else None
            report = dict(self.report) | {"files": files, "seconds": seconds}
            (stage / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        return report | {"files": [str(folder / f) for f in files]}


def find_preset(preset: str) -> Preset:
    """The preset of that name, or an `InputError` with the nearest names."""
    chosen = next((p for p in get_args(Preset) if p == preset), None)
    if chosen is None:
        raise unknown("preset", preset, get_args(Preset))
    return chosen


def source_for(
    figure: Figure,
    out: Path | str | None = None,
    report: Report = silent,
    fresh: bool = False,
    partial: bool = False,
    seconds: float | None = None,
) -> RunSource:
    """Where a figure gets its runs: unless `fresh`, from the records that come with the package; the rest is kept in `out`."""
    folder = None if out is None else Path(out)
    return RunSource(figure.id, report, folder, None if fresh else read_records(), partial, deadline_in(seconds))


def seconds_needed(figure: Figure, preset: str, source: RunSource) -> float:
    """About how long making a figure takes on two CPU cores, given the runs that are already there."""
    chosen = find_preset(preset)
    if figure.studies is None:
        return figure.seconds[chosen]
    runs = distinct(figure.wanted(chosen, source))
    return figure.seconds[chosen] * len(source.missing(runs, figure.curves)) / len(runs)


def make_figure(figure: Figure, preset: str, source: RunSource) -> MadeFigure:
    """Makes a figure in memory."""
    chosen = find_preset(preset)
    with style():
        outcome = figure.make(figure.presets[chosen], source)
    report = describe(figure, chosen, outcome) | {"partial": _left_out(figure, chosen, source)}
    return MadeFigure(figure, chosen, outcome, report)


def run_figure(
    figure: Figure,
    preset: str,
    out: Path | str,
    report: Report = silent,
    fresh: bool = False,
    partial: bool = False,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Makes a figure and writes it, see [`emergo.papers.MadeFigure`][].

    **Arguments:**

    - `out`: the folder that files are written to; runs that have to be trained are kept there too, and not trained again.
    - `report`: called with what is being done, the share of it that is done, and words that change meanwhile.
    - `fresh`: train also what the package's records hold.
    - `partial`: train nothing: the figure shows the cells that are there with all their seeds, and `partial` in the JSON says
      how many runs those are.
    - `seconds`: how long to train for; raises [`emergo.engine.OutOfTime`][] when that is over, and goes on the next time.
    """
    begun = time.monotonic()
    output_folder(Path(out) / Path(figure.id).parent)  # before any work is done
    return make_figure(figure, preset, source_for(figure, out, report, fresh, partial, seconds)).write(out, begun)


def check_cost(figure: Figure, preset: str, source: RunSource) -> None:
    """An `InputError` for training that takes over ten minutes on a CPU."""
    needed = seconds_needed(figure, preset, source)
    if needed > LONG and jax.default_backend() == "cpu":
        raise InputError(f"the {preset} preset of {figure.id} has runs to train that take about {needed / 3600:.1f} h on a CPU")


def _left_out(figure: Figure, preset: Preset, source: RunSource) -> str | None:
    """What a partial figure is made of, in words; None for a whole one."""
    runs = distinct(figure.wanted(preset, source))
    used = len(source.whole(runs, figure.curves)) if source.partial else len(runs)
    first = "the first " if figure.followup is not None else ""
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
    caveat = figure.caveat.get(preset)
    verdict = {"agrees": None, "why": f"{preset} preset: {caveat}"} if caveat else {}
    no_verdict = verdict | {"holds": None} if caveat else {}
    return to_jsonable(
        {
            "schema": 1,
            "figure": figure.id,
            "title": figure.title,
            "preset": preset,
            "caveat": caveat,
            "laws": [describe_law(c) | verdict for c in outcome.laws],
            "checks": [c.describe() | no_verdict for c in outcome.checks],
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
    """A law as plain data, the published one beside it."""
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


@functools.cache
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
