"""A figure: studies with presets, laws and checks next to the published numbers, and a plot."""

import dataclasses
import functools
import json
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import jax
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Plot

from .. import __version__
from ..core.cache import keep_programs
from ..core.errors import InputError, unknown
from ..core.files import output_folder, staged
from ..core.json import to_jsonable
from ..core.plotting import png, save, save_animation, style
from ..measure import VERDICTS, Law, Published, compare, law_json
from ..store import read_records
from ..study import Study, Watcher
from ..study.results import count_devices
from ..training import Probe, Run
from ._caveat import difference, fields, study_fields
from ._source import RunSource, distinct
from .index import find_figure

Preset = Literal["paper", "laptop", "smoke"]
LONG = 600
"""The seconds of training on two CPU cores above which a preset needs the user's consent."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A measured value that is not a law, compared with a published or an expected one.

    - `name`: the quantity that is measured.
    - `measured`: its value.
    - `published`: the number or statement of the paper, or None.
    - `holds`: whether the measured value agrees; None if its interval is too wide to decide.
    - `expected`: our expectation in words, where nothing is published.
    - `interval`: whether `measured` is a number with both ends of its interval.
    """

    name: str
    measured: Any
    published: Any
    holds: bool | np.bool_ | None
    expected: str | None = None
    interval: bool = False

    def __post_init__(self) -> None:
        if self.holds is not None:
            object.__setattr__(self, "holds", bool(self.holds))
        if isinstance(self.measured, np.generic | np.ndarray | pd.Series):
            object.__setattr__(self, "measured", self.measured.tolist())

    def describe(self) -> dict[str, Any]:
        """Return the check as plain data; `verdict` is None if nothing is published."""
        verdict = (
            None
            if self.published is None
            else VERDICTS[None if self.holds is None else bool(self.holds)]
        )
        return to_jsonable(dataclasses.asdict(self) | {"verdict": verdict})


