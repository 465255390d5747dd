"""`emergo study`: many runs with one question, kept in a folder that survives what happens to the processes.

What is imported here is without JAX and pandas, so that `emergo study status` answers at once; `studies` imports the rest when
it is asked for.
"""

import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from .. import studies
from .._errors import InputError, unknown
from .._terminal import cell_table, console, duration, fit_lines, memory, print_json, say, show, table
from ..studies import Plan, Status, StudyFolder, study_status
from ..studies._toml import read_toml, toml_text
from ..studies._version_1 import is_version_1
from ._run import (
    announce_plugins,
    check_output_table,
    check_positive,
    exit_if_all_failed,
    find_writer,
    parse_pairs,
    parse_value,
    print_end,
    status_view,
    train_studies,
)

Name = Literal[None] | str  # for the default of a `str | None` tyro imports typeguard, a sixth of what `status` takes to start


@dataclasses.dataclass(frozen=True)
class Run:
    """Train what is missing of a study. The same command goes on after an interrupt, and several may run at once."""

    study: Positional[Path]  # A study file (TOML), or the folder of studies that were begun.
    out: Path | None = None  # Folder that keeps the study.
    on: Literal["local", "slurm"] = "local"  # Train here, on all devices of this machine; or as an array job of Slurm.
    dry_run: bool = False  # Only say what would run: programs, runs, time and memory.
    n_parallel: int | None = None
    """How many runs of one program to train at once on a device; by default what memory holds and cores need."""
    seconds: float | None = None  # Stop after so many seconds; the same command goes on.
    keep: bool = False  # Keep the parameters of every run at log-spaced steps.
    retry_failed: bool = False  # Begin failed runs anew, however often they were tried.
    log: Literal["none", "tensorboard", "wandb"] = "none"
    """Also write the curves of finished runs for TensorBoard (OUT/tensorboard) or, offline, Weights & Biases (OUT/wandb)."""
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        check_positive(n_parallel=self.n_parallel, seconds=self.seconds)
        folder, study = self._find()
        if self.dry_run:
            return self._describe(folder, study or _study_of(_only(folder, None, "a dry run")))
        writer = find_writer(folder, study, self)
        if is_version_1(folder.path):
            say(f"{folder.path}: {studies.migrate(folder.path)} runs of version 1 got the names of version 2")
        if self.retry_failed:
            _forget_failures(folder)
        begun = time.monotonic()
        trained = train_studies(folder, study, writer, self)
        if trained is None:
            return
        if self.json:
            print_json(trained[1].data() | {"out": str(folder.path), "seconds": time.monotonic() - begun})
        else:
            print_end(folder, *trained, time.monotonic() - begun)
        exit_if_all_failed(trained[1])

    def _find(self) -> tuple[StudyFolder, "studies.Study | None"]:
        """The folder, and the study of a study file. Says which plugins are about to be imported."""
        folder = StudyFolder(self.study)
        if os.path.isdir(self.study) and (self.out is None or folder.exists()):
            if self.out is not None and self.out.resolve() != self.study.resolve():
                raise InputError(f"{self.study} is the folder of a study itself; leave out --out")
            announce_plugins(list(dict.fromkeys(name for plan in folder.read() for name in plan.plugins)))
            return folder, None
        plugins = read_toml(self.study).get("plugins")
        announce_plugins(plugins if isinstance(plugins, list) and all(isinstance(name, str) for name in plugins) else [])
        study = studies.Study.read_file(self.study)
        if self.out is None and not self.dry_run:
            raise InputError("say where to keep the study: --out DIR")
        return StudyFolder(self.out or Path(".")), study.replace(keep=True) if self.keep else study

    def _describe(self, folder: StudyFolder, study: "studies.Study") -> None:
        if self.on == "local":
            studies.check_platform(study.runs)
        finished = frozenset(studies.read_outcomes(folder.runs).rows) & {run.identity for run in study.runs}
        expected = studies.estimate(study, finished, slurm=self.on == "slurm")
        if self.json:
            return print_json({"study": study.name, "runs": study.count, "finished": len(finished)} | expected.data())
        there = f", {len(finished)} of them finished" if finished else ""
        axes = f" ({', '.join(study.axes)})" if study.axes else ""
        cells = f"{study.count // len(study.seeds)} cells{axes}, {len(study.seeds)} seeds each"
        show(f"{study.name}: {study.count} runs{there}: {cells}")
        heads = ("program", "runs", "units", "at once", "memory", "time at most")
        shown = table(*heads, left=("program",), wrap=("program",))
        for group in expected.groups:
            numbers = (str(group.runs), str(group.units), str(group.n_parallel))
            shown.add_row(group.what, *numbers, memory(group.bytes), duration(group.seconds))
        if expected.groups:
            console().print(shown)
        where = f"{'Slurm' if self.on == 'slurm' else 'this machine'} ({expected.devices} x {expected.platform.upper()})"
        most = f"at most about {duration(expected.seconds)}, if no run ends before its last step"
        show(f"{where}: {most}; {memory(expected.bytes)}")


