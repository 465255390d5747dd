"""`emergo study`: plan, train, inspect, grow, export and pack studies in a folder.

This module imports neither JAX nor pandas, so that `emergo study status` starts quickly. The names
of `emergo.study` are imported on first use.
"""

import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from .. import store
from .. import study as studies
from ..core.errors import InputError, unknown
from ..core.terminal import (
    FittedTable,
    cell_table,
    console,
    counted,
    duration,
    fit_lines,
    memory,
    print_json,
    say,
    short,
    show,
)
from ..store import Plan, Status, StudyFolder, study_status
from ..store.packing import pack_runs
from ..store.packs import pack_folder
from ..study.toml import read_toml
from ._run import (
    TrainingOptions,
    announce_plugins,
    check_output_table,
    parse_pairs,
    parse_value,
    print_end,
    status_view,
    train_studies,
    unverified_lines,
)

# For the default of a `str | None` tyro imports typeguard, which takes a sixth of the time in which
# `status` starts.
Name = Literal[None] | str
UPDATE_SECONDS = 2.0  # between updates of `emergo study status --watch`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(TrainingOptions):
    """Train the unfinished runs of a study. After an interrupt, the same command continues. Several
    processes may train one study at the same time."""

    study: Positional[Path]  # A study file (TOML), or the folder of a study.
    out: Path | None = None  # Folder that keeps the study.
    dry_run: bool = False  # Only report the programs, runs, time and memory.
    keep: bool = False  # Keep the parameters of every run at log-spaced steps.
    retry_failed: bool = False  # Train failed runs again, however often they were tried.

    def run(self) -> None:
        begun = time.monotonic()
        folder, study = self._find()
        if self.dry_run:
            return self._describe(folder, study or StudyOptions(self.study).read_study())
        trained = train_studies(folder, study, self, self.keep, self.retry_failed)
        if trained is None:
            return
        seconds = time.monotonic() - begun
        result = trained[1].data() | {"out": str(folder.path), "seconds": seconds}
        print_end(folder, *trained, begun, result if self.json else None)

    def _find(self) -> tuple[StudyFolder, "studies.Study | None"]:
        """Return the folder, and the study if the argument is a study file."""
        folder = StudyFolder(self.study)
        if os.path.isdir(self.study):
            if self.out is not None:
                raise InputError(f"{self.study} is a folder, not a study file; leave out --out")
            plugins = [name for plan in folder.read() for name in plan.plugins]
            announce_plugins(list(dict.fromkeys(plugins)))
            return folder, None
        plugins = read_toml(self.study).get("plugins")
        if isinstance(plugins, list) and all(isinstance(name, str) for name in plugins):
            announce_plugins(plugins)
        study = studies.Study.read_file(self.study)
        if self.out is None and not self.dry_run:
            raise InputError("name the folder that keeps the study: --out DIR")
        return StudyFolder(self.out or Path(".")), study.replace(keep=True) if self.keep else study

    def _describe(self, folder: StudyFolder, study: "studies.Study") -> None:
        if self.on == "local":
            studies.check_platform(study.runs)
        planned = {run.identity for run in study.runs}
        finished = frozenset(store.read_outcomes(folder.runs).rows) & planned
        expected = studies.estimate(study, finished, slurm=self.on == "slurm")
        if self.json:
            about = {"study": study.name, "runs": study.count, "finished": len(finished)}
            return print_json(about | expected.data())
        show(f"{study.name}: {study.count} runs, {len(finished)} of them finished")
        heads = "program", "runs", "units", "at once", "memory", "time at most"
        shown = FittedTable(*heads, left=("program",), wrap=("program",))
        for group in expected.groups:
            numbers = str(group.runs), str(group.units), str(group.n_parallel)
            shown.add_row(group.what, *numbers, memory(group.bytes), duration(group.seconds))
        if expected.groups:
            console().print(shown)
        show(
            f"{expected.devices} x {expected.platform.upper()}: at most about "
            f"{duration(expected.seconds)}, if every run trains to its last step; "
            f"{memory(expected.bytes)}"
        )


@dataclasses.dataclass(frozen=True)
class StudyOptions:
    """The folder of a study, and which of its studies."""

    folder: Positional[Path]  # Folder of the study.
    # Name of the study, if the folder holds several; by default all.
    study: Name = None
    json: bool = False  # Print one JSON object.

    def plans(self) -> list[Plan]:
        """Return the studies with this name or key; by default all."""
        plans = StudyFolder(self.folder).read(say)
        chosen = [plan for plan in plans if self.study in (None, plan.name, plan.key)]
        if not chosen:
            known = dict.fromkeys(plan.name for plan in plans)
            raise unknown(f"study in {self.folder}", str(self.study), known)
        return chosen

    def read_study(self) -> "studies.Study":
        """Return the only study. Imports its plugins."""
        plan, *others = self.plans()
        if others:
            plans = [plan, *others]
            names = [
                f"{plan.key} ({plan.name}{words and f': {words}'})"
                for plan, words in zip(plans, _differences(plans), strict=True)
            ]
            raise InputError(
                f"{self.folder} holds several studies; add --study {' or '.join(names)}"
            )
        if "task" not in plan.study:
            raise InputError(
                f"{plan.name} holds the runs of a figure, not a study; `emergo figure` trains them"
            )
        announce_plugins(plan.plugins)
        studies.load_plugins(plan.plugins)
        studies.find_inputs(self.folder)
        return studies.Study.from_data(plan.study)


