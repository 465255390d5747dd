"""Training the studies of a folder: what `emergo train` and `emergo study run` share."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from .._terminal import print_json, say

if TYPE_CHECKING:
    from ..engine import Run
    from ..studies import Plan, Slurm, Status, StudyFolder


def parse_value(word: str) -> Any:
    """A value as a study file would have it; text needs no quotes."""
    for read in (json.loads, float):
        try:
            return read(word)
        except ValueError:
            pass
    return word


def parse_pairs(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Words such as `minutes=60` as a table."""
    pairs = [word.partition("=") for word in words]
    for word, (name, equals, value) in zip(words, pairs, strict=True):
        if not (name and equals and value):
            raise InputError(f"{option} '{word}': write name=value")
    return {name: parse_value(value) for name, _, value in pairs}


def check_positive(**options: float | None) -> None:
    """An `InputError` for an option that must be positive and is not."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise InputError(f"--{name.replace('_', '-')} must be positive, got {value:g}")


def announce_plugins(plugins: Sequence[str]) -> None:
    """Says whose code is about to be run."""
    if plugins:
        say(f"imports {', '.join(plugins)}, as the study asks for")


def execute(
    folder: "StudyFolder",
    keys: Sequence[str],
    known: Mapping[str, "Run"],
    writer: Any,
    n_parallel: int | None = None,
    seconds: float | None = None,
) -> "Status":
    """Trains what is missing of these plans, with a live table; returns how far they are then."""
    from ..studies import Executor, live_progress, study_status

    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        with live_progress() as show:
            options: dict[str, Any] = {"n_parallel": n_parallel, "deadline": deadline, "progress": show, "say": say}
            Executor(folder, keys, known, on_end=writer.write, **options).run()
    except KeyboardInterrupt as stop:
        now = study_status(folder, keys)
        stop.add_note(f"{now.finished} of {now.runs} runs are finished; the same command goes on from there")
        raise
    finally:
        writer.close()
    return study_status(folder, keys)


def submit(folder: "StudyFolder", plans: Sequence["Plan"], asked: "Slurm", as_json: bool) -> None:
    """Submits plans to Slurm, each as an array job, and says so."""
    from ..studies import submit_plan

    jobs = [submit_plan(folder, plan, asked) for plan in plans]
    if as_json:
        sent = [{"job": job.job, "tasks": job.tasks, "folder": str(job.folder), "out": str(folder.path)} for job in jobs]
        return print_json(sent[0] if len(sent) == 1 else {"jobs": sent})
    for job in jobs:
        print(f"array job {job.job}, {job.tasks} tasks, output in {job.folder}")
    print(f"emergo study status {folder.path} --watch   shows how far it is")
