"""Fuzzing of stored studies: damage one file at a time and run the commands on the rest.

    python -m tests.store.fuzz --count 20000 [--first 0] [--train 200]

Mutation number n is drawn with seed n: changed bits or blocks of bytes, truncation, values of other
types, deep nesting, huge numbers, terminal escapes, foreign files, symlinks, pipes, devices, and
valid files with absurd values. Every third changes records, a folder of figures or a watched log,
see `fuzz_gallery.py`. After each of the others:

- `status`, `show`, `export` and all requests of the explorer (or `measure` and `fit`, for logs)
  must end within seconds with the right rows for the intact runs,
- `run` must finish the study with the table that it would have had,
- every tenth time, `view --export`, the explorer's laws and `pack` must work too.

The verdict on a mutation is one of these:

- named: the damaged file is named and not used,
- harmless: nothing is named and nothing differs,
- gone: a file or folder was removed; its runs count as unfinished, or as tried less often,
- forged: the file and its checksum were changed together; intact rows are right,
- silent, hung, wrong, crashed: a bug.

Runs are made up by `crowd.made_up`, so `run` takes no time. `--train` mutations damage a checkpoint
of a study that is really trained. The study must then end bit for bit as without damage.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import vl_convert
from matplotlib.figure import Figure

from emergo import measure
from emergo.cli._measure import Fit, Measure
from emergo.cli._study import Export, Pack, Show, StatusCommand
from emergo.cli._view import View
from emergo.core.errors import InputError, StorageError
from emergo.core.json import seal
from emergo.core.terminal import safe
from emergo.store import Failures, Store, StudyFolder, read_outcomes
from emergo.store.packing import pack_runs
from emergo.study import executor
from emergo.study.results import read_parameters, save_snapshot, write_result

from ..study.crowd import curves_of, made_up, study
from ..study.tiny import quiet
from .fuzz_checkpoints import TrainingLab
from .fuzz_gallery import Gallery
from .fuzz_view import differing, explore
from .mutations import SECONDS, Hung, Mutation, mutate, watchdog
from .test_claims import ELSEWHERE

GOOD = ("named", "harmless", "gone", "forged")
BAD = ("silent", "hung", "wrong", "crashed")
ESCAPES = ("\x1b]0;owned", "\x1b[31m[", "\u202e")
LOGS = ("log.csv", "log.parquet")
RUNS_OF_LOG = 4


def run_command(command: Any) -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error of a command."""
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.run()
        except (InputError, StorageError) as error:
            status = 2 if isinstance(error, InputError) else 1
            print(f"emergo: {safe(str(error))}", file=err)  # as `emergo.cli.main` does
    return status, out.getvalue(), err.getvalue()


