"""`emergo study`: many runs with one question, kept in a folder that survives what happens to the processes."""

import contextlib
import dataclasses
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from .._errors import InputError
from .._terminal import console, duration, print_json, print_law, say
from ._study_views import axes_words, cell_table, counts, print_estimate, status_view

if TYPE_CHECKING:
    from ..studies import Status, Study, StudyFolder

# The rooms are imported inside the commands; those of `status` are without JAX and pandas, so that it answers at once.


@dataclasses.dataclass(frozen=True)
class Run:
    """Train what is missing of a study. The same command goes on after an interrupt, and several may run at once."""

    study: Positional[Path]
    """A study file (TOML), or the folder of a study that was begun."""
    out: Path | None = None
    """Folder of the study."""
    on: Literal["local", "slurm"] = "local"
    """Here, on all devices of this machine; or as an array job of Slurm."""
    dry_run: bool = False
    """Only say what would run: groups, runs, time and memory."""
    together: int | None = None
    """Runs of one shape to train at once on a device; by default what memory holds and cores need."""
    retry_failed: bool = False
    """Begin failed runs anew, however often they were tried."""
    log: Literal["none", "tensorboard", "wandb"] = "none"
    """Also write the curves of finished runs for TensorBoard (OUT/tensorboard) or, offline, Weights & Biases (OUT/wandb)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..studies import StudyFolder, check_here, check_slurm, open_study, study_status, submit_study

        if self.together is not None and self.together < 1:
            raise InputError(f"--together must be at least 1, got {self.together}")
        folder, study = self._find()
        if self.on == "local":
            check_here(folder, study)
        if self.dry_run:
            return self._describe(folder, study)
        if self.on == "slurm":
            check_slurm()
        writer = self._writer(folder)
        plan, fresh = open_study(folder, study)
        if self.retry_failed:
            _forget_failures(folder)
        status = study_status(folder)
        if fresh and fresh < status.runs:
            say(f"{folder.path}: {fresh} of {status.runs} runs are new")
        for place, why in status.broken.items():
            say(f"{place}: not a finished run that can be read ({why}); it is moved aside and trained again")
        if self.on == "slurm":
            sent = submit_study(folder, study, plan)
            if self.json:
                return print_json({"job": sent.job, "tasks": sent.tasks, "folder": str(sent.folder), "out": str(folder.path)})
            print(f"array job {sent.job}, {sent.tasks} tasks, output in {sent.folder}")
            return print(f"emergo study status {folder.path} --watch   shows how far it is")
        self._train(StudyFolder(folder.path), status, writer)

    def _train(self, folder: "StudyFolder", status: "Status", writer: Any) -> None:
        from ..report import live_progress
        from ..studies import Worker, study_status

        begun = time.monotonic()
        try:
            with live_progress() as show:
                Worker(folder, together=self.together, progress=show, say=say, on_end=writer.write).run()
        except KeyboardInterrupt as stop:
            now = study_status(folder)
            stop.add_note(f"{now.finished} of {now.runs} runs are finished; the same command goes on from there")
            raise
        finally:
            writer.close()
        now = study_status(folder)
        if self.json:
            return print_json(now.data() | {"out": str(folder.path), "seconds": time.monotonic() - begun})
        there = f" ({status.finished} were there)" if status.finished else ""
        print(f"{counts(now)}{there}, {duration(time.monotonic() - begun)}; kept in {folder.path}")
        print(f"emergo study show {folder.path}   shows what came out")

    def _find(self) -> tuple["StudyFolder", "Study"]:
        from ..studies import Study, StudyFolder

        folder = StudyFolder(self.study)
        if os.path.isdir(self.study) and (self.out is None or folder.exists()):
            if self.out is not None and self.out.resolve() != self.study.resolve():
                raise InputError(f"{self.study} is the folder of a study itself; leave out --out")
            return folder, Study.of(folder.read().study)
        study = Study.read(self.study)
        if self.out is None and not self.dry_run:
            raise InputError("say where to keep the study: --out DIR")
        return StudyFolder(self.out or Path(".")), study

    def _writer(self, folder: "StudyFolder") -> Any:
        from ..studies import find_writer

        return find_writer(self.log, folder)

    def _describe(self, folder: "StudyFolder", study: "Study") -> None:
        from ..studies import estimate, read_outcomes

        finished = frozenset(read_outcomes(folder.runs).rows) & {run.identity for run in study.runs}
        found = estimate(study, finished, slurm=self.on == "slurm")
        if self.json:
            return print_json({"study": study.name, "runs": study.count, "finished": len(finished)} | found.data())
        cells = study.count // len(list(study.seeds) if not isinstance(study.seeds, int) else range(study.seeds))
        there = f", {len(finished)} of them finished" if finished else ""
        print(
            f"{study.name}: {study.count} runs{there}: {cells} cells ({axes_words(study)}), {study.count // cells} seeds each"
        )
        print_estimate(found, "Slurm" if self.on == "slurm" else "this machine")


@dataclasses.dataclass(frozen=True)
class Show:
    """What came out so far: a row a cell, and the law."""

    folder: Positional[Path]
    """Folder of the study."""
    toml: bool = False
    """Print the study as a study file instead."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..studies import StudyFolder

        if self.toml and self.json:
            raise InputError("--toml and --json exclude each other; with --json the study is in the object, as `study`")
        folder = StudyFolder(self.folder)
        plan = folder.read()
        if self.toml:
            from ..studies._toml import toml_text

            return print(toml_text(plan.study), end="")
        from ..measure import law_json
        from ..studies import study_law, study_table
        from ..studies._cells import cell_summary

        with _named_warnings():
            table = study_table(folder, plan)
        cells = cell_summary(table, plan)
        law, why = None, "no run is finished"
        try:
            law = study_law(table, plan) if len(table) else None
        except InputError as error:
            why = str(error)
        if self.json:
            found = None if law is None else law_json(law)
            return print_json(
                {"study": plan.study, "runs": len(plan.runs), "finished": len(table), "cells": cells, "law": found}
            )
        print(f"{plan.study['name']}: {len(table)} of {len(plan.runs)} runs are finished")
        if cells:
            console().print(cell_table(cells, plan.axes))
        if law is not None:
            print_law(law_json(law))
        elif plan.study.get("law"):
            print(f"no law yet: {why}")


