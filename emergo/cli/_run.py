"""Shared parts of `emergo train` and `emergo study`: options, training, and status lines."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import store
from .. import study as studies
from ..core.errors import InputError
from ..core.files import check_parent
from ..core.json import check_plain
from ..core.terminal import FittedTable, counted, duration, print_json, say, show
from ..store import Plan, Status, StudyFolder, study_status

if TYPE_CHECKING:
    from ..study import Slurm, Study
    from ..training import Run


def parse_value(word: str) -> Any:
    """Parse a value as in a study file; text needs no quotes."""
    try:
        value = json.loads(word)
    except ValueError:
        with contextlib.suppress(ValueError):
            return float(word)
        return word
    except RecursionError:
        raise InputError(f"{word[:40]}...: nested too deeply") from None
    try:
        check_plain([value])
    except ValueError as error:
        raise InputError(f"{word[:40]}: {error}") from None
    return value


def parse_pairs(
    option: str,
    words: Sequence[str],
    form: str = "name=value",
    read: Callable[[str], Any] = parse_value,
) -> list[tuple[str, Any]]:
    """Split words such as `minutes=60` into names and values.

    **Arguments:**

    - `option`: the option that has the words, and `form`: what to write; both for errors.
    - `read`: parses a value; raises `ValueError` for an invalid one.
    """
    pairs = []
    for word in words:
        name, _, value = word.partition("=")
        try:
            if not (name and value):
                raise ValueError
            pairs.append((name, read(value)))
        except ValueError:
            raise InputError(f"{option} '{word}': write {form}") from None
    return pairs


def check_positive(**options: float | None) -> None:
    """Raise `InputError` for an option that must be positive and is not."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise InputError(f"--{name.replace('_', '-')} must be positive, got {value:g}")


def check_output_table(option: str, out: Path, columns: Collection[str]) -> None:
    """Raise `InputError` if a table cannot be written, or would replace some other file.

    A file may be replaced if it is a table with these columns.
    """
    from ..core.tables import CSV, PARQUET, read_table

    writable = out.suffix.lower() in CSV + PARQUET
    if writable and os.path.lexists(out):
        try:
            writable = set(columns) <= set(read_table(out).columns)
        except InputError:
            writable = False
    if not writable:
        raise InputError(
            f"{option} {out}: expected the name of a new .csv or .parquet file, or of a table that "
            f"this command has written"
        )
    check_parent(option, out)