class Lab:
    """A study of six runs with every kind of file, what is read of it, and a place outside.

    Five runs are finished, and three of them packed. The sixth has a claim, a failure and a
    checkpoint.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.study = study(2, 3, unit=3, name="fuzzed")
        self.pristine = place / "pristine"
        self.outside = place / "outside"
        folder = StudyFolder(self.pristine)
        plan, _ = self.study.open(folder)
        unit = plan.units[0]
        unfinished = unit.runs[0].identity
        store = Store(folder.runs)
        self.kept = next(run for run in self.study.runs if run.identity != unfinished)
        params = self.kept.config.model.init(jax.random.key(0), self.kept.config.task.spec)
        save_snapshot(store, self.kept, 25, params)
        for run in self.study.runs:
            write_result(Store(StudyFolder(place / "whole").runs), made_up(run))
            if run.identity not in (unfinished, self.kept.identity):
                write_result(store, made_up(run))
                if len(list(folder.runs.glob("[0-9a-f]*"))) == 3:
                    pack_runs(folder.runs)
        write_result(store, made_up(self.kept))
        Failures(folder.failures).note(unfinished, 0, "the loss was not finite", "loss")
        claim = folder.claims / f"{unit.id}.json"
        claim.write_bytes(seal(ELSEWHERE))
        checkpoint = folder.checkpoints / f"{unit.id}.0"
        checkpoint.mkdir()
        (checkpoint / "members.json").write_bytes(seal({"members": []}))
        self.loose = [path.name for path in folder.runs.glob("[0-9a-f]*")]
        self._write_logs()
        self.outside.mkdir()
        (self.outside / "run.json").write_text("{}")
        (self.outside / "precious.txt").write_text("mine")
        self.read(self.pristine, pages=True)  # makes the index
        os.utime(claim, (0, 0))
        self.expected = self.read(self.pristine)
        runs = self.study.read(place / "whole")
        self.finished = (by_identity(runs.table), by_identity(runs.curves))
        self.columns = [[str(name) for name in table] for table in (runs.table, runs.curves)]
        self.gallery = Gallery(place, run_command)
        self.measured = {name: self.measure(self.pristine / name) for name in LOGS}

    def _write_logs(self) -> None:
        frames = []
        for i, run in enumerate(run for run in self.study.runs if run.seed % 3):
            curves = curves_of(run)
            log = {"run": f"r{i}", "dim": 2.0**i, "step": curves["step"], "loss": curves["loss"]}
            frames.append(pd.DataFrame(log))
        frame = pd.concat(frames)
        frame.to_csv(self.pristine / "log.csv", index=False)
        frame.to_parquet(self.pristine / "log.parquet", index=False)

    @staticmethod
    def measure(path: Path) -> tuple[int, str, str]:
        return run_command(Measure(logs=(path,), metric="loss", below=0.3, json=True))

    def copy(self, indexed: bool) -> Path:
        """Return a copy of the study. Copied indexes are ignored, so `indexed` makes a new one."""
        folder = self.place / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.pristine, folder)
        if indexed:
            read_outcomes(folder / "runs")
        return folder

    def read(self, folder: Path, pages: bool = False) -> dict[str, Any]:
        """Return what all reading commands say: tables, status, output, the explorer.

        **Arguments:**

        - `pages`: also write a page and fit laws, which takes longer.
        """
        files = {name: self.place / f"{name}.parquet" for name in ("table", "curves")}
        for file in files.values():
            file.unlink(missing_ok=True)
        commands: dict[str, Any] = {
            "status": StatusCommand(folder, json=True),
            "words": StatusCommand(folder),
            "show": Show(folder),
            "show json": Show(folder, json=True),
            "export": Export(folder, to=files["table"], curves=files["curves"], json=True),
        }
        if pages:
            commands["view --export"] = View(folder, export=self.place / "view.html", json=True)
        done = {name: run_command(command) for name, command in commands.items()}
        tables = {
            name: pd.read_parquet(file) if file.exists() else pd.DataFrame()
            for name, file in files.items()
        }
        status = json.loads(done["status"][1]) if done["status"][0] == 0 else {}
        return tables | {"status": status, "done": done, "view": explore(folder, laws=pages)}


def by_identity(table: pd.DataFrame, columns: list[str] | None = None) -> dict[str, list[Any]]:
    """Return the rows of each run with all bits.

    **Arguments:**

    - `columns`: the columns to compare. One run more or less may change which columns exist.
    """
    if "identity" not in table:
        return {}
    rows: dict[str, list[Any]] = {}
    names = list(table.columns) if columns is None else columns
    cells = [table[name].tolist() if name in table else [None] * len(table) for name in names]
    for identity, *values in zip(table["identity"].tolist(), *cells, strict=True):
        rows.setdefault(str(identity), []).append([_cell(value) for value in values])
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if value is None or value != value:
        return "-"
    with contextlib.suppress(ValueError):
        return repr(float(value))  # one string in a column of numbers makes all of them strings
    return str(value)


def tree(folder: Path) -> list[Any]:
    return sorted(
        (str(p.relative_to(folder)), p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in folder.rglob("*")
    )


def judge(lab: Lab, number: int) -> tuple[str, str, str]:
    """Return the verdict on mutation `number`, its description, and the details of a bug."""
    if number % 3 == 2:
        return lab.gallery.judge(number)
    folder = lab.copy(indexed=number % 2 == 0)
    before = tree(lab.outside)
    mutation = mutate(random.Random(number), folder, lab.outside)
    pages = number % 10 == 0
    verdict = "crashed"
    words = ""
    try:
        with watchdog(2 * SECONDS if pages else SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if mutation.path.name in LOGS:
                verdict, words = _judge_log(lab, mutation)
            else:
                verdict, words = _judge_study(lab, folder, mutation, pages)
    except Hung:
        verdict = "hung"
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    if tree(lab.outside) != before:
        verdict = "wrong"
        words = "something outside was changed"
    return verdict, mutation.what, words


def _judge_study(lab: Lab, folder: Path, mutation: Mutation, pages: bool) -> tuple[str, str]:
    expected = lab.expected
    seen = lab.read(folder, pages)
    output = ""
    for name, (status, out, err) in seen["done"].items():
        output += out + err
        lines = err.splitlines()
        if status not in (0, 2) or not all(line.startswith("emergo: ") for line in lines):
            return "crashed", f"{name} ended with {status}: {err[:300]}"
        if any(escape in out + err for escape in ESCAPES):
            return "wrong", f"{name} printed a terminal escape"

    relative = list(mutation.path.relative_to(folder).parts)
    damaged = None  # the run that the file belongs to
    if len(relative) > 1 and relative[0] in ("runs", "failures"):
        damaged = relative[1].partition(".")[0]
    names = [mutation.path.name, *([damaged] if damaged else [])]
    # These hold something about every run.
    whole = relative[0] == "studies" or "/".join(relative) in ("runs", "failures")
    if relative[:2] == ["runs", "packs"]:  # any of the packed runs may be missing, but not changed
        packed = {run.identity for run in lab.study.runs} - {*lab.loose}
        damaged = None
        whole = True
        names += packed
    whole = whole or (mutation.forged and damaged == "")
    named = relative[0] in output and any(name in output for name in names)
    different = False
    for what in ("table", "curves"):
        rows = by_identity(seen[what], list(expected[what].columns))
        right = by_identity(expected[what])
        changed = {identity for identity, row in right.items() if rows.get(identity) != row}
        different = different or bool(changed)
        if changed - {damaged} and not whole:
            return "wrong", f"{what} of the intact runs {changed - {damaged}}"
        if relative[:2] == ["runs", "packs"] and changed & (rows.keys() | {*lab.loose}):
            return "wrong", f"{what} of packed runs {changed & rows.keys()}"
        if set(rows) - set(right) and not mutation.forged:
            return "wrong", f"{what} has more runs than the study"
    gone = mutation.gone and (relative[0] == "failures" or seen["status"].get("waiting", 2) > 1)
    shown = differing(seen["view"], expected["view"])
    if not (set(shown) <= {damaged} or whole):
        return "wrong", f"view of the intact run {shown}"
    excused = mutation.forged or gone
    if shown and not excused and not any(name in seen["view"].words for name in names):
        return "silent", "view differs and names nothing"
    if different and not excused and not named:
        return "silent", "a row differs and nothing is named"
    if "parameters" in relative:
        named = named or not _same_parameters(lab, folder)
    problem = _finish(lab, folder, mutation, pages)
    if problem:
        return "wrong", problem
    if mutation.forged:
        return "forged", ""
    return "named" if named else "gone" if different else "harmless", ""


def _same_parameters(lab: Lab, folder: Path) -> bool:
    """Return True if the parameters are unchanged, False if an error names them."""
    stores = [Store(StudyFolder(place).runs) for place in (folder, lab.pristine)]
    try:
        models = [read_parameters(store, lab.kept).params for store in stores]
    except InputError as error:
        if str(folder) not in str(error):
            raise
        return False
    assert all(map(np.array_equal, *map(jax.tree.leaves, models))), "other parameters were read"
    return True


def _finish(lab: Lab, folder: Path, mutation: Mutation, packs: bool) -> str:
    """Finish the study and return what is wrong. A forged plan may be refused.

    **Arguments:**

    - `packs`: pack its runs, too.
    """
    try:
        lab.study.run(folder, progress=quiet, say=lambda line: None, stale=0.0)
    except InputError as error:
        refused = ("written by a later version", "cannot be read")
        if mutation.forged and any(words in str(error) for words in refused):
            return ""
        return f"run: {error}"
    if packs:
        status, _, err = run_command(Pack(folder))
        if status:
            return f"pack: {err}"
    runs = lab.study.read(folder)
    excepted = ""
    if mutation.forged and mutation.path.name in ("run.json", ".index.json"):
        excepted = mutation.path.parent.name

    def intact(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        return {identity: row for identity, row in rows.items() if identity != excepted}

    for new, right, columns in zip(
        (runs.table, runs.curves), lab.finished, lab.columns, strict=True
    ):
        if intact(by_identity(new, columns)) != intact(right):
            return "run did not finish the study with its table"
    return ""


def _judge_log(lab: Lab, mutation: Mutation) -> tuple[str, str]:
    path = mutation.path
    out = lab.place / "measured"
    shutil.rmtree(out, ignore_errors=True)
    measured = lab.measure(path)
    fitted = run_command(Fit(path, "loss", ("dim",), resamples=100, out=out, json=True))
    for status, text, err in (measured, fitted):
        escaped = any(escape in text + err for escape in ESCAPES)
        # An error is one line. If the command succeeds, each run may have a line, e.g. on restarts.
        most = 1 if status else RUNS_OF_LOG
        if status not in (0, 2) or err.count("\n") > most or escaped:
            return "crashed", f"{status}: {err[-300:]}"
    if path.name in measured[2]:
        return "named", ""
    # A log has no checksum, so changed numbers cannot be noticed.
    return ("harmless" if measured == lab.measured[path.name] else "forged"), ""


@contextlib.contextmanager
def labs(place: Path) -> Iterator[Lab]:
    """Make a lab whose runs are made up.

    To save time, the script of exported pages is bundled only once, laws have few resamples, and
    their plots are laid out but not written.
    """
    bundle = functools.cache(vl_convert.javascript_bundle)
    fit_law = measure.fit_law

    def fit_quickly(*arguments: Any, **options: Any) -> Any:
        return fit_law(*arguments, **(options | {"resamples": 100}))

    def lay_out(figure: Figure, stem: Path) -> None:
        figure.draw_without_rendering()

    def train(runs, *, on_end, **_):
        for run in runs:
            on_end(made_up(run))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "train", train)
        patch.setattr(vl_convert, "javascript_bundle", bundle)
        patch.setattr(measure, "fit_law", fit_quickly)
        patch.setattr("emergo.core.plotting.save", lay_out)
        yield Lab(place)


def survey(count: int, first: int = 0, train: int = 0) -> collections.Counter[str]:
    """Judge mutations, print the bugs, and return the number of each verdict."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    verdicts: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()

    def note(number: int, verdict: str, what: str, words: str) -> None:
        verdicts[verdict] += 1
        done = verdicts.total()
        if verdict in BAD:
            print(f"{number}: {verdict}: {what}: {words}", flush=True)
        if done % 100 == 0:
            print(
                f"{done} mutations, {time.monotonic() - begun:.0f} s: {dict(verdicts)}", flush=True
            )

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="mutations of files")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument(
        "--train", type=int, default=0, help="damaged checkpoints; ten times as many are only read"
    )
    options = parser.parse_args()
    counts = survey(options.count, options.first, options.train)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in (*GOOD, *BAD)))
    raise SystemExit(any(counts[verdict] for verdict in BAD))
