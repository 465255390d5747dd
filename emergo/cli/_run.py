"""What `emergo train` and the commands of `emergo study` share: reading options, training, saying how far studies are."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import studies
from .._errors import InputError
from .._json import check_plain
from .._terminal import counted, duration, print_json, say, show, table
from ..studies import Plan, Status, StudyFolder, study_status

if TYPE_CHECKING:
    from ..engine import Result, Run
    from ..studies import Slurm, Study


def parse_value(word: str) -> Any:
    """A value as a study file would have it; text needs no quotes."""
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
    option: str, words: Sequence[str], form: str = "name=value", read: Callable[[str], Any] = parse_value
) -> list[tuple[str, Any]]:
    """Words such as `minutes=60`, taken apart; `read` raises a `ValueError` for a value that is none."""
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
    """An `InputError` for an option that must be positive and is not."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise InputError(f"--{name.replace('_', '-')} must be positive, got {value:g}")


def check_output_table(option: str, out: Path, columns: Collection[str]) -> None:
    """An `InputError` where a table of these columns cannot be written, or would be written over anything but such a table."""
    from .._tables import CSV, PARQUET, read_table

    if os.path.isdir(out):
        raise InputError(f"{option} {out}: this is a folder; name a file, e.g. {out / 'runs.csv'}")
    if out.suffix.lower() not in CSV + PARQUET:
        raise InputError(f"{option} {out}: expected the name of a file that ends in .csv or .parquet")
    if not os.path.exists(out):
        return
    try:
        ours = set(columns) <= set(read_table(out).columns)
    except InputError:
        ours = False
    if not ours:
        raise InputError(f"{option} {out}: this file is there and is no table of this command; choose another name")


def announce_plugins(plugins: Sequence[str]) -> None:
    """Says whose code is about to be run."""
    if plugins:
        say(f"imports {', '.join(plugins)}, as the study asks for")


def find_writer(folder: StudyFolder, study: "Study | None", options: Any) -> Any:
    """What else to write of the runs, if they can be trained as the options say; an `InputError` before anything is written."""
    if options.on == "slurm":
        studies.check_slurm()
    elif study is not None:
        studies.check_platform(study.runs)
    return studies.find_writer(options.log, folder)


def train_studies(folder: StudyFolder, study: "Study | None", writer: Any, options: Any) -> tuple[Status, Status] | None:
    """Trains what is missing of a study, by default of all in the folder, with a live table, or sends it to Slurm. Returns how
    far it was and is. `options` are those of the command: `on`, `n_parallel`, `seconds`, `keep`, `json`."""
    plans, known = _open(folder, study, options)
    keys, deadline = [plan.key for plan in plans], None if options.seconds is None else time.monotonic() + options.seconds
    before = study_status(folder, keys)
    planned = {str(folder.runs / run.identity) for plan in plans for run in plan.runs}
    for path, why in before.broken.items():
        say(f"{path}: cannot be read ({why}){'; it is moved aside and trained again' if path in planned else ''}")
    if options.on == "slurm":
        asked = study.slurm if study is not None else studies.slurm_of(plans[0])
        if asked.setup:
            say(f"runs on the cluster, as the study asks for: {'; '.join(asked.setup)}")
        return _submit(folder, plans, asked, options.json)
    try:
        with studies.live_progress() as watch:

            def ended(result: "Result") -> None:
                watch.ended(result)
                writer(result)

            watch.begin(list(known.values()), lambda: studies.read_outcomes(folder.runs).rows)
            more: dict[str, Any] = {"n_parallel": options.n_parallel, "deadline": deadline, "say": say}
            studies.Executor(folder, keys, known, on_end=ended, progress=watch.training, **more).run()
    except KeyboardInterrupt as stop:
        now = study_status(folder, keys)
        stop.add_note(f"{now.finished} of {now.runs} runs are finished; the same command goes on from there")
        raise
    return before, study_status(folder, keys)