@dataclasses.dataclass(frozen=True)
class Status_:
    """How far a study is; from any machine that sees its folder."""

    folder: Positional[Path]
    """Folder of the study."""
    watch: bool = False
    """Look again and again until all runs are finished."""
    every: float = 2.0
    """Seconds between looks."""
    json: bool = False
    """Print one JSON object (with --watch, one a look)."""

    def run(self) -> None:
        from ..studies import StudyFolder, study_status

        folder = StudyFolder(self.folder)
        if not self.every > 0:
            raise InputError(f"--every must be positive, got {self.every:g}")
        if not self.watch:
            return self._print(study_status(folder))
        out = console()
        if self.json or not out.is_terminal:
            return self._watch(folder)
        from rich.live import Live

        with Live(console=out, refresh_per_second=4) as live:
            while True:
                status = study_status(folder)
                live.update(status_view(status, self._idle(folder, status)))
                if status.complete:
                    return
                time.sleep(self.every)

    def _watch(self, folder: "StudyFolder") -> None:
        """Line after line; without JSON only what is new."""
        from ..studies import study_status

        before, told = None, False
        while True:
            status = study_status(folder)
            if self.json or status != before:
                self._print(status)
                sys.stdout.flush()
            if status.complete:
                return
            idle = self._idle(folder, status)
            if idle and not told:
                say(idle)
            before, told = status, bool(idle)
            time.sleep(self.every)

    def _idle(self, folder: "StudyFolder", status: "Status") -> str:
        """What to say where runs are left and no process is at work on them."""
        if status.complete or status.workers:
            return ""
        queued = "unless a job of Slurm waits in its queue, " if folder.slurm.is_dir() else ""
        return f"nobody trains it; {queued}`emergo study run {folder.path}` does"

    def _print(self, status: "Status") -> None:
        if self.json:
            print_json(status.data())
        else:
            console(wide=True).print(status_view(status))


