"""The outcomes of many runs at a glance, and the index that makes them quick to read."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from emergo.studies import Store, StudyFolder, read_outcomes
from emergo.studies._outcomes import INDEX, is_finished, outcome_row, read_run

from .crowd import made_up, study
from .tiny import rewrite


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for run in study(2, 3).runs:
        store.write(made_up(run))
    return store


def test_the_index_changes_nothing(store):
    first = read_outcomes(store.folder)
    assert (store.folder / INDEX).exists()
    assert read_outcomes(store.folder) == first
    assert len(first.rows) == 6
    (store.folder / INDEX).unlink()
    assert read_outcomes(store.folder) == first


def forged(store):
    """The name of a run of which the index says something else than its files, with a checksum that is right."""
    read_outcomes(store.folder)
    runs = json.loads((store.folder / INDEX).read_text())["runs"]
    name = next(name for name, (_, _, values) in runs.items() if values[0] == "reached")
    runs[name][2][1:4] = [12345.0] * 3
    rewrite(store.folder / INDEX, runs=runs)
    return name


def test_the_index_is_what_is_read_while_files_are_as_they_were(store):
    """A row of it counts only as long as the inodes, sizes and times of its files do, and never for `run`."""
    name = forged(store)
    path = store.folder / name / "run.json"
    assert read_outcomes(store.folder).rows[name]["plateau"] == 12345.0
    assert read_outcomes(store.folder, index=False).rows[name]["plateau"] != 12345.0
    forged(store)
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # all that can be set is as it was
    assert read_outcomes(store.folder).rows[name]["plateau"] != 12345.0


def test_an_index_that_came_with_its_folder_counts_for_nothing(store, tmp_path_factory):
    """Copied with all its times, as `cp -a`, `rsync -a` and `tar` do: the inodes are others."""
    name, elsewhere = forged(store), tmp_path_factory.mktemp("elsewhere") / "runs"
    shutil.copytree(store.folder, elsewhere)
    assert read_outcomes(elsewhere).rows[name]["plateau"] != 12345.0


@pytest.mark.parametrize("entry", [3, [], {}, ["stamp", {}], ["stamp", {}, [1]], ["stamp", [], ["reached"] * 9], "forged"])
def test_an_entry_of_the_index_without_the_form_of_a_run_is_passed_over(store, entry):
    """Also where its stamp is right and only a number is none."""
    expected = read_outcomes(store.folder)
    runs = json.loads((store.folder / INDEX).read_text())["runs"]
    name, (stamp, columns, values) = next(iter(runs.items()))
    entry = [stamp, columns, [values[0], "\x1b[31m", *values[2:]]] if entry == "forged" else entry
    rewrite(store.folder / INDEX, runs=runs | {name: entry})
    assert read_outcomes(store.folder) == expected


def test_a_row_agrees_with_its_run(store):
    rows = read_outcomes(store.folder).rows
    for run in study(2, 3).runs:
        result, row = store.read(run), rows[run.identity]
        assert (row["state"], row["steps"], row["seed"]) == (result.state, result.steps, run.seed)
        assert (row["plateau"], row["plateau_low"], row["plateau_high"]) == result.plateau[:3]
        assert row["dim"] == run.config.task.spec.inputs - 1
        assert is_finished(store.folder, run.identity)
        assert outcome_row(read_run(store.folder / run.identity, run.identity)) == row


@pytest.mark.parametrize(
    ("state", "given", "numbers"),
    [
        ("reached", (5, 4, 6), (5.0, 4.0, 6.0)),
        ("reached", (0, None, 0), (0.0, float("-inf"), 0.0)),
        ("censored", (9, 9, None), (9.0, 9.0, float("inf"))),
    ],
)
def test_json_has_null_for_what_is_not_finite(state, given, numbers):
    outcome = dict(zip(("time", "low", "high"), given, strict=True)) | {"state": state, "steps": 9, "failed_step": None}
    row = outcome_row({"identity": "", "columns": {}, "seed": 0, "outcome": outcome, "provenance": {}})
    assert (row["plateau"], row["plateau_low"], row["plateau_high"]) == numbers


def test_no_column_of_a_config_takes_the_place_of_what_became_of_the_run(store):
    name, right = next(iter(read_outcomes(store.folder).rows.items()))
    path = store.folder / name / "run.json"
    columns = json.loads(path.read_text())["columns"]
    rewrite(path, columns=columns | dict.fromkeys(("identity", "seed", "plateau", "state", "reason"), "forged"))
    row = read_outcomes(store.folder).rows[name]
    assert {column: repr(value) for column, value in row.items()} == {column: repr(value) for column, value in right.items()}


def test_a_state_that_is_none_of_the_four_cannot_be_read(store):
    name = next(iter(read_outcomes(store.folder).rows))
    path = store.folder / name / "run.json"
    rewrite(path, outcome=json.loads(path.read_text())["outcome"] | {"state": "exhausted"})
    assert not is_finished(store.folder, name)
    assert list(read_outcomes(store.folder).broken.values()) == ["state 'exhausted'"]


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (("status", "{folder}"), {"jax", "scipy", "matplotlib", "pandas", "pyarrow", "numpy"}),
        (("export", "{folder}", "--to", "{folder}/t.csv", "--curves", "{folder}/c.csv"), {"jax", "scipy", "matplotlib"}),
    ],
)
def test_reading_does_not_wait_for_what_it_does_not_need(tmp_path, command, heavy):
    folder, runs = StudyFolder(tmp_path), study(1, 2)
    runs.open(folder)
    Store(folder.runs).write(made_up(runs.runs[0]))
    words = ["study", *(word.format(folder=tmp_path) for word in command)]
    code = f"import sys; from emergo.cli import main; main({words}); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_runs_of_a_cell_share_their_columns_in_the_index_to_the_bit(store):
    """Cells are told apart by the bits of their values, not by what is equal: 1, 1.0 and True are three, 0.0 and -0.0 two."""
    name = next(iter(read_outcomes(store.folder).rows))
    path = store.folder / name / "run.json"
    for other in (1, 1.0, True, 0.0, -0.0):
        rewrite(path, columns=json.loads(path.read_text())["columns"] | {"gain": other})
        (store.folder / INDEX).unlink(missing_ok=True)
        for _ in range(2):  # from the file, then from the index
            assert repr(read_outcomes(store.folder).rows[name]["gain"]) == repr(other)
    index = json.loads((store.folder / INDEX).read_text())
    assert len(index["columns"]) == 3 < len(index["runs"]) == 6