@dataclasses.dataclass(frozen=True)
class Show(StudyOptions):
    """Print the results so far: one row per cell, and the law."""

    def run(self) -> None:
        plans = self.plans()
        reports = [_report(StudyFolder(self.folder), plan) for plan in plans]
        if self.json:
            return print_json(reports[0] if len(reports) == 1 else {"studies": reports})
        for title, report in zip(_titles(plans), reports, strict=True):
            show(f"{title}: {report['finished']} of {report['runs']} runs are finished")
            show(*_checkpoint_lines(report["steps"]))
            show(*unverified_lines(report["unverified"]))
            if report["cells"]:
                console().print(cell_table(report["cells"], report["axes"]))
            if report["law"] is not None:
                show(*fit_lines(report["law"]))
            elif report["study"].get("law"):
                show(f"no law yet: {report['why']}")


def _checkpoint_lines(steps: dict[str, int]) -> list[str]:
    """Return a line about runs in checkpoints, or none without such runs."""
    if not steps:
        return []
    least, most = min(steps.values()), max(steps.values())
    where = f"step {most:,}" if least == most else f"steps {least:,} to {most:,}"
    return [f"{counted(len(steps), 'run')} in checkpoints, at {where}"]


def _steps_in_checkpoints(folder: StudyFolder, plan: Plan, finished: set[str]) -> dict[str, int]:
    """Return the steps of the unfinished runs of a study in its checkpoints, by identity."""
    from ..training import steps_in_checkpoint

    wanted = {run.identity for run in plan.runs} - finished
    paths = sorted(folder.checkpoints.glob("*/*.npz")) if wanted else []
    current = [path for path in paths if path.is_file() and ".previous." not in path.name]
    steps = {run: at for path in current for run, at in steps_in_checkpoint(path).items()}
    return {run: at for run, at in steps.items() if run in wanted}


def _titles(plans: Sequence[Plan]) -> list[str]:
    """Return the names of studies.

    Studies of the same name also get their key and the settings in which they differ.
    """
    names = [plan.name for plan in plans]
    titles = []
    for plan, words in zip(plans, _differences(plans), strict=True):
        key = f" {plan.key}" if names.count(plan.name) > 1 else ""
        titles.append(f"{plan.name}{key} ({words})" if words else f"{plan.name}{key}")
    return titles


def _differences(plans: Sequence[Plan]) -> list[str]:
    """Return, for each study, the settings in which studies of its name differ from it."""
    settings = [_settings(plan) for plan in plans]
    differences = []
    for plan, own in zip(plans, settings, strict=True):
        same = [theirs for p, theirs in zip(plans, settings, strict=True) if p.name == plan.name]
        differing = [item for item in own.items() if any(item not in each.items() for each in same)]
        differences.append(", ".join(f"{name} = {value}" for name, value in differing))
    return differences


def _settings(plan: Plan) -> dict[str, str]:
    """Return the settings of a study's parts and axes as text."""
    parts = (plan.study.get(part) for part in ("task", "model", "optimizer", "train", "grid"))
    return {
        name: _in_words(value)
        for part in parts
        if isinstance(part, dict)
        for name, value in part.items()
    }


def _in_words(value: Any) -> str:
    """Return a setting as text, such as `Switch(before=0.4, after=0, at=100)`."""
    if not isinstance(value, dict) or "type" not in value:
        return short(value)
    fields = (f"{name}={short(part)}" for name, part in value.items() if name != "type")
    return f"{value['type']}({', '.join(fields)})"


def _report(folder: StudyFolder, plan: Plan) -> dict[str, Any]:
    """Return what `emergo study show --json` prints of a study."""
    from ..measure import law_json

    with _warnings_as_lines():
        table = studies.study_table(folder, plan)
    law = None
    why = None if len(table) else "no run is finished"
    try:
        fitted = studies.study_law(table, plan) if len(table) else None
        law = None if fitted is None else law_json(fitted)
    except InputError as error:
        why = str(error)
    return {
        "study": plan.study,
        "axes": plan.axes,
        "runs": len(plan.runs),
        "finished": len(table),
        "steps": _steps_in_checkpoints(folder, plan, {*table["identity"]} if len(table) else set()),
        "unverified": int(table["unverified"].sum()) if "unverified" in table else 0,
        "cells": studies.cell_summary(table, plan.axes, [run.values for run in plan.runs]),
        "law": law,
        "why": why,
    }


