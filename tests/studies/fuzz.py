"""Damage to every kind of file of a study, one at a time, and what the commands make of it.

    python -m tests.studies.fuzz --count 10000 [--first 0] [--train 200]

Mutation number n is drawn with the seed n: a bit or a block of bytes, the end cut off, values of other types, deep nesting,
huge numbers, terminal escapes, foreign files, links, pipes, devices. After each, `status`, `show`, `export` and all that the
page of `view` asks for, or `measure` and `fit`, have to end within seconds with the right rows for what is intact, and `run`
has to finish the study with the table that it would have had; after every tenth also the laws of `view`, `view --export` and
`report`, which take longer. Each mutation is one of these:

- named: what was damaged is named, and counts as not there;
- harmless: nothing is named, and nothing is different;
- gone: a file or folder was removed; its runs count as not finished, or as tried once;
- forged: somebody who can write into the folder has changed a file and its checksum; intact rows are right, no command breaks;
- silent, hung, wrong, crashed: what must not be.

Runs are made up by `crowd.made_up`, so that `run` takes no time; `--train` of the mutations damage a checkpoint of a study that
is really trained, and the study then has to end bit for bit as without.
"""

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import vl_convert

from emergo._errors import InputError, StorageError
from emergo._json import seal
from emergo.cli._figures import Report
from emergo.cli._measure import Fit, Measure
from emergo.cli._study import Export, Show, StatusCommand
from emergo.cli._view import View
from emergo.engine import Trained, save_parameters
from emergo.studies import Failures, Store, StudyFolder, read_outcomes
from emergo.studies import _executor as executor

from .crowd import curves_of, made_up, study
from .fuzz_checkpoints import TrainingLab
from .fuzz_view import explore, unlike
from .mutations import SECONDS, Hung, Mutation, mutate, watchdog
from .tiny import quiet

GOOD, BAD = ("named", "harmless", "gone", "forged"), ("silent", "hung", "wrong", "crashed")
ESCAPES = ("\x1b]0;owned", "\x1b[31m[", "\u202e")


def run_command(command: Any) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command, as `emergo.cli.main` would have them."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.run()
        except InputError as error:
            status = 2
            print(f"emergo: {error}", file=err)
        except StorageError as error:
            status = 1
            print(f"emergo: {error}", file=err)
    return status, out.getvalue(), err.getvalue()


# What is damaged.


class Lab:
    """A study of six runs, five of them finished, with every kind of file; what is read of it; and a place outside that nobody
    may touch."""

    def __init__(self, place: Path) -> None:
        self.place, self.study = place, study(2, 3, unit=3, name="fuzzed")
        self.pristine, self.outside = place / "pristine", place / "outside"
        folder = StudyFolder(self.pristine)
        plan, _ = self.study.open(folder)
        store = Store(folder.runs)
        unfinished = plan.units[0].runs[0].identity  # so that the claim, the failure and the checkpoint of its unit matter
        for run in self.study.runs:
            Store(StudyFolder(place / "whole").runs).write(made_up(run))
            if run.identity != unfinished:
                store.write(made_up(run))
        run = self.kept = next(run for run in self.study.runs if run.identity != unfinished)
        (folder.runs / run.identity / "parameters").mkdir()
        params = run.config.model.init(jax.random.key(0), run.config.task.spec)
        save_parameters(folder.runs / run.identity / "parameters" / "000000025.safetensors", Trained(run, 25, params))
        Failures(folder.failures).note(unfinished, 0, "the loss was not finite", "loss", device="cpu")
        claim = {"token": "t", "host": "node7", "machine": "another", "pid": 7, "start": "1", "job": None, "restarts": 0}
        (folder.claims / f"{plan.units[0].id}.json").write_bytes(seal(claim))
        (folder.checkpoints / f"{plan.units[0].id}.0").mkdir()
        (folder.checkpoints / f"{plan.units[0].id}.0" / "members.json").write_bytes(seal({"members": []}))
        frame = pd.concat(
            [pd.DataFrame({"run": f"r{i}", "dim": 2.0**i, "step": c["step"], "loss": c["loss"]}) for i, c in self._curves()]
        )
        frame.to_csv(self.pristine / "log.csv", index=False)
        frame.to_parquet(self.pristine / "log.parquet", index=False)
        self.outside.mkdir()
        (self.outside / "run.json").write_text("{}")
        (self.outside / "precious.txt").write_text("mine")
        self.read(self.pristine, pages=True)  # makes the index
        os.utime(folder.claims / f"{plan.units[0].id}.json", (0, 0))
        self.expected, runs = self.read(self.pristine), self.study.read(place / "whole")
        self.finished = runs.table, runs.curves
        self.measured = {name: self.measure(self.pristine / name) for name in ("log.csv", "log.parquet")}

    @staticmethod
    def measure(path: Path) -> tuple[int, str, str]:
        return run_command(Measure(logs=(path,), metric="loss", below=0.3, json=True))

    def _curves(self) -> list[tuple[int, Any]]:
        return [(i, curves_of(run)) for i, run in enumerate(r for r in self.study.runs if r.seed % 3)]

    def copy(self, indexed: bool) -> Path:
        """A copy; its index counts for nothing, unless a new one is made."""
        folder = self.place / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.pristine, folder)
        if indexed:
            read_outcomes(folder / "runs")
        return folder

    def read(self, folder: Path, pages: bool = False) -> dict[str, Any]:
        """What every command that reads has to say: table, curves, status, output, messages, exit statuses, the explorer; with
        `pages` also those that write pages."""
        files = [self.place / "table.parquet", self.place / "curves.parquet"]
        for file in files:
            file.unlink(missing_ok=True)
        commands: dict[str, Any] = {
            "status": StatusCommand(folder, json=True),
            "words": StatusCommand(folder),
            "show": Show(folder),
        }
        commands |= {"show json": Show(folder, json=True), "export": Export(folder, files[0], curves=files[1], json=True)}
        if pages:
            written = {"report": self.place / "report.html", "view --export": self.place / "view.html"}
            commands |= {"report": Report(folder, written["report"], json=True)}
            commands |= {"view --export": View(folder, export=written["view --export"], json=True)}
        done = {name: run_command(command) for name, command in commands.items()}
        tables = [pd.read_parquet(file) if file.exists() else pd.DataFrame() for file in files]
        status = json.loads(done["status"][1]) if done["status"][0] == 0 else {}
        return {"table": tables[0], "curves": tables[1], "status": status, "done": done, "view": explore(folder, laws=pages)}