def announce_plugins(plugins: Sequence[str]) -> None:
    """Report whose code is about to be run."""
    if plugins:
        say(f"imports {', '.join(plugins)}, because the study asks for it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of commands that train a study."""

    # Train here, on all devices of this machine, or as an array job of Slurm.
    on: Literal["local", "slurm"] = "local"
    # Runs of one program to train at once on a device; by default as many as fit into memory.
    n_parallel: Literal[None] | int = None
    # Stop after this many seconds; the same command continues.
    seconds: Literal[None] | float = None
    # Also write the curves for TensorBoard (OUT/tensorboard) or, offline, Weights & Biases
    # (OUT/wandb), while runs train; also those of runs that were finished before.
    log: Literal["none", "tensorboard", "wandb"] = "none"
    json: bool = False  # Print one JSON object.


def train_studies(
    folder: StudyFolder,
    study: "Study | None",
    options: TrainingOptions,
    keep: bool = False,
    retry: bool = False,
) -> tuple[Status, Status] | None:
    """Train the unfinished runs of a study with a live table, or submit them to Slurm.

    **Arguments:**

    - `study`: the study to train; None: every study in the folder.
    - `keep`: keep the parameters of the studies in the folder, too.
    - `retry`: train failed runs again, however often they were tried.

    **Returns:** the status before and after training; None if the runs were submitted.
    """
    check_positive(n_parallel=options.n_parallel, seconds=options.seconds)
    # Check that the runs can be trained before anything is written.
    if options.on == "slurm":
        if options.log != "none":
            raise InputError(
                f"--log {options.log} exports runs that train here; with --on slurm leave it out, "
                f"and give it to `emergo study run {folder.path}` once they are finished"
            )
        studies.check_slurm()
    elif study is not None:
        studies.check_platform(study.runs)
    log = None
    if options.log != "none":
        log = studies.RunLog(options.log, folder)
    if retry:
        _forget_failures(folder)
    plans, runs = _open(folder, study, options, keep)
    keys = [plan.key for plan in plans]
    if log is not None:
        log.group = str(plans[0].study.get("name", log.group))
    before = study_status(folder, keys)
    planned = {str(folder.runs / run.identity) for plan in plans for run in plan.runs}
    for path, why in before.broken.items():
        effect = "; it is moved aside and trained again" if path in planned else ""
        say(f"{path}: cannot be read ({why}){effect}")
    if options.on == "slurm":
        asked = studies.build_slurm(plans[0].study.get("slurm", {}))
        return _submit(folder, plans, asked, options.json)
    deadline = None if options.seconds is None else time.monotonic() + options.seconds
    from ..forecasting import RunForecasts

    try:
        with studies.live_progress(forecaster=RunForecasts()) as watch:
            studies.run_plan(
                folder,
                keys,
                runs,
                watch=watch,
                log=log,
                n_parallel=options.n_parallel,
                deadline=deadline,
                say=say,
            )
            if log is not None:
                log.export(runs)
    except KeyboardInterrupt as stop:
        now = study_status(folder, keys)
        stop.add_note(
            f"{now.finished} of {now.runs} runs are finished; the same command continues from there"
        )
        raise
    return before, study_status(folder, keys)


def _forget_failures(folder: StudyFolder) -> None:
    """Remove the failed runs of a folder and the counts of their failures."""
    rows = store.read_outcomes(folder.runs).rows
    failed = [identity for identity, row in rows.items() if row["state"] == "failed"]
    store.Store(folder.runs).set_aside(*failed)
    for identity in failed:
        store.Failures(folder.failures).forget(identity)
    if failed:
        say(f"{len(failed)} failed runs are trained again")


def _open(
    folder: StudyFolder, study: "Study | None", options: TrainingOptions, keep: bool
) -> tuple[list[Plan], list["Run"]]:
    """Return the plans to train, and their runs."""
    from ..study.plan import runs_of

    if study is not None:
        plan, new = study.open(folder, say)
        if 0 < new < len(plan.runs):
            say(f"{folder.path}: {new} of {len(plan.runs)} runs are new")
        return [plan], list(study.runs)
    plans = folder.read(say)
    runs = {}
    # A run that several plans share is built from the plan that also asks for probes.
    for plan in sorted(plans, key=lambda plan: plan.asks):
        runs |= runs_of(plan, folder.path)
    if options.on == "local":
        studies.check_platform(list(runs.values()))
    if keep:
        plans = [folder.write(plan._replace(study=plan.study | {"keep": True})) for plan in plans]
    return plans, list(runs.values())


def _submit(folder: StudyFolder, plans: Sequence[Plan], asked: "Slurm", as_json: bool) -> None:
    """Submit each plan to Slurm as an array job, and print the jobs."""
    from ..forecasting import RunForecasts

    if asked.setup:
        say(f"runs on the cluster, because the study asks for it: {'; '.join(asked.setup)}")
    jobs = [studies.submit_plan(folder, plan, asked, RunForecasts()) for plan in plans]
    if as_json:
        sent = [
            {"job": job.job, "tasks": job.tasks, "folder": str(job.folder), "out": str(folder.path)}
            for job in jobs
        ]
        return print_json(sent[0] if len(sent) == 1 else {"jobs": sent})
    for job in jobs:
        show(f"array job {job.job}, {job.tasks} tasks, output in {job.folder}")
    show(f"emergo study status {folder.path} --watch   shows the progress")


def counts(status: Status) -> str:
    """Return how many runs ended in which state, in words."""
    parts = [f"{status.reached} reached", f"{status.censored} censored", f"{status.failed} failed"]
    if status.trained:
        parts.insert(2, f"{status.trained} trained without a threshold")
    return f"{status.finished} of {status.runs} runs finished ({', '.join(parts)})"


def print_end(
    folder: StudyFolder, before: Status, now: Status, begun: float, result: Any = None
) -> None:
    """Print the state of a study after training, and how to continue.

    Ends the process with status 1 if every run of the study failed.

    **Arguments:**

    - `begun`: the value of `time.monotonic()` when the command started.
    - `result`: what to print with `--json` instead.
    """
    if result is not None:
        print_json(result)
    else:
        earlier = f" ({before.finished} of them before)" if before.finished else ""
        seconds = duration(time.monotonic() - begun)
        show(f"{counts(now)}{earlier}, {seconds}; kept in {folder.path}")
        show(f"emergo study show {folder.path}   shows the results")
        if not now.complete:
            show("the time is over; the same command continues")
        for line in failed_lines(now):
            show(f"{line}; emergo study run {folder.path} --retry-failed trains them again")
    if now.failed == now.runs:
        raise SystemExit(1)


def failed_lines(status: Status) -> list[str]:
    """Return one line with the most frequent reason of failures, or none without failures."""
    several = ", for example" if len(status.reasons) > 1 else ""
    return [
        f"{counted(status.failed, 'run')} failed{several}: {reason}"
        for reason in [*status.reasons][:1]
    ]


def unverified_lines(count: int) -> list[str]:
    """Return a line about runs without checksums, or none without such runs."""
    verb = "has" if count == 1 else "have"
    return [f"{counted(count, 'run')} {verb} no checksums: unverified"] if count else []


def status_view(status: Status, note: str = "") -> Any:
    """Return what `emergo study status` shows: counts, a row per process, errors, and a note."""
    from rich.console import Group
    from rich.text import Text

    line = f"{status.name}: {counts(status)}"
    if not status.complete:
        line += f", {status.training} in training, {status.waiting} waiting"
    if status.failures > status.failed:
        line += f"; {status.failures} failures{'' if status.complete else ', tried again'}"
    parts: list[Any] = [Text(line)]
    rows = [_worker_row(worker) for worker in status.workers]
    if rows:
        shown = FittedTable(
            *rows[0],
            left=("unit", "host", "note"),
            optional=("process", "job", "last sign", "host", "steps/s", "loss"),
        )
        for row in rows:
            shown.add_row(*row.values())
        parts.append(shown)
    parts += [Text(line) for line in failed_lines(status)]
    parts += [Text(line) for line in unverified_lines(status.unverified)]
    for path, why in status.broken.items():
        parts.append(Text(f"{path}: cannot be read ({why})", style="red"))
    if note:
        parts.append(Text(note))
    return Group(*parts)


def _worker_row(worker: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a row by the names of their columns; `-` is not known yet."""
    steps = f"{worker['step_min']}-{worker['step_max']}"
    known = {
        "unit": worker["unit"],
        "host": worker["host"],
        "process": worker["pid"],
        "job": worker["job"],
        "runs": worker["total"] and f"{worker['done']} of {worker['total']}",
        "step": None if worker["step_min"] is None else steps,
        "loss": None if worker["loss"] is None else f"{worker['loss']:.3f}",
        "note": worker["note"] or None,
        "steps/s": None if worker["rate"] is None else f"{worker['rate']:,.0f}",
        "left": None if worker["seconds_left"] is None else duration(worker["seconds_left"]),
        "last sign": f"{worker['age']:.0f} s ago",
    }
    return {name: "-" if value is None else str(value) for name, value in known.items()}
