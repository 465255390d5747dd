"""Commands on figures: make them, submit their runs to Slurm, and record their runs."""

import contextlib
import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..core.errors import InputError
from ..core.terminal import print_law, rounded_interval, say, short, show
from ..store import Store, StudyFolder, merge_records
from ..study import Forecaster, Slurm, live_progress
from ..study.results import add_records
from ..training import OutOfTime, Probe, Run
from . import FIGURES
from ._figure import Figure, find_preset, run_figure, source_for, words
from ._together import train_figures
from .index import find_figure


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
    forecaster: Forecaster | None = None,
    on_made: Callable[[Mapping[str, Any]], None] = lambda report: None,
) -> list[dict[str, Any]]:
    """Make figures one after another and write them.

    **Arguments:**

    - `fresh`, `curves`, `probes`: as in [`emergo.papers.source_for`][].
    - `seconds`: the training time of all figures together. The most valuable cells are trained
      first, and the same call later continues.
    - `partial`: draw the complete cells of a figure when the time is over. Without `seconds`, train
      nothing.
    - `workers`: the number of processes that train the runs of all figures before the figures are
      drawn. On a GPU they share its memory, so this process should not have used the GPU before.
    - `forecaster`: forecasts emergence in the progress display.
    - `on_made`: called with the report of each figure.

    **Returns:** the content of each figure's JSON file. A figure that is not complete when the time
    is over is reported as `figure`, `preset`, `runs` and `finished`, unless `partial` is set.
    """
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of at least 1, got {workers!r}")
    figures = [find_figure(id) for id in ids]
    draw_only = partial and seconds is None
    deadline = None if seconds is None else time.monotonic() + seconds
    options: dict[str, Any] = {"fresh": fresh, "curves": curves, "probes": probes}
    if workers > 1 and not draw_only:
        with _explain_interrupt(figures, out), live_progress(forecaster=forecaster) as watch:
            train_figures(
                figures,
                find_preset(preset),
                out,
                workers,
                seconds=seconds,
                show=watch,
                say=say,
                **options,
            )
    reports = []
    for figure in figures:
        source = source_for(figure, out, **options)
        report = None
        with _explain_interrupt([figure], out), live_progress(forecaster=forecaster) as watch:
            make = functools.partial(run_figure, figure, preset, out, report=watch, **options)
            # Workers stop when the time is over; this process then does not train what they left.
            if workers == 1 or deadline is None or not figure.progress(preset, source)[1]:
                left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
                with contextlib.suppress(OutOfTime):
                    report = make(partial=draw_only, seconds=left)
            if report is None and partial:
                report = make(partial=True)
        if report is None:
            runs, missing = figure.progress(preset, source)
            report = {"figure": figure.id, "preset": preset, "runs": len(runs)}
            report |= {"finished": len(runs) - len(missing)}
        on_made(report)
        reports.append(report)
    return reports


@contextlib.contextmanager
def _explain_interrupt(figures: Sequence[Figure], out: Path | str) -> Iterator[None]:
    """Add a note on finished runs to an interrupt, if the figures have runs."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if any(figure.studies() for figure in figures):
            stop.add_note(
                f"runs that ended are kept in {Path(out) / 'runs'}; the same command goes on"
            )
        raise


def submit_figures(
    ids: Sequence[str], preset: str, out: Path | str, asked: Slurm, fresh: bool = False
) -> list[str]:
    """Submit the missing runs of figures to Slurm; return one line per figure about its job."""
    lines = []
    for figure in [find_figure(id) for id in ids]:
        source = source_for(figure, out, fresh=fresh)
        lines.append(source.submit(figure.wanted(find_preset(preset), source), asked))
    return lines


def print_figure(report: Mapping[str, Any]) -> None:
    """Print the report of a figure: caveat, laws, checks and files."""
    if "finished" in report:
        count = f"{report['finished']} of {report['runs']} runs are there"
        return show(f"{report['figure']}: the time is over, {count}; the same command goes on")
    show(report["figure"])
    if report["caveat"]:
        show(f"{report['preset']} preset, so no verdict: {report['caveat']}")
    if report["partial"]:
        show(report["partial"])
    for law in report["laws"]:
        print_law(law)
    for check in report["checks"]:
        other = f"expected: {check['expected']}"
        if check["published"] is not None:
            other = f"published: {short(check['published'])}"
        ours = check["measured"]
        measured = rounded_interval(*ours) if check["interval"] else short(ours)
        show(f"{words(check):11}{check['name']}: {measured} ({other})")
    show(f"{report['seconds']:.1f} s; wrote {', '.join(report['files'])}")


def find_probe(name: str) -> Probe:
    """Import a probe by its name `MODULE:NAME`; classes are called without arguments."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        raise InputError(
            f"there is no probe {name}; give one as MODULE:NAME, e.g. "
            f"emergo.training:gradient_probe"
        ) from None
    if not callable(found):
        raise InputError(
            f"{name} is a {type(found).__name__}; a probe is a function, or a class of such"
        )
    return cast(Probe, found() if isinstance(found, type) else found)


def add_figure_records(
    folder: Path | str, to: Path | str, name: str | None = None
) -> dict[str, int]:
    """Add the finished runs of a folder that belong to the `paper` presets of figures to records.

    Curves are recorded completely if a figure plots them, otherwise with as many points as a plot
    can show. Runs that are already recorded with curves are skipped; if a run is recorded without
    curves, its recorded outcome stays.

    **Arguments:**

    - `folder`: a folder of runs, or of records that were made elsewhere, which are merged.
    - `to`: the folder of the records.
    - `name`: the name of the records; by default the paper's.

    **Returns:** the number of added runs, by the name of the records.
    """
    if any(Path(folder).glob("*.runs.parquet")):
        return merge_records(folder, to)
    place = StudyFolder(folder)
    if not os.path.isdir(place.runs):
        place.read()  # raises an error that describes the folder
    chosen: dict[tuple[str, bool], dict[str, Run]] = {}
    for figure in FIGURES.values():
        label = name or figure.id.partition("/")[0]
        for part, study in figure.wanted("paper", source_for(figure, folder)).items():
            runs = chosen.setdefault((label, figure.draws_curves(part)), {})
            runs.update({run.identity: run for run in study.runs})
    added: dict[str, int] = {}
    # Runs whose curves are plotted come first, so that another figure does not thin them.
    for label, drawn in sorted(chosen, key=lambda group: not group[1]):
        runs = list(chosen[label, drawn].values())
        count = add_records(runs, Store(place.runs), label, to, thin=not drawn)
        if count:
            added[label] = added.get(label, 0) + count
    return added