@dataclasses.dataclass(frozen=True)
class Grow:
    """Add values to the axes of a study, or seeds. Nothing that is finished runs again."""

    folder: Positional[Path]
    """Folder of the study."""
    axis: tuple[str, ...] = ()
    """More values of an axis, e.g. dim=32,64; several axes after one another."""
    seeds: int | None = None
    """How many seeds there shall be."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..studies import Study, StudyFolder, open_study

        if not self.axis and self.seeds is None:
            raise InputError("say what to add: --axis dim=32,64 or --seeds 5")
        folder = StudyFolder(self.folder)
        study = Study.of(folder.read().study)
        plan, fresh = open_study(folder, study.grown(self._values(), self.seeds))
        if self.json:
            return print_json({"runs": len(plan.runs), "new": fresh})
        if not fresh:
            return print(f"nothing changed: all of this is among the {len(plan.runs)} runs of the study")
        print(f"{len(plan.runs)} runs, {fresh} of them new; emergo study run {folder.path} trains them")

    def _values(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for text in self.axis:
            name, equals, values = text.partition("=")
            if not equals or not values:
                raise InputError(f"--axis '{text}': write axis=value,value, e.g. dim=32,64")
            found.setdefault(name, []).extend(_value(word.strip()) for word in values.split(","))
        return found


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the finished runs as one table, a row a run."""

    folder: Positional[Path]
    """Folder of the study."""
    to: Path
    """File to write (.parquet or .csv)."""
    curves: Path | None = None
    """Also write all curves to this file, a row an evaluation."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..measure import write_table
        from ..studies import StudyFolder, study_curves, study_table

        if self.curves is not None and self.curves.resolve() == self.to.resolve():
            raise InputError(f"--to and --curves are the same file, {self.to}; give the curves another name")
        folder = StudyFolder(self.folder)
        plan = folder.read()
        with _named_warnings():
            table = study_table(folder, plan)
            if table.empty:
                raise InputError(f"{self.folder}: no run is finished yet")
            write_table(table, self.to)
            files = [str(self.to)]
            if self.curves is not None:
                write_table(study_curves(folder, plan), self.curves)
                files.append(str(self.curves))
        left = len(plan.runs) - len(table)
        if self.json:
            return print_json({"runs": len(table), "unfinished": left, "files": files})
        if left:
            say(f"{left} of {len(plan.runs)} runs are not finished and not in the table")
        print(f"{len(table)} runs; wrote {', '.join(files)}")


Command = Union[  # noqa: UP007 - tyro reads the names from the annotations
    Annotated[Run, subcommand("run")],
    Annotated[Status_, subcommand("status")],
    Annotated[Show, subcommand("show")],
    Annotated[Grow, subcommand("grow")],
    Annotated[Export, subcommand("export")],
]


@dataclasses.dataclass(frozen=True)
class StudyCommand:
    """Many runs with one question: run, status, show, grow, export."""

    command: OmitSubcommandPrefixes[Command]

    def run(self) -> None:
        self.command.run()


@contextlib.contextmanager
def _named_warnings() -> Iterator[None]:
    """Warnings of files that cannot be read become lines on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(str(message))
        yield


def _value(word: str) -> Any:
    """A value as a study file would read it; text needs no quotes here."""
    try:
        return json.loads(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word


def _forget_failures(folder: "StudyFolder") -> None:
    from ..studies import Failures, Store, read_outcomes

    store, failures = Store(folder.runs), Failures(folder.failures)
    failed = [identity for identity, row in read_outcomes(folder.runs).rows.items() if row["state"] == "failed"]
    for identity in failed:
        store.set_aside(identity)
        failures.forget(identity)
    if failed:
        say(f"{len(failed)} failed runs begin anew")