@dataclasses.dataclass(frozen=True)
class Show:
    """What came out so far: one row per cell, and the law."""

    folder: Positional[Path]  # Folder of the study.
    study: Name = None  # Name of the study, where the folder holds several; by default all are shown.
    toml: bool = False  # Print the study as a study file instead.
    json: bool = False  # Print one JSON object; for several studies it holds them in a list.

    def run(self) -> None:
        if self.toml and self.json:
            raise InputError("--toml and --json exclude each other; with --json the study is in the object, as `study`")
        folder = StudyFolder(self.folder)
        if self.toml:
            study = _only(folder, self.study, "--toml").study
            return print(toml_text({name: value for name, value in study.items() if name != "since"}), end="")
        plans = _chosen(folder, self.study)
        reports = [_report(folder, plan) for plan in plans]
        if self.json:
            return print_json(reports[0] if len(reports) == 1 else {"studies": reports})
        names = [plan.name for plan in plans]
        for plan, report in zip(plans, reports, strict=True):
            which = f"{plan.name} ({plan.key})" if names.count(plan.name) > 1 else plan.name  # `--study` takes either
            show(f"{which}: {report['finished']} of {report['runs']} runs are finished")
            if report["cells"]:
                console().print(cell_table(report["cells"], report["axes"]))
            if report["law"] is not None:
                show(*fit_lines(report["law"]))
            elif report["study"].get("law"):
                show(f"no law yet: {report['why']}")


def _report(folder: StudyFolder, plan: Plan) -> dict[str, Any]:
    from ..measure import law_json

    with _spoken_warnings():
        table = studies.study_table(folder, plan)
    law, why = None, "no run is finished"
    if len(table):
        try:
            law = studies.study_law(table, plan)
        except InputError as error:
            why = str(error)
    cells = studies.cell_summary(table, plan.axes, [run.values for run in plan.runs])
    report = {"study": plan.study, "axes": plan.axes, "runs": len(plan.runs), "finished": len(table), "cells": cells}
    return report | {"law": None if law is None else law_json(law), "why": None if law is not None else why}


@dataclasses.dataclass(frozen=True)
class StatusCommand:
    """How far the studies of a folder are; from any machine that sees the folder."""

    folder: Positional[Path]  # Folder of the study.
    study: Name = None  # Name of the study, where the folder holds several; by default all together.
    watch: bool = False  # Look again and again until all runs are finished.
    every: float = 2.0  # Seconds between looks.
    json: bool = False  # Print one JSON object (with --watch, one per look).

    def run(self) -> None:
        check_positive(every=self.every)
        folder = StudyFolder(self.folder)
        keys = None if self.study is None else [plan.key for plan in _chosen(folder, self.study)]
        screen, before, was_idle = contextlib.nullcontext(), None, False
        if self.watch and console().is_terminal and not self.json:
            from rich.live import Live

            screen = Live(console=console(), refresh_per_second=4)
        with screen as live:
            while True:
                status = study_status(folder, keys)
                idle = _idle(folder, status) if self.watch else ""
                if live is not None:
                    live.update(status_view(status, idle))
                elif self.json:
                    print_json(status.data())
                elif status != before:
                    console(wide=True).print(status_view(status))
                sys.stdout.flush()
                if status.complete or not self.watch:
                    return
                if live is None and idle and not was_idle:
                    say(idle)
                before, was_idle = status, bool(idle)
                time.sleep(self.every)


def _idle(folder: StudyFolder, status: Status) -> str:
    """What to say where runs are left and no process is at work on them."""
    if status.complete or status.workers:
        return ""
    queued = "unless a job waits in the queue of Slurm, " if folder.slurm.is_dir() else ""
    return f"it is not being trained; {queued}`emergo study run {folder.path}` continues it"