def by_identity(table: pd.DataFrame, columns: list[str] | None = None) -> dict[str, list[Any]]:
    """The rows of each run, every bit of them; of these columns, as one run more or less may change which columns there are."""
    if "identity" not in table:
        return {}
    rows: dict[str, list[Any]] = {}
    names = list(table.columns) if columns is None else columns
    cells = [table[name].tolist() if name in table else [None] * len(table) for name in names]
    for identity, *values in zip(table["identity"].tolist(), *cells, strict=True):
        rows.setdefault(str(identity), []).append([_cell(value) for value in values])
    return rows


def _cell(value: Any) -> str:
    if value is None or value != value or isinstance(value, bool):
        return str(value if isinstance(value, bool) else "-")
    with contextlib.suppress(ValueError):  # one text among numbers makes the others of its column texts
        return repr(float(value))
    return str(value)


def tree(folder: Path) -> list[Any]:
    return sorted(
        (str(p.relative_to(folder)), p.lstat().st_mode, p.read_bytes() if p.is_file() else b"") for p in folder.rglob("*")
    )


# What becomes of it.


def judge(lab: Lab, number: int) -> tuple[str, str, str]:
    """The verdict on mutation `number`, what it was, and more words where it is a bad one."""
    rng, folder, before = random.Random(number), lab.copy(indexed=number % 2 == 0), tree(lab.outside)
    mutation, pages = mutate(rng, folder, lab.outside), number % 10 == 0
    verdict, words = "crashed", ""
    try:
        with watchdog(2 * SECONDS if pages else SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict, words = (
                _judge_log(lab, mutation) if mutation.path.name.startswith("log.") else _judge(lab, folder, mutation, pages)
            )
    except Hung:
        verdict = "hung"
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    if tree(lab.outside) != before:
        verdict, words = "wrong", "something outside was changed"
    return verdict, mutation.what, words


def _judge(lab: Lab, folder: Path, mutation: Mutation, pages: bool) -> tuple[str, str]:
    expected, seen = lab.expected, lab.read(folder, pages)
    output = "".join(text for _, *texts in seen["done"].values() for text in texts)
    for name, (status, out, err) in seen["done"].items():
        if status not in (0, 2) or any(not line.startswith("emergo: ") for line in err.splitlines()):
            return "crashed", f"{name} ended with {status}: {err[:300]}"
        if any(escape in out + err for escape in ESCAPES):
            return "wrong", f"{name} printed a terminal escape"
    relative = list(mutation.path.relative_to(folder).parts)
    damaged = relative[1].partition(".")[0] if len(relative) > 1 and relative[0] in ("runs", "failures") else None
    named = relative[0] in output and (mutation.path.name in output or (bool(damaged) and str(damaged) in output))
    # Without its plan there is no study, and without `failures` nobody knows how often a run was tried.
    all_gone = relative[0] == "studies" or "/".join(relative) in ("runs", "failures") or (mutation.forged and damaged == "")
    different = False
    for what in ("table", "curves"):
        columns = list(expected[what].columns)
        rows, right = by_identity(seen[what], columns), by_identity(expected[what])
        for identity, row in right.items():
            if rows.get(identity) != row:
                different = True
                if identity != damaged and not all_gone:
                    return "wrong", f"{what} of the intact run {identity}"
        if set(rows) - set(right) and not mutation.forged:
            return "wrong", f"{what} has more runs than there are"
    gone = mutation.gone and (relative[0] == "failures" or seen["status"].get("waiting", 2) > 1)
    shown = unlike(seen["view"], expected["view"])
    if not (set(shown) <= {damaged} or all_gone):
        return "wrong", f"view of the intact run {shown}"
    told = mutation.forged or gone or any(name in seen["view"].words for name in (mutation.path.name, str(damaged)))
    if shown and not told:
        return "silent", "view shows another row or curve, or none, and names nothing"
    if different and not named and not mutation.forged and not gone:
        return "silent", "a row is gone or another, and nothing is named"
    if "parameters" in relative:
        named = named or not _same_parameters(lab, folder)
    problem = _finish(lab, folder, mutation)
    if problem:
        return "wrong", problem
    return ("forged" if mutation.forged else "named" if named else "gone" if different else "harmless"), ""


def _same_parameters(lab: Lab, folder: Path) -> bool:
    """Whether they are read, and are those that were written; others are named in an error."""
    stores = [Store(StudyFolder(place).runs) for place in (folder, lab.pristine)]
    try:
        read, right = (jax.tree.leaves(store.parameters(lab.kept).params) for store in stores)
    except InputError as error:
        if str(folder) not in str(error):
            raise
        return False
    assert all(map(np.array_equal, read, right)), "other parameters were read"
    return True


def _finish(lab: Lab, folder: Path, mutation: Mutation) -> str:
    """What is wrong after `run` has finished the study; a plan that somebody forged may ask for something else."""
    lines: list[str] = []
    try:
        lab.study.run(folder, progress=quiet, say=lines.append, stale=0.0)
    except InputError as error:
        known = ("written by a later version", "cannot be read (")
        return "" if mutation.forged and any(words in str(error) for words in known) else f"run: {error}"
    runs = lab.study.read(folder)
    right, true = (by_identity(rows) for rows in lab.finished)
    table, curves = (
        by_identity(new, list(old.columns)) for new, old in zip((runs.table, runs.curves), lab.finished, strict=True)
    )
    if mutation.forged and mutation.path.name in ("run.json", ".index.json"):
        identity = mutation.path.parent.name
        table, right, curves, true = ({k: v for k, v in rows.items() if k != identity} for rows in (table, right, curves, true))
    return "" if (table, curves) == (right, true) else "run did not finish the study with its table"


def _judge_log(lab: Lab, mutation: Mutation) -> tuple[str, str]:
    path, out = mutation.path, lab.place / "measured"
    shutil.rmtree(out, ignore_errors=True)
    measured = lab.measure(path)
    fitted = run_command(Fit(path, "loss", ("dim",), resamples=20, out=out, json=True))
    for status, text, err in (measured, fitted):
        if status not in (0, 2) or err.count("\n") > 1 or any(escape in text + err for escape in ESCAPES):
            return "crashed", f"{status}: {err[:300]}"
    if path.name in measured[2]:
        return "named", ""
    # A log has no checksum: other numbers are other numbers.
    return ("harmless" if measured == lab.measured[path.name] else "forged"), ""


# All together.


@contextlib.contextmanager
def labs(place: Path) -> Iterator[Lab]:
    """The engine makes runs up meanwhile, and the script of a report, which takes a second to make, is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "train", lambda runs, *, on_end, **_: [on_end(made_up(run)) for run in runs] and [])
        patch.setattr(vl_convert, "javascript_bundle", functools.cache(vl_convert.javascript_bundle))
        yield Lab(place)


def survey(count: int, first: int = 0, train: int = 0, say: Callable[[str], None] = print) -> collections.Counter[str]:
    """How many mutations had which verdict; bad ones are said with their number."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    verdicts: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()

    def note(number: int, verdict: str, what: str, words: str) -> None:
        verdicts[verdict] += 1
        if verdict in BAD:
            say(f"{number}: {verdict}: {what}: {words}")
        if sum(verdicts.values()) % 500 == 0:
            say(f"{sum(verdicts.values())} mutations, {time.monotonic() - begun:.0f} s: {dict(verdicts)}")

    try:
        with labs(place) as lab:
            for number in range(first, first + count):
                note(number, *judge(lab, number))
        if train:
            training = TrainingLab(place)
            for number in range(first, first + 10 * train):
                note(number, *training.judge_read(number))
            for number in range(first, first + train):
                note(number, *training.judge(number))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return verdicts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="mutations of files of a finished study and of logs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument(
        "--train", type=int, default=0, help="mutations of checkpoints followed by training; ten times as many are read"
    )
    options = parser.parse_args()
    counts = survey(options.count, options.first, options.train)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in (*GOOD, *BAD)))
    raise SystemExit(any(counts[verdict] for verdict in BAD))