def _open(folder: StudyFolder, study: "Study | None", options: Any) -> tuple[list[Plan], dict[str, "Run"]]:
    """The plans to train, and their runs by identity."""
    from ..studies._plan import runs_of

    if study is not None:
        plan, new = study.open(folder, say)
        if 0 < new < len(plan.runs):
            say(f"{folder.path}: {new} of {len(plan.runs)} runs are new")
        return [plan], {run.identity: run for run in study.runs}
    plans, known = folder.read(say), {}
    for plan in plans:
        known |= runs_of(plan, folder.path)
    if options.on == "local":
        studies.check_platform(list(known.values()))
    if options.keep:
        plans = [folder.write(plan._replace(study=plan.study | {"keep": True})) for plan in plans]
    return plans, known


def _submit(folder: StudyFolder, plans: Sequence[Plan], asked: "Slurm", as_json: bool) -> None:
    """Submits plans to Slurm, each as an array job, and says so."""
    jobs = [studies.submit_plan(folder, plan, asked) for plan in plans]
    if as_json:
        sent = [{"job": job.job, "tasks": job.tasks, "folder": str(job.folder), "out": str(folder.path)} for job in jobs]
        return print_json(sent[0] if len(sent) == 1 else {"jobs": sent})
    for job in jobs:
        show(f"array job {job.job}, {job.tasks} tasks, output in {job.folder}")
    show(f"emergo study status {folder.path} --watch   shows how far it is")


def counts(status: Status) -> str:
    parts = [f"{status.reached} reached", f"{status.censored} censored", f"{status.failed} failed"]
    if status.trained:
        parts.insert(2, f"{status.trained} trained without a threshold")
    return f"{status.finished} of {status.runs} runs finished ({', '.join(parts)})"


def print_end(folder: StudyFolder, before: Status, now: Status, seconds: float) -> None:
    """How far a study is after training, and how to go on."""
    there = f" ({before.finished} were there)" if before.finished else ""
    show(f"{counts(now)}{there}, {duration(seconds)}; kept in {folder.path}")
    show(f"emergo study show {folder.path}   shows what came out")
    if not now.complete:
        show("the time is over; the same command goes on")
    for line in failed_lines(now):
        show(f"{line}; emergo study run {folder.path} --retry-failed begins them anew")


def exit_if_all_failed(now: Status) -> None:
    """Ends the process with status 1 where every run of a study failed."""
    if now.failed == now.runs:
        raise SystemExit(1)


def failed_lines(status: Status) -> list[str]:
    """Why runs failed, in one line; none where none did."""
    several = ", for example" if len(status.reasons) > 1 else ""
    return [f"{counted(status.failed, 'run')} failed{several}: {reason}" for reason in [*status.reasons][:1]]


def status_view(status: Status, note: str = "") -> Any:
    """One line on the whole, one row per process at work, what is wrong, and a note."""
    from rich.console import Group
    from rich.text import Text

    line = f"{status.name}: {counts(status)}"
    if not status.complete:
        line += f", {status.training} in training, {status.waiting} waiting"
    if status.failures > status.failed:
        line += f"; {status.failures} failures{'' if status.complete else ', tried again'}"
    parts: list[Any] = [Text(line)]
    if status.workers:
        heads = ("unit", "host", "process", "job", "runs", "step", "loss", "forecast", "steps/s", "left", "last sign")
        shown = table(*heads, left=("unit", "host", "forecast"))
        for worker in status.workers:
            shown.add_row(*_worker_words(worker))
        parts.append(shown)
    parts += [Text(line) for line in failed_lines(status)]
    parts += [Text(f"{path}: cannot be read ({why})", style="red") for path, why in status.broken.items()]
    if note:
        parts.append(Text(note))
    return Group(*parts)


def _worker_words(worker: dict[str, Any]) -> list[str]:
    def words(value: Any, form: str) -> str:
        return "-" if value is None else form.format(value)

    step = "-" if worker["step_min"] is None else f"{worker['step_min']}-{worker['step_max']}"
    runs = "compiling" if worker["total"] is None else f"{worker['done']} of {worker['total']}"
    left = "-" if worker["seconds_left"] is None else duration(worker["seconds_left"])
    first = [worker["unit"], str(worker["host"]), str(worker["pid"]), worker["job"] or "-", runs, step]
    first += [words(worker["loss"], "{:.3f}"), worker["forecast"] or "-"]
    return [*first, words(worker["rate"], "{:,.0f}"), left, f"{worker['age']:.0f} s ago"]