@dataclasses.dataclass(frozen=True)
class Grow:
    """Add values to the axes of a study, or seeds. Nothing that is finished runs again."""

    folder: Positional[Path]  # Folder of the study.
    study: Name = None  # Name of the study, where the folder holds several.
    axis: tuple[str, ...] = ()  # More values of an axis, e.g. dim=32,64; several axes after one another.
    seeds: int | None = None  # How many seeds there shall be.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        if not self.axis and self.seeds is None:
            raise InputError("say what to add: --axis dim=32,64 or --seeds 5")
        folder, axes = StudyFolder(self.folder), {}
        chosen = _only(folder, self.study, "growing")
        announce_plugins(chosen.plugins)
        study = _study_of(chosen)
        for name, values in parse_pairs("--axis", self.axis, "axis=value,value, e.g. dim=32,64", lambda text: text.split(",")):
            axes.setdefault(name, []).extend(parse_value(word.strip()) for word in values)
        plan, new = study.grown(axes, self.seeds).open(folder, say)
        if self.json:
            return print_json({"runs": len(plan.runs), "new": new})
        if not new:
            return show(f"nothing changed: all of this is among the {len(plan.runs)} runs of the study")
        show(f"{len(plan.runs)} runs, {new} of them new; emergo study run {folder.path} trains them")


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the finished runs of a folder as one table, one row per run."""

    folder: Positional[Path]  # Folder of the study.
    to: Path  # File to write (.parquet or .csv).
    study: Name = None  # Name of the study, where the folder holds several; by default all.
    curves: Path | None = None  # Also write all curves to this file, one row per evaluation.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        import pandas as pd

        from .._files import output_folder
        from .._tables import write_table

        self._check_files()
        folder = StudyFolder(self.folder)
        plans = _chosen(folder, self.study)
        with _spoken_warnings():
            tables = [table for table in (studies.study_table(folder, plan) for plan in plans) if len(table)]
            if not tables:
                raise InputError(f"{self.folder}: no run is finished yet")
            table = pd.concat(tables, ignore_index=True).drop_duplicates("identity")  # studies may share runs
            for path in self._files:
                output_folder(path.parent)  # both are seen to before either is written
            write_table(table, self.to)
            if self.curves is not None:
                curves = [studies.study_curves(folder, plan) for plan in plans]
                shared = pd.concat(curves, ignore_index=True).drop_duplicates(["identity", "step"]) if plans[1:] else curves[0]
                write_table(shared, self.curves)
        files = [str(path) for path in self._files]
        planned = len({run.identity for plan in plans for run in plan.runs})
        left = planned - len(table)
        if self.json:
            return print_json({"runs": len(table), "unfinished": left, "files": files})
        if left:
            say(f"{left} of {planned} runs are not finished and not in the table")
        show(f"{len(table)} runs; wrote {', '.join(files)}")

    @property
    def _files(self) -> list[Path]:
        return [path for path in (self.to, self.curves) if path is not None]

    def _check_files(self) -> None:
        """An `InputError` where one of the files cannot be written, or holds something else, before either is written."""
        if self.curves is not None and self.curves.resolve() == self.to.resolve():
            raise InputError(f"--to and --curves are the same file, {self.to}; give the curves another name")
        check_output_table("--to", self.to, ("identity", "seed", "plateau", "state"))
        if self.curves is not None:
            check_output_table("--curves", self.curves, ("identity", "step"))


@dataclasses.dataclass(frozen=True)
class Migrate:
    """Give a folder of version 1 the names of version 2. Reading such a folder needs no migration; training in it does one."""

    folder: Positional[Path]  # Folder of the study.

    def run(self) -> None:
        if not is_version_1(self.folder):
            StudyFolder(self.folder).read(say)  # an error where there is no study
            return show(f"{self.folder}: already of version 2; nothing to do")
        show(f"{self.folder}: {studies.migrate(self.folder)} runs have the names of version 2")


@dataclasses.dataclass(frozen=True)
class StudyCommand:
    """Many runs with one question: run, status, show, grow, export, migrate."""

    command: OmitSubcommandPrefixes[Run | Annotated[StatusCommand, subcommand("status")] | Show | Grow | Export | Migrate]

    def run(self) -> None:
        self.command.run()


def _chosen(folder: StudyFolder, name: str | None) -> list[Plan]:
    """The studies of that name; by default all."""
    plans = folder.read(say)
    chosen = [plan for plan in plans if name in (None, plan.name, plan.key)]
    if not chosen:
        raise unknown(f"study in {folder.path}", str(name), dict.fromkeys(plan.name for plan in plans))
    return chosen


def _only(folder: StudyFolder, name: str | None, what: str) -> Plan:
    plans = _chosen(folder, name)
    if len(plans) > 1:
        names = [plan.name for plan in plans]
        words = [plan.key if names.count(plan.name) > 1 else plan.name for plan in plans]
        raise InputError(f"{folder.path} holds {len(plans)} studies, and {what} needs one; add --study {' or '.join(words)}")
    return plans[0]


def _study_of(plan: Plan) -> "studies.Study":
    """The study of a plan. Imports its plugins."""
    if "task" not in plan.study:
        raise InputError(f"{plan.name} is not a study but the runs of a figure; `emergo figure` trains them")
    studies.load_plugins(plan.plugins)
    return studies.Study.from_data(plan.study)


@contextlib.contextmanager
def _spoken_warnings() -> Iterator[None]:
    """Warnings of files that cannot be read become lines on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(str(message))
        yield


def _forget_failures(folder: StudyFolder) -> None:
    store, failures = studies.Store(folder.runs), studies.Failures(folder.failures)
    failed = [identity for identity, row in studies.read_outcomes(folder.runs).rows.items() if row["state"] == "failed"]
    for identity in failed:
        store.set_aside(identity)
        failures.forget(identity)
    if failed:
        say(f"{len(failed)} failed runs begin anew")
