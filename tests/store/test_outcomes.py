"""The outcomes of many runs, and the index that makes them quick to read."""

import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from emergo.store import Store, StudyFolder, read_outcomes
from emergo.store.index import INDEX
from emergo.store.outcomes import is_finished, outcome_row
from emergo.study.results import write_result

from ..study.crowd import made_up, study
from ..study.tiny import rewrite
from .examples import content, curves

KINDS = ("reached", "at once", "censored", "trained", "failed", "reached")


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    for seed, kind in enumerate(KINDS):
        store.write(content(kind, seed), curves(kind, seed))
    return store


def outcomes(folder) -> str:
    """Return what is read from a folder as text, in which NaN equals NaN."""
    return repr(read_outcomes(folder))


def entries(store):
    return json.loads((store.folder / INDEX).read_text())["runs"]


def test_the_index_changes_nothing(store):
    first = outcomes(store.folder)
    assert (store.folder / INDEX).exists()
    assert outcomes(store.folder) == first
    assert len(read_outcomes(store.folder).rows) == 6
    (store.folder / INDEX).unlink()
    assert outcomes(store.folder) == first


def forge(store):
    """Let the index contradict the files of a run, with a valid checksum; return the run."""
    read_outcomes(store.folder)
    runs = entries(store)
    name = content()["identity"]
    runs[name][1]["outcome"] |= {"time": 12.5, "low": 12.5, "high": 12.5}
    rewrite(store.folder / INDEX, runs=runs)
    return name


def test_the_index_is_used_while_the_files_are_unchanged(store):
    name = forge(store)
    path = store.folder / name / "run.json"
    assert read_outcomes(store.folder).rows[name]["plateau"] == 12.5
    forge(store)
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # hides all but ctime
    assert read_outcomes(store.folder).rows[name]["plateau"] != 12.5


def test_an_index_that_was_copied_is_ignored(store, tmp_path):
    """Copies by `cp -a`, `rsync -a` and `tar` keep all times, but not the inodes."""
    name = forge(store)
    shutil.copytree(store.folder, tmp_path / "copy")
    assert read_outcomes(tmp_path / "copy").rows[name]["plateau"] != 12.5


GOOD = {"seed": 0, "columns": {}, "outcome": content()["outcome"], "provenance": {"device": "cpu"}}


@pytest.mark.parametrize(
    "entry",
    [
        3,
        [],
        {},
        ["stamp", {}],
        ["stamp", GOOD],
        ["right", GOOD | {"seed": "\x1b[31m"}],
        ["right", GOOD | {"outcome": GOOD["outcome"] | {"time": "soon"}}],
    ],
)
def test_malformed_entries_of_the_index_are_ignored(store, entry):
    expected = outcomes(store.folder)
    runs = entries(store)
    name, (stamp, *_) = next(iter(runs.items()))
    if isinstance(entry, list) and entry[:1] == ["right"]:
        entry = [stamp, *entry[1:]]
    rewrite(store.folder / INDEX, runs=runs | {name: entry})
    assert outcomes(store.folder) == expected


def test_the_index_keeps_the_types_of_columns(store):
    """1, 1.0 and True are equal and differ in a table; so do 0.0 and -0.0."""
    name = content()["identity"]
    path = store.folder / name / "run.json"
    for value in (1, 1.0, True, 0.0, -0.0):
        rewrite(path, columns=content()["columns"] | {"gain": value})
        (store.folder / INDEX).unlink(missing_ok=True)
        for _ in range(2):  # from the file, then from the index
            assert repr(read_outcomes(store.folder).rows[name]["gain"]) == repr(value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99, "runs": {}}'])
def test_a_damaged_index_is_replaced(store, text):
    expected = outcomes(store.folder)
    (store.folder / INDEX).write_text(text)
    assert outcomes(store.folder) == expected
    assert len(entries(store)) == 6


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("reached", (48.0, 25.0, 50.0)),
        ("at once", (0.0, float("-inf"), 0.0)),
        ("censored", (50.0, 50.0, float("inf"))),
    ],
)
def test_rows_restore_infinite_numbers(kind, numbers):
    row = outcome_row(content(kind))
    assert (row["plateau"], row["plateau_low"], row["plateau_high"]) == numbers


