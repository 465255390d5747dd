"""Figures from a command: made here, sent to Slurm, and their runs recorded. Needs neither tyro nor Altair."""

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .._errors import InputError
from .._terminal import print_law, say, short, verdict
from ..engine import OutOfTime, Probe
from ..studies import Slurm, Store, StudyFolder, add_records, live_progress, load_plugins, merge_records
from ..studies._plan import runs_of
from ..studies._records import SHIPPED
from . import FIGURES, find_figure
from ._figure import Figure, find_preset, run_figure, source_for
from ._source import distinct
from ._together import train_figures


def make_figures(
    ids: Sequence[str],
    preset: str = "laptop",
    out: Path | str = "out",
    *,
    fresh: bool = False,
    partial: bool = False,
    seconds: float | None = None,
    curves: Sequence[str] | None = None,
    probes: Sequence[Probe] = (),
    workers: int = 1,
    on_made: Callable[[Mapping[str, Any]], None] = lambda report: None,
) -> list[dict[str, Any]]:
    """Makes figures one after another, writes them, and returns the content of each one's JSON file.

    - `seconds`: how long to train for, all figures together, the most valuable cells first. A figure that is not complete then
      is drawn from what is there (`partial`), or reported as `figure`, `preset`, `runs` and `finished`; the same call goes on.
    - `curves`: parts of the figures whose runs are trained also where they are recorded without curves; empty: all parts.
    - `probes`: what is measured of the runs that are trained, besides their own probes.
    - `partial` without `seconds`: train nothing, and draw what is there.
    - `workers`: how many processes train, if more than one: first all that the figures want, in any order; then the figures are
      made here. On a GPU they share its memory, so this process should not have used it before.
    - `on_made`: called with the report of each figure.
    """
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of at least 1, got {workers!r}")
    figures, draw_only = [find_figure(id) for id in ids], partial and seconds is None
    begun, reports, more = time.monotonic(), [], {"fresh": fresh, "curves": curves, "probes": probes}
    if workers > 1 and not draw_only:
        with _telling(figures, out), live_progress() as show:
            train_figures(figures, find_preset(preset), out, workers, seconds=seconds, show=show, say=say, **more)
    for figure in figures:
        left = None if seconds is None else max(seconds - (time.monotonic() - begun), 1e-3)
        with _telling([figure], out), live_progress() as show:
            make = functools.partial(run_figure, figure, preset, out, report=show, **more)
            try:
                if workers > 1 and seconds is not None and _lacks(figure, preset, out, fresh, curves):
                    raise OutOfTime  # the workers have used up the time
                report = make(partial=draw_only, seconds=left)
            except OutOfTime:
                report = make(partial=True) if partial else _progress(figure, preset, out, fresh, curves)
        on_made(report)
        reports.append(report)
    return reports


@contextlib.contextmanager
def _telling(figures: Sequence[Figure], out: Path | str) -> Iterator[None]:
    """An interrupt of the block says what becomes of runs, if the figures have any."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if any(figure.studies() for figure in figures):
            stop.add_note(f"runs that ended are kept in {Path(out) / 'runs'}; the same command goes on")
        raise


def _lacks(figure: Figure, preset: str, out: Path | str, fresh: bool, curves: Sequence[str] | None) -> bool:
    """Whether runs of a figure have to be trained."""
    found = _progress(figure, preset, out, fresh, curves)
    return found["finished"] < found["runs"]


def _progress(figure: Figure, preset: str, out: Path | str, fresh: bool, curves: Sequence[str] | None) -> dict[str, Any]:
    """How far the runs of a figure are."""
    source = source_for(figure, out, fresh=fresh, curves=curves)
    wanted = figure.wanted(find_preset(preset), source)
    runs = distinct(wanted)
    finished = len(runs) - len(figure.missing(wanted, source))
    return {"figure": figure.id, "preset": preset, "runs": len(runs), "finished": finished}


def submit_figures(ids: Sequence[str], preset: str, out: Path | str, asked: Slurm, fresh: bool = False) -> list[str]:
    """Sends the runs that figures lack to Slurm; one line per figure that says what was done."""
    lines = []
    for figure in [find_figure(id) for id in ids]:
        source = source_for(figure, out, fresh=fresh)
        studies = figure.wanted(find_preset(preset), source)
        lines.append(source.submit(studies, asked) if studies else f"{figure.id}: has no runs to train")
    return lines


def print_figure(report: Mapping[str, Any]) -> None:
    """What `make_figures` reports of a figure, in words."""
    if "finished" in report:
        there = f"{report['finished']} of {report['runs']} runs are there"
        return print(f"{report['figure']}: the time is over, {there}; the same command goes on")
    print(report["figure"])
    if report["caveat"]:
        print(f"{report['preset']} preset, so no verdict: {report['caveat']}")
    if report["partial"]:
        print(report["partial"])
    for law in report["laws"]:
        print_law(law)
    for check in report["checks"]:
        published = check["published"] is not None
        holds = {True: "holds      ", False: "fails      ", None: "           "}[check["holds"]]  # an expectation of ours
        beside = f"published: {short(check['published'])}" if published else f"expected: {check['expected']}"
        print(f"{verdict(check['agrees']) if published else holds}{check['name']}: {short(check['measured'])} ({beside})")
    print(f"{report['seconds']:.1f} s; wrote {', '.join(report['files'])}")


def find_probe(name: str) -> Probe:
    """The probe `MODULE:NAME`: a function, or a class that needs no arguments."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        raise InputError(f"there is no probe {name}; give one as MODULE:NAME, e.g. emergo.engine:gradient_probe") from None
    if not callable(found):
        raise InputError(f"{name} is a {type(found).__name__}; a probe is a function, or a class of such")
    return cast(Probe, found() if isinstance(found, type) else found)


def add_figure_records(
    folder: Path | str, name: str | None = None, every: bool = False, to: Path | str = SHIPPED
) -> dict[str, int]:
    """Adds the finished runs of a folder that belong to the `paper` presets of figures to records, with their curves: all of
    them where a figure draws these, else as many points as a plot can show. Returns how many were added by each name. A folder
    may hold records that were made elsewhere instead.

    - `name`: of the records; by default the paper's. Runs that are recorded with curves, under whatever name, are left alone;
      of those that are recorded without, the outcome is.
    - `every`: also runs of no figure; these need a name.
    - `to`: the folder of the records; by default those of the package.
    """
    if every and name is None:
        raise InputError("all runs of a folder need a name for their records")
    if any(Path(folder).glob("*.runs.parquet")):
        return merge_records(folder, to)
    place, chosen = StudyFolder(folder), {}
    for figure in FIGURES.values():
        label = name or figure.id.partition("/")[0]
        for part, study in figure.wanted("paper", source_for(figure, folder)).items():
            chosen.setdefault((label, figure.draws_curves(part)), {}).update({run.identity: run for run in study.runs})
    if every and name is not None:
        for plan in place.read():
            load_plugins(plan.plugins)
            chosen.setdefault((name, True), {}).update(runs_of(plan, folder))
    added: dict[str, int] = {}
    for (label, drawn), runs in sorted(chosen.items(), key=lambda item: not item[0][1]):  # those that are drawn first
        count = add_records([*runs.values()], Store(place.runs), label, to, thin=not drawn)
        if count:
            added[label] = added.get(label, 0) + count
    return added