@dataclasses.dataclass(frozen=True)
class StatusCommand(StudyOptions):
    """Print the progress of the studies in a folder, from any machine that sees the folder."""

    # Repeat until all runs are finished; with --json, print one object per update.
    watch: bool = False

    def run(self) -> None:
        folder = StudyFolder(self.folder)
        keys = None if self.study is None else [plan.key for plan in self.plans()]
        screen = contextlib.nullcontext()
        if self.watch and console().is_terminal and not self.json:
            from rich.live import Live

            screen = Live(console=console(), refresh_per_second=4)
        before = None
        with screen as live:
            while True:
                status = study_status(folder, keys)
                shown = status, _idle(folder, status)
                if live is not None:
                    live.update(status_view(*shown))
                elif self.json:
                    print_json(status.data())
                elif shown != before:
                    console(wide=True).print(status_view(*shown))
                sys.stdout.flush()
                if status.complete or not self.watch:
                    return
                before = shown
                time.sleep(UPDATE_SECONDS)


def _idle(folder: StudyFolder, status: Status) -> str:
    """Return a line for a study that is not finished and that no process trains, or nothing."""
    if status.complete or status.workers:
        return ""
    return (
        f"no process trains it; unless a job waits in a queue, `emergo study run {folder.path}` "
        f"continues it"
    )


@dataclasses.dataclass(frozen=True)
class Grow(StudyOptions):
    """Add values to the axes of a study, or seeds. Finished runs are not trained again."""

    axis: tuple[str, ...] = ()  # More values of axes, e.g. dim=32,64 burst=2.
    seeds: int | None = None  # New number of seeds.

    def run(self) -> None:
        if not self.axis and self.seeds is None:
            raise InputError("name what to add: --axis dim=32,64 or --seeds 5")
        study = self.read_study()
        axes: dict[str, list[Any]] = {}
        form = "axis=value,value, e.g. dim=32,64"
        for name, values in parse_pairs("--axis", self.axis, form, lambda text: text.split(",")):
            axes.setdefault(name, []).extend(parse_value(word.strip()) for word in values)
        plan, new = study.grown(axes, self.seeds).open(StudyFolder(self.folder), say)
        if self.json:
            return print_json({"runs": len(plan.runs), "new": new})
        show(
            f"{len(plan.runs)} runs, {new} of them new; emergo study run {self.folder} trains them"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(StudyOptions):
    """Write the finished runs of a folder to one table, one row per run."""

    to: Path  # File to write (.parquet or .csv).
    curves: Path | None = None  # Also write all curves to this file, one row per evaluation.

    def run(self) -> None:
        from ..core.files import output_folder
        from ..core.tables import write_table

        files = {self.to: ["identity", "seed", "plateau", "state"]}
        if self.curves is not None:
            if self.curves.resolve() == self.to.resolve():
                raise InputError(
                    f"--to and --curves are the same file, {self.to}; give the curves another name"
                )
            files[self.curves] = ["identity", "step"]
        # Check all files before any is written.
        for path, columns in files.items():
            check_output_table("--to" if path == self.to else "--curves", path, columns)
        folder = StudyFolder(self.folder)
        plans = self.plans()
        with _warnings_as_lines():
            runs = _merged([studies.study_table(folder, plan) for plan in plans], ["identity"])
            if not len(runs):
                raise InputError(f"{self.folder}: no run is finished yet")
            for path in files:
                output_folder(path.parent)
            write_table(runs, self.to)
            if self.curves is not None:
                curves = [studies.study_curves(folder, plan) for plan in plans]
                write_table(_merged(curves, ["identity", "step"]), self.curves)
        planned = len({run.identity for plan in plans for run in plan.runs})
        left = planned - len(runs)
        if self.json:
            result = {"runs": len(runs), "unfinished": left, "files": list(map(str, files))}
            return print_json(result)
        if left:
            say(f"{left} of {planned} runs are not finished and not in the table")
        show(f"{len(runs)} runs; wrote {', '.join(map(str, files))}")


@dataclasses.dataclass(frozen=True)
class Pack:
    """Pack the finished runs of a folder into a few files per thousand runs, for file systems that
    limit the number of files. Other processes may train meanwhile, and every command reads packed
    runs."""

    folder: Positional[Path]  # Folder of the study.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        folder = StudyFolder(self.folder)
        folder.read(say)
        packed = pack_runs(folder.runs)
        for identity, why in packed.left.items():
            say(f"{folder.runs / identity}: not packed ({why})")
        if self.json:
            return print_json({"runs": packed.runs, "packs": packed.packs, "left": packed.left})
        show(
            f"{counted(packed.runs, 'run')} packed; {counted(packed.packs, 'pack')} in "
            f"{pack_folder(folder.runs)}"
        )


def _merged(tables: list[Any], key: list[str]) -> Any:
    """Concatenate the tables of several studies; runs that they share count once."""
    import pandas as pd

    tables = [table for table in tables if len(table)] or tables[:1]
    return pd.concat(tables, ignore_index=True).drop_duplicates(key)


@dataclasses.dataclass(frozen=True)
class StudyCommand:
    """Train, inspect, grow, export and pack a study, which is a grid of runs in a folder."""

    command: OmitSubcommandPrefixes[
        Run | Annotated[StatusCommand, subcommand("status")] | Show | Grow | Export | Pack
    ]

    def run(self) -> None:
        self.command.run()


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print warnings about unreadable files as lines on standard error, each line once."""
    said: set[str] = set()

    def show_once(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show_once
        yield
