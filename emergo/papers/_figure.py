"""What a figure is: studies with presets, its laws and checks beside the published numbers, and a plot."""

import dataclasses
import functools
import json
import platform
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Plot

from .. import __version__
from .._cache import keep_programs
from .._errors import InputError, unknown
from .._files import output_folder, staged
from .._json import to_jsonable
from .._style import png, save, save_animation, style
from ..engine import Probe, Run
from ..measure import Law, Published, compare, law_json
from ..studies import Study, Watcher, provenance_of, read_records
from ._caveat import difference, fields, study_fields
from ._source import RunSource, distinct

Preset = Literal["paper", "laptop", "smoke"]


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that is not a law: a measured value and what it is held against. NumPy's and pandas' values become Python's."""

    name: str
    measured: Any
    published: Any
    """What the paper says, a number or words; None where it says nothing."""
    holds: bool | np.bool_
    expected: str | None = None
    """Where nothing is published: what we expect, in words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))
        if isinstance(self.measured, np.generic | np.ndarray | pd.Series):
            object.__setattr__(self, "measured", self.measured.tolist())

    def describe(self) -> dict[str, Any]:
        """The check as plain data."""
        return dataclasses.asdict(self) | {"agrees": None if self.published is None else self.holds}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fitted law with its published counterpart."""

    name: str
    law: Law
    published: Published | None = None

    def describe(self) -> dict[str, Any]:
        """The law as plain data, the published one beside it."""
        published, printed = self.published, None
        level, agrees, why = None, None, "nothing is published to set beside it"
        if published and self.law.table is not None:
            level, agrees, why = compare(self.law, self.law.table, published)
            parts = " ".join(f"{n}^{v:g}" for n, v in published.exponents.items())
            formula = {"source": published.source, "formula": f"{self.law.y} = {published.C:.3g} {parts}"}
            printed = formula | {"C": published.C, "exponents": published.exponents, "ci95": None, "r2": published.r2}
        beside = {"published": printed, "level": level, "agrees": agrees, "why": why}
        return {"name": self.name} | law_json(self.law) | beside


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
    summary: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    """Small tables to be read, part of the JSON. A cell is a number, a word, one number per seed (a list), or a number with its
    interval (a list of three in a list)."""
    precision: str | None = None
    """Where that is not the precision of the runs, or float64 without runs."""
    animation: Animation | None = None


Presets = Mapping[Preset, Any]
Seconds = Mapping[Preset, float]
Studies = Mapping[str, Study]
"""The parts of a figure by name, the most valuable first."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that can be made.

    - `title`: what it shows, in one line.
    - `presets`: the settings of each preset; where `laptop` is left out, it is the paper's.
    - `make`: the figure from its settings and a source of runs.
    - `seconds`: what each preset takes on two CPU cores, compilation included; for those that nobody would train there, an
      estimate.
    - `followup`: studies that follow from the results of others, as far as these are there.
    - `curves`: whether it draws curves of its runs, so that outcomes alone will not do.
    - `outcomes`: the parts of which outcomes alone will do nevertheless, such as runs of other figures.
    """

    id: str
    title: str
    presets: Presets
    make: Callable[[Any, RunSource], Outcome]
    seconds: Seconds
    followup: Callable[[Any, RunSource], Studies] | None = None
    curves: bool = False
    outcomes: Container[str] = ()

    def __post_init__(self) -> None:
        for name in ("presets", "seconds"):
            given = getattr(self, name)
            object.__setattr__(self, name, {"paper": given["paper"], "laptop": given["paper"]} | given)

    def studies(self, preset: Preset = "paper") -> Studies:
        """The studies of a preset: its settings where these are named studies, or `settings.studies()`, if there is one."""
        settings = self.presets[preset]
        if isinstance(settings, Mapping):
            return settings
        return settings.studies() if hasattr(settings, "studies") else {}

    def caveat_of(self, preset: Preset) -> str | None:
        """How a preset differs from the paper's setting, in words; no verdict is given on its laws and checks."""
        here, paper = self.presets[preset], self.presets["paper"]
        if here == paper:
            return None
        if not self.studies():
            return difference(fields(here), fields(paper))
        return difference(*(study_fields([*self.studies(each).values()]) for each in (preset, "paper")))

    def wanted(self, preset: Preset, source: RunSource) -> dict[str, Study]:
        """All studies that are known to be needed."""
        first = dict(self.studies(preset))
        if self.followup is None or self.missing(first, source):
            return first
        return first | dict(self.followup(self.presets[preset], source))

    def draws_curves(self, part: str) -> bool:
        return self.curves and part not in self.outcomes

    def missing(self, studies: Studies, source: RunSource) -> list[Run]:
        """The runs of these parts that would have to be trained."""
        whole, light = ({n: s for n, s in studies.items() if self.draws_curves(n) == drawn} for drawn in (True, False))
        lacking = {run.identity: run for run in [*source.missing(distinct(whole), True), *source.missing(distinct(light))]}
        return list(lacking.values())

    def runs(self, preset: Preset = "paper") -> list[Run]:
        """The runs of the studies that do not follow from others."""
        return distinct(self.studies(preset))