def words(check: Mapping[str, Any]) -> str:
    """Return the verdict of a described check, or whether an expectation is met.

    A preset with a caveat gives a reason, `why`, instead of a verdict.
    """
    undecided = "undecided" if check["interval"] and "why" not in check else ""
    own = {True: "holds", False: "fails", None: undecided}
    return check["verdict"] or own[check["holds"]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fitted law with its published counterpart, if the paper has one."""

    name: str
    law: Law
    published: Published | None = None

    def describe(self) -> dict[str, Any]:
        """Return our law, the published law and the verdict as plain data."""
        published = self.published
        printed = None
        why = "nothing is published to set beside it"
        verdict: dict[str, Any] = {"level": None, "verdict": None, "why": why}
        if published and self.law.table is not None:
            verdict = compare(self.law, self.law.table, published)._asdict()
            factors = " ".join(f"{name}^{value:g}" for name, value in published.exponents.items())
            formula = f"{self.law.y} = {published.C:.3g} {factors}"
            printed = dataclasses.asdict(published) | {"formula": formula, "ci95": None}
        ours = {"name": self.name} | law_json(self.law)
        return ours | {"published": printed} | verdict


@dataclasses.dataclass(frozen=True)
class Animation:
    """An animated plot. `draw(frame)` updates the plot and returns the artists that move."""

    plot: Plot
    frames: int
    draw: Callable[[int], Sequence[Artist]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a figure's `make`.

    - `tables`: the plotted data.
    - `plot`: a matplotlib figure.
    - `laws`, `checks`: comparisons with the paper.
    - `summary`: small tables for the JSON file. A cell is a number, a word, a list with one number
      per seed, or a number with its interval as a list of three within a list.
    - `precision`: needed only if it is not the precision of the runs, or float64 without runs.
    """

    tables: Mapping[str, pd.DataFrame]
    plot: Plot
    laws: Sequence[Comparison] = ()
    checks: Sequence[Check] = ()
    summary: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    precision: str | None = None
    animation: Animation | None = None


Presets = Mapping[Preset, Any]
Seconds = Mapping[Preset, float]
Studies = Mapping[str, Study]
"""The parts of a figure by name, the most valuable first."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that can be made.

    - `id`: the paper and the number or name, e.g. `"zucchet2025/fig3"`.
    - `title`: what it shows, in one line.
    - `presets`: the settings of each preset; `laptop` defaults to the settings of `paper`.
    - `make`: makes the figure from its settings and a source of runs.
    - `seconds`: the time each preset takes on two CPU cores, compilation included; an estimate for
      presets that are too large to train there.
    - `followup`: returns the studies that depend on the results of other studies, as far as those
      results exist.
    - `curves`: whether it plots curves of its runs, so that their outcomes do not suffice.
    - `outcomes`: the parts whose outcomes suffice nevertheless, such as runs of other figures.
    - `local`: the presets whose runs depend on this computer, such as on the version of Python.
      They are neither recorded nor listed in the index.
    """

    id: str
    title: str
    presets: Presets
    make: Callable[[Any, RunSource], Outcome]
    seconds: Seconds
    followup: Callable[[Any, RunSource], Studies] | None = None
    curves: bool = False
    outcomes: Container[str] = ()
    local: Container[Preset] = ()

    def __post_init__(self) -> None:
        for name in ("presets", "seconds"):
            given = getattr(self, name)
            first = {"paper": given["paper"], "laptop": given["paper"]}
            object.__setattr__(self, name, first | given)

    def studies(self, preset: Preset = "paper") -> Studies:
        """Return the studies of a preset that do not depend on results."""
        settings = self.presets[preset]
        if isinstance(settings, Mapping):
            return settings
        return settings.studies() if hasattr(settings, "studies") else {}

    def runs(self, preset: Preset = "paper") -> list[Run]:
        """Return the runs of these studies, without repetitions."""
        return distinct(self.studies(preset))

    def caveat_of(self, preset: Preset) -> str | None:
        """Describe how a preset differs from the paper's setting; None if it does not.

        Laws and checks of a preset with a caveat get no verdict.
        """
        here = self.presets[preset]
        paper = self.presets["paper"]
        if here == paper:
            return None
        if not self.studies():
            return difference(fields(here), fields(paper))
        every = [study_fields(self.studies(name).values()) for name in (preset, "paper")]
        return difference(*every)

    def wanted(self, preset: Preset, source: RunSource) -> dict[str, Study]:
        """Return all studies that the figure is known to need, given the results that exist."""
        first = dict(self.studies(preset))
        if self.followup is None or self.missing(first, source):
            return first
        return first | dict(self.followup(self.presets[preset], source))

    def draws_curves(self, part: str) -> bool:
        """Return True if the figure plots curves of the runs of a part."""
        return self.curves and part not in self.outcomes

    def missing(self, studies: Studies, source: RunSource) -> list[Run]:
        """Return the runs of these studies that have to be trained."""
        missing = {}
        for name, study in studies.items():
            for run in source.missing(study.runs, self.draws_curves(name)):
                missing[run.identity] = run
        return list(missing.values())

    def progress(self, preset: str, source: RunSource) -> tuple[list[Run], list[Run]]:
        """Return the runs that a preset is known to need, and the runs that have to be trained."""
        wanted = self.wanted(find_preset(preset), source)
        return distinct(wanted), self.missing(wanted, source)


@dataclasses.dataclass(frozen=True)
class MadeFigure:
    """A figure in memory; `report` is the content of its JSON file."""

    figure: Figure
    preset: Preset
    outcome: Outcome
    report: Mapping[str, Any]

    @property
    def plot(self) -> Plot:
        """The matplotlib figure."""
        return self.outcome.plot

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The plotted data as data frames."""
        return self.outcome.tables

    @property
    def laws(self) -> list[dict[str, Any]]:
        """The laws as plain data: formula, exponents with intervals, the published law."""
        return self.report["laws"]

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The checks as plain data: the measured value and the published or expected one."""
        return self.report["checks"]

    def __repr__(self) -> str:
        lines = [f"{self.figure.id} ({self.preset}): {self.figure.title}"]
        for law in self.laws:
            published = (law["published"] or {}).get("formula", "-")
            lines.append(f"  {law['formula']}   published: {published}")
        lines += [f"  {check['name']}: {words(check) or 'no verdict'}" for check in self.checks]
        return "\n".join(lines)

    def _repr_png_(self) -> bytes:
        return png(self.plot)

    def write(self, out: Path | str, begun: float | None = None) -> dict[str, Any]:
        """Write `<id>.svg`, `<id>.png`, `<id>.<table>.parquet` and, last, `<id>.json` under `out`.

        Animated figures also write `<id>.gif`.

        **Arguments:**

        - `out`: the output folder.
        - `begun`: the `time.monotonic()` at which work began; stored as elapsed seconds.

        **Returns:** the content of the JSON file, with `files` as paths that start with `out`. In
        the file itself they are names relative to it.
        """
        folder = _folder_of(self.figure, out)
        name = Path(self.figure.id).name
        with style(), staged(folder) as stage:
            save(self.plot, stage / name)
            moving = self.outcome.animation
            if moving is not None:
                save_animation(moving.plot, moving.frames, moving.draw, stage / f"{name}.gif")
            for table_name, table in self.tables.items():
                table.to_parquet(stage / f"{name}.{table_name}.parquet", index=False)
            files = [*sorted(file.name for file in stage.iterdir()), f"{name}.json"]
            seconds = round(time.monotonic() - begun, 2) if begun is not None else None
            report = dict(self.report) | {"files": files, "seconds": seconds}
            (stage / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        return report | {"files": [str(folder / file) for file in files]}


def find_preset(preset: str) -> Preset:
    """Return the preset of that name; raises `InputError` with similar names."""
    if preset not in get_args(Preset):
        raise unknown("preset", preset, get_args(Preset))
    return cast(Preset, preset)


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
    """Return the source of a figure's runs: the package's records, a folder, or training.

    **Arguments:**

    - `out`: the folder that keeps trained runs, so that they are not trained again.
    - `report`: receives progress, such as the display of [`emergo.study.live_progress`][]; None
      disables reporting.
    - `fresh`: ignore the package's records.
    - `partial`: train nothing, and use the cells of which all seeds exist. `partial` in the JSON
      says how many runs these are.
    - `seconds`: the training time, after which [`emergo.training.OutOfTime`][] is raised; the next
      call continues.
    - `curves`: parts of the `paper` preset of which runs recorded without curves are trained again;
      empty: all parts. The recorded outcomes stay.
    - `probes`: further probes for the runs that are trained.
    """
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds must be positive, got {seconds!r}")
    again = [] if curves is None else distinct(_parts_of(figure, curves))
    return RunSource(
        figure.id,
        report or Watcher(),
        folder=None if out is None else Path(out),
        records=None if fresh else read_records(),
        partial=partial,
        deadline=None if seconds is None else time.monotonic() + seconds,
        with_curves=frozenset(run.identity for run in again),
        probes=tuple(probes),
    )


def _parts_of(figure: Figure, names: Sequence[str]) -> Studies:
    """Return the paper's studies of these names, by default all."""
    studies = figure.studies("paper")
    for name in names:
        if name not in studies:
            raise unknown(f"part of {figure.id}", name, list(studies))
    return {name: study for name, study in studies.items() if not names or name in names}


def seconds_needed(figure: Figure, preset: str, source: RunSource) -> float:
    """Estimate the seconds to make a figure on two CPU cores, given the runs that exist."""
    runs, missing = figure.progress(preset, source)
    return figure.seconds[find_preset(preset)] * (len(missing) / len(runs) if runs else 1)


def make_figure(figure: Figure, preset: str, source: RunSource) -> MadeFigure:
    """Make a figure in memory."""
    chosen = find_preset(preset)
    keep_programs()
    with style():
        outcome = figure.make(figure.presets[chosen], source)
    return MadeFigure(figure, chosen, outcome, describe(figure, chosen, outcome, source))


def _folder_of(figure: Figure, out: Path | str) -> Path:
    """Create the folder of a figure's files inside the output folder, and return it."""
    folder = Path(out) / Path(figure.id).parent
    if folder != Path(out) and folder.is_symlink():
        raise InputError(f"{folder}: a link, which may lead out of {out}; move it away")
    return output_folder(folder)


def run_figure(figure: Figure, preset: str, out: Path | str, **options: Any) -> dict[str, Any]:
    """Make a figure and write it; `options` are the arguments of [`emergo.papers.source_for`][]."""
    begun = time.monotonic()
    _folder_of(figure, out)  # fail before any work is done
    return make_figure(figure, preset, source_for(figure, out, **options)).write(out, begun)


def figure(id: str, preset: Preset = "paper", *, train: bool = False, **options: Any) -> MadeFigure:
    """Make a figure in memory.

    **Arguments:**

    - `id`: as in [`emergo.papers.FIGURES`][], e.g. `"zucchet2025/fig3"`.
    - `preset`: `"paper"`, `"laptop"` or `"smoke"`.
    - `train`: allow training that takes over ten minutes on a CPU.
    - `options`: `out` (a folder that keeps runs), `fresh`, `partial`, `seconds`, as in
      [`emergo.papers.source_for`][].

    ```python
    >>> em.figure("zucchet2025/fig3").laws[0]["formula"]
    'plateau = 0.886 dim^1.27 length^0.78 burst^-0.78'

    ```
    """
    chosen = find_figure(id)
    source = source_for(chosen, **options)
    if not (train or source.partial) and jax.default_backend() == "cpu":
        needed = seconds_needed(chosen, preset, source)
        if needed > LONG:
            raise InputError(
                f"the {preset} preset of {id} has runs to train that take about "
                f"{needed / 3600:.1f} h on a CPU; pass train=True to train them"
            )
    return make_figure(chosen, preset, source)


def _left_out(figure: Figure, preset: Preset, source: RunSource) -> str | None:
    """Describe how many runs a partial figure shows; None for a complete one."""
    if not source.partial:
        return None
    runs, missing = figure.progress(preset, source)
    if not missing:
        return None
    lacking = {run.config for run in missing}
    used = sum(run.config not in lacking for run in runs)
    first = "the first " if figure.followup is not None else ""
    return f"{used} of {first}{len(runs)} runs: cells that lack a seed are left out"


def describe(figure: Figure, preset: Preset, outcome: Outcome, source: RunSource) -> dict[str, Any]:
    """Return the JSON object of a figure, without its files and seconds."""
    caveat = figure.caveat_of(preset)
    no_verdict = {"verdict": None, "why": f"{preset} preset: {caveat}"} if caveat else {}
    undecided = no_verdict | {"holds": None} if caveat else {}
    results = list(source.handed_out.values())
    precisions = sorted({str(result.run.config.precision) for result in results}) or ["float64"]
    report = {
        "schema": 1,
        "figure": figure.id,
        "title": figure.title,
        "preset": preset,
        "caveat": caveat,
        "partial": _left_out(figure, preset, source),
        "laws": [
            law.describe() | {"tables": _tables_of(law, outcome.tables)} | no_verdict
            for law in outcome.laws
        ],
        "checks": [check.describe() | undecided for check in outcome.checks],
        "summary": {
            name: {"columns": list(table.columns), "rows": table.to_numpy(object).tolist()}
            for name, table in outcome.summary.items()
        },
        "provenance": {
            "version": __version__,
            "commit": commit(),
            "device": count_devices(results) or jax.devices()[0].device_kind,
            "precision": outcome.precision or " and ".join(precisions),
            "jax": jax.__version__,
        },
    }
    return to_jsonable(report)


def _tables_of(law: Comparison, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """List the tables that hold runs of this law only; the explorer fits it to them again."""
    fitted = law.law.table
    if fitted is None:
        return []
    if "identity" not in fitted:
        return [name for name, table in tables.items() if table.equals(fitted)]
    known = set(fitted["identity"])
    return [
        name
        for name, table in tables.items()
        if len(table) and "identity" in table and known.issuperset(table["identity"])
    ]


@functools.cache
def commit() -> str | None:
    """Return the commit of the checkout that the package runs from; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:  # git is not installed
        return None