def test_a_column_of_the_config_does_not_replace_the_outcome(store):
    name = content()["identity"]
    expected = read_outcomes(store.folder).rows[name]
    forged = dict.fromkeys(("identity", "seed", "plateau", "state", "reason"), "forged")
    path = store.folder / name / "run.json"
    rewrite(path, columns=content()["columns"] | forged)
    row = read_outcomes(store.folder).rows[name]
    assert {key: repr(value) for key, value in row.items()} == {
        key: repr(value) for key, value in expected.items()
    }


# Changes of a run, and the reason why it cannot be read.
IMPOSSIBLE = [
    ({"outcome": {"state": "exhausted"}}, "state 'exhausted'"),
    ({"outcome": {"state": "censored"}, "columns": {"threshold": None}}, "without a threshold"),
    ({"outcome": {"time": None}}, "its state is reached, and its plateau None"),
    ({"outcome": {"state": "trained"}}, "its state is trained, and its plateau 48.0"),
    ({"outcome": {"low": 60.0, "high": 70.0}}, "its plateau is not within its interval"),
    ({"outcome": {"time": 10**400}}, "more than 64 bits"),
    ({"outcome": {"steps": "many"}}, "steps is not of the form count: 'many'"),
    ({"outcome": {"steps": True}}, "steps is not of the form count: True"),
    ({"columns": {"dim": [1, 2]}}, "columns is not of the form scalars"),
    ({"seed": 77}, "belong to another run"),
    ({"config": {"batch": 33}}, "belong to another run"),
    ({"semantics": None}, "semantics is not of the form count"),
    ({"files": {"curves.parquet": "0" * 64}}, "curves.parquet has another checksum"),
    ({"provenance": {"device": {}}}, "device is of another kind: {}"),
    ({"curves": 3}, "curves is of another kind: 3"),
]


@pytest.mark.parametrize(("changes", "reason"), IMPOSSIBLE)
def test_a_forged_run_is_named_with_the_reason(store, changes, reason):
    """The checksum of `run.json` is valid."""
    run = content()
    changes = {
        key: run[key] | value if isinstance(value, dict) and key in run else value
        for key, value in changes.items()
    }
    rewrite(store.folder / run["identity"] / "run.json", **changes)
    assert not is_finished(store.folder, run["identity"])
    rows, broken, *_ = read_outcomes(store.folder)
    assert len(rows) == 5
    assert list(broken) == [str(store.folder / run["identity"])]
    assert reason in next(iter(broken.values()))


def test_every_changed_bit_of_a_run_is_noticed(store):
    name = content()["identity"]
    rng = random.Random(0)
    for path in (store.folder / name).iterdir():
        data = path.read_bytes()
        for _ in range(200):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            assert not is_finished(store.folder, name)
        path.write_bytes(data)
        assert is_finished(store.folder, name)


def test_runs_of_schema_2_without_checksums_are_readable_and_checked(store):
    run = content()
    path = store.folder / run["identity"] / "run.json"
    for changes, valid in (
        ({"schema": 2}, True),
        ({"schema": 2, "seed": 5}, False),
        ({"schema": 3}, False),
    ):
        path.write_text(json.dumps(run | changes))
        assert is_finished(store.folder, run["identity"]) == valid


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (("status", "{folder}"), {"jax", "scipy", "matplotlib", "pandas", "pyarrow", "numpy"}),
        (
            ("export", "{folder}", "--to", "{folder}/t.csv", "--curves", "{folder}/c.csv"),
            {"jax", "scipy", "matplotlib"},
        ),
    ],
)
def test_commands_that_read_do_not_import_heavy_libraries(tmp_path, command, heavy):
    folder = StudyFolder(tmp_path)
    runs = study(1, 2)
    runs.open(folder)
    write_result(Store(folder.runs), made_up(runs.runs[0]))
    words = ["study", *(word.format(folder=tmp_path) for word in command)]
    code = f"""
import sys
from emergo.cli import main
main({words})
print(sorted({heavy} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