@dataclasses.dataclass(frozen=True)
class MadeFigure:
    """A figure in memory: `plot` is a matplotlib figure, `tables` are data frames; `laws` (formula, exponents with intervals,
    the published ones beside them) and `checks` (what was measured, and what is published or expected) are plain data."""

    figure: Figure
    preset: Preset
    outcome: Outcome
    report: Mapping[str, Any]
    plot: Plot
    tables: Mapping[str, pd.DataFrame]
    laws: list[dict[str, Any]]
    checks: list[dict[str, Any]]

    def __repr__(self) -> str:
        lines = [f"{self.figure.id} ({self.preset}): {self.figure.title}"]
        lines += [f"  {law['formula']}   published: {(law['published'] or {}).get('formula', '-')}" for law in self.laws]
        verdicts = {True: "holds", False: "does not hold", None: "no verdict"}
        return "\n".join([*lines, *(f"  {check['name']}: {verdicts[check['holds']]}" for check in self.checks)])

    def _repr_png_(self) -> bytes:
        return png(self.plot)

    def write(self, out: Path | str, begun: float | None = None) -> dict[str, Any]:
        """Writes `<id>.svg`, `<id>.png`, for some `<id>.gif`, `<id>.<table>.parquet` and, last, `<id>.json` under `out`.

        Returns the content of that, with `files` as paths that start with `out` (in the file itself they are names beside it).
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
    for known in get_args(Preset):
        if known == preset:
            return known
    raise unknown("preset", preset, get_args(Preset))


def source_for(
    figure: Figure,
    out: Path | str | None = None,
    report: Watcher | None = None,
    fresh: bool = False,
    partial: bool = False,
    seconds: float | None = None,
    curves: Sequence[str] | None = None,
    probes: Sequence[Probe] = (),
) -> RunSource:
    """Where a figure gets its runs.

    - `out`: the folder that keeps runs that have to be trained, so that they are not trained again.
    - `report`: is told how far it is, such as the display of [`emergo.studies.live_progress`][]; None: nobody is.
    - `fresh`: train also what the package's records hold.
    - `partial`: train nothing: the figure shows the cells that are there with all their seeds, and `partial` in the JSON says
      how many runs those are.
    - `seconds`: how long to train for; raises [`emergo.engine.OutOfTime`][] when that is over, and goes on the next time.
    - `curves`: parts of the `paper` preset whose runs are trained also where they are recorded without their curves; empty: all
      parts. Their outcomes stay those on record.
    - `probes`: what is measured of the runs that are trained, besides their own probes.
    """
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds must be positive, got {seconds!r}")
    deadline = None if seconds is None else time.monotonic() + seconds
    folder, records = None if out is None else Path(out), None if fresh else read_records()
    again = frozenset(run.identity for run in distinct(_parts_of(figure, curves))) if curves is not None else frozenset()
    return RunSource(figure.id, report or Watcher(), folder, records, partial, deadline, again, tuple(probes))


def _parts_of(figure: Figure, names: Sequence[str]) -> Studies:
    """The studies of these names, or all."""
    studies = figure.studies("paper")
    for name in names:
        if name not in studies:
            raise unknown(f"part of {figure.id}", name, list(studies))
    return {name: study for name, study in studies.items() if not names or name in names}


def seconds_needed(figure: Figure, preset: str, source: RunSource) -> float:
    """About how long making a figure takes on two CPU cores, given the runs that are already there."""
    chosen = find_preset(preset)
    wanted = figure.wanted(chosen, source)
    runs = distinct(wanted)
    return figure.seconds[chosen] * (len(figure.missing(wanted, source)) / len(runs) if runs else 1)


def make_figure(figure: Figure, preset: str, source: RunSource) -> MadeFigure:
    """Makes a figure in memory."""
    chosen = find_preset(preset)
    keep_programs()
    with style():
        outcome = figure.make(figure.presets[chosen], source)
    report: dict[str, Any] = describe(figure, chosen, outcome, source) | {"partial": _left_out(figure, chosen, source)}
    return MadeFigure(figure, chosen, outcome, report, outcome.plot, outcome.tables, report["laws"], report["checks"])


def run_figure(figure: Figure, preset: str, out: Path | str, **options: Any) -> dict[str, Any]:
    """Makes a figure and writes it; `options` are those of [`emergo.papers.source_for`][]."""
    begun = time.monotonic()
    output_folder(Path(out) / Path(figure.id).parent)  # before any work is done
    return make_figure(figure, preset, source_for(figure, out, **options)).write(out, begun)


def _left_out(figure: Figure, preset: Preset, source: RunSource) -> str | None:
    """What a partial figure is made of, in words; None for a whole one."""
    wanted = figure.wanted(preset, source)
    runs = distinct(wanted)
    lacking = {run.config for run in figure.missing(wanted, source)} if source.partial else ()
    used = sum(run.config not in lacking for run in runs)
    first = "the first " if figure.followup is not None else ""
    return f"{used} of {first}{len(runs)} runs: cells that lack a seed are left out" if used < len(runs) else None


def made_preset(figure: Figure, out: Path | str) -> str | None:
    """The preset of the figure that lies in `out`, if there is one."""
    try:
        return json.loads((Path(out) / f"{figure.id}.json").read_text())["preset"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(figure: Figure, preset: Preset, outcome: Outcome, source: RunSource) -> dict[str, Any]:
    """The JSON object of a figure, without its files and seconds."""
    caveat = figure.caveat_of(preset)
    verdict = {"agrees": None, "why": f"{preset} preset: {caveat}"} if caveat else {}
    no_verdict = verdict | {"holds": None} if caveat else {}
    report = {"schema": 1, "figure": figure.id, "title": figure.title, "preset": preset, "caveat": caveat}
    report["laws"] = [c.describe() | verdict for c in outcome.laws]
    report["checks"] = [c.describe() | no_verdict for c in outcome.checks]
    small = {name: (list(table.columns), table.to_numpy(object).tolist()) for name, table in outcome.summary.items()}
    report["summary"] = {name: {"columns": columns, "rows": rows} for name, (columns, rows) in small.items()}
    report["provenance"] = {"version": __version__, "commit": commit(), **_trained(outcome, source), "jax": jax.__version__}
    return to_jsonable(report)


def _trained(outcome: Outcome, source: RunSource) -> dict[str, str]:
    """Where the runs of a figure were trained and in which precision; of a figure without runs, where it was computed."""
    here, results = jax.devices()[0], list(source.handed_out.values())
    device = here.device_kind if here.platform != "cpu" else f"cpu ({platform.machine()})"
    precisions = sorted({str(result.run.config.precision) for result in results}) or ["float64"]
    return {
        "device": provenance_of({"all": results}) if results else device,
        "precision": outcome.precision or " and ".join(precisions),
    }


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that the package runs from, if it runs from one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
