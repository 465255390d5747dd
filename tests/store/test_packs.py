"""Packed runs: every reader reads them, damage is contained, and no interruption loses a run."""

import json
import math
import os
import random
import shutil
import zipfile

import pandas as pd
import pytest

from emergo.cli import main
from emergo.core.errors import InputError
from emergo.measure import Emergence
from emergo.store import Failures, Store, StudyFolder, read_outcomes, study_status
from emergo.store.outcomes import is_finished
from emergo.store.packing import pack_runs
from emergo.study import executor, run_plan, study_curves, study_table
from emergo.study.results import write_result
from emergo.view import Catalog

from ..study.crowd import made_up, slow_train, study
from ..study.test_survival import crowd, quick_disk
from ..study.tiny import quiet
from .examples import content, curves

__all__ = ["quick_disk"]
STUDY = study(2, 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A study whose runs are finished, in folders."""
    monkeypatch.setattr(executor, "train", slow_train)
    folder = StudyFolder(tmp_path / "study")
    STUDY.open(folder)
    for run in STUDY.runs:
        write_result(Store(folder.runs), made_up(run))
    return folder


def packs(folder):
    return sorted((folder.runs / "packs").glob("*.zip"))


def everything(folder):
    """Return what all readers say."""
    [plan] = folder.read()
    runs = STUDY.read(folder.path)
    [shown] = Catalog(folder.path).sets().values()
    return (
        study_table(folder, plan),
        study_curves(folder, plan),
        runs.table,
        runs.curves,
        pd.DataFrame(study_status(folder).data()["reasons"], index=[0]),
        pd.DataFrame(shown.columns),
        pd.concat(pd.DataFrame(shown.curves.read(run)) for run in shown.runs),
        pd.DataFrame([shown.config(run) for run in shown.runs]).astype(str),
    )


def test_every_reader_reads_packed_runs(folder):
    before = everything(folder)
    status = study_status(folder)
    packed = pack_runs(folder.runs, 4)
    assert (packed.runs, packed.packs, packed.left) == (6, 2, {})
    assert [name for name in os.listdir(folder.runs) if name[0] != "."] == ["packs"]
    for _ in range(2):  # with the index that was written while packing, and without it
        for table, expected in zip(everything(folder), before, strict=True):
            pd.testing.assert_frame_equal(table, expected)
        assert study_status(folder) == status
        (folder.runs / ".index.json").unlink()
    trained = []
    run_plan(folder, on_end=trained.append)
    assert not trained


def test_a_pack_unpacks_with_the_usual_tool(folder, tmp_path):
    before = {path.name: path.read_bytes() for path in folder.runs.glob("[0-9a-f]*/*")}
    files = {p.relative_to(folder.runs): p.read_bytes() for p in folder.runs.glob("[0-9a-f]*/*")}
    pack_runs(folder.runs)
    [pack] = packs(folder)
    zipfile.ZipFile(pack).extractall(tmp_path / "out")
    out = tmp_path / "out"
    assert {p.relative_to(out): p.read_bytes() for p in out.glob("*/*")} == files
    assert set(before) == {"run.json", "curves.parquet"}
    for run in STUDY.runs:
        assert is_finished(out, run.identity)


def test_parameters_and_failures_are_packed_with_their_run(tmp_path):
    store = Store(tmp_path)
    run = content("failed")
    for step in (0, 50):
        store.snapshot_path(run["identity"], step).write_text(str(step))
    store.write(run, curves("failed"))
    pack_runs(tmp_path)
    assert store.steps(run["identity"]) == [0, 50]
    with store.parameters(run["identity"]) as path:
        assert path.read_text() == "50"
    assert not path.exists()
    assert store.read(run["identity"]).row["reason"] == run["outcome"]["reason"]


def test_a_changed_name_of_a_file_in_the_list_of_a_pack_is_noticed(tmp_path):
    """The name stands twice: in the list, and before the file."""
    store = Store(tmp_path)
    run = content("reached")
    store.snapshot_path(run["identity"], 50).write_text("50")
    store.write(run, curves("reached"))
    pack_runs(tmp_path)
    [pack] = (tmp_path / "packs").glob("*.zip")
    head, mark, end = pack.read_bytes().rpartition(b"000000050")
    pack.write_bytes(head + b"000000051" + end)
    assert store.steps(run["identity"]) == [51]
    with (
        pytest.raises(InputError, match=f"{mark[:-1].decode()}.* is not where {pack.name} says"),
        store.parameters(run["identity"]),
    ):
        pass


def test_packs_that_are_not_full_are_packed_again(folder):
    for run in STUDY.runs[3:]:
        shutil.rmtree(folder.runs / run.identity)
    pack_runs(folder.runs, 4)
    first = packs(folder)
    assert pack_runs(folder.runs, 4)[:2] == (0, 1)
    assert packs(folder) == first  # nothing to do
    for run in STUDY.runs[3:]:
        write_result(Store(folder.runs), made_up(run))
    assert pack_runs(folder.runs, 4)[:2] == (3, 2)
    assert not set(first) & set(packs(folder))
    assert sorted(len(zipfile.ZipFile(pack).namelist()) for pack in packs(folder)) == [4, 8]
    assert study_status(folder).complete


def test_folders_with_other_files_and_damaged_runs_are_left_alone(folder):
    other, damaged = (folder.runs / run.identity for run in STUDY.runs[:2])
    (other / "notes.txt").write_text("mine")
    (damaged / "curves.parquet").write_bytes(b"PAR1")
    packed = pack_runs(folder.runs)
    assert packed.runs == 4
    assert set(packed.left) == {other.name, damaged.name}
    assert (other / "notes.txt").read_text() == "mine"
    assert study_status(folder).finished == 5
    assert list(study_status(folder).broken) == [str(damaged)]


def test_a_damaged_run_in_a_pack_is_named_and_trained_again(folder):
    before = everything(folder)
    pack_runs(folder.runs)
    [pack] = packs(folder)
    run = STUDY.runs[3].identity
    info = zipfile.ZipFile(pack).getinfo(f"{run}/curves.parquet")
    data = bytearray(pack.read_bytes())
    data[info.header_offset + 300] ^= 1
    pack.write_bytes(data)
    status = study_status(folder)
    assert list(status.broken) == [str(folder.runs / run)]
    assert status.finished == 5
    with pytest.warns(UserWarning, match=f"{run}.*curves.parquet was damaged or changed in"):
        assert len(study_table(folder, folder.read()[0])) == 5
    STUDY.run(folder.path, progress=quiet)
    for table, expected in zip(everything(folder), before, strict=True):
        pd.testing.assert_frame_equal(table, expected)
    assert pack_runs(folder.runs)[:2] == (1, 1)
    assert not study_status(folder).broken
    assert len(list((folder.runs / "packs").glob(".broken-*"))) == 1  # nothing is thrown away
    for table, expected in zip(everything(folder), before, strict=True):
        pd.testing.assert_frame_equal(table, expected)


END = b"PK\5\6"


def _with_comment(data, entry):
    """Let a comment of the first file take the place of the other files in the list."""
    return data[: entry + 32] + b"\0\x20" + data[entry + 34 :]


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no pack": lambda data: b"mine" * 100,
    "longer": lambda data: data + b" ",
    "a comment": lambda data: data[:-2] + b"\4\0" + b"mine",
    "a long list": lambda data: data[:-10] + b"\xff\xff\xff\x7f" + data[-6:],
    "a foreign file": lambda data: data.replace(b"/run.json", b"/run.jsom"),
    "a comment in the list": lambda data: _with_comment(data, data.index(b"PK\1\2")),
    "64 bits": lambda data: data[:-22] + b"PK\6\7" + bytes(16) + data[-22:],
    "link": None,
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "huge": lambda path: os.truncate(path, 2**41),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_an_unusable_pack_is_named_moved_aside_and_trained_again(folder, tmp_path, kind):
    before = everything(folder)
    pack_runs(folder.runs, 3)
    pack = packs(folder)[0]
    data = pack.read_bytes()
    if kind in ("pipe", "folder"):
        pack.unlink()
        DAMAGE[kind](pack)
    elif kind == "huge":
        DAMAGE[kind](pack)
    elif kind == "link":
        pack.rename(tmp_path / "outside.zip")
        pack.symlink_to(tmp_path / "outside.zip")
    else:
        pack.write_bytes(DAMAGE[kind](data))
    status = study_status(folder)
    assert list(status.broken) == [str(pack)]
    assert status.finished == 3
    lines = []
    STUDY.run(folder.path, progress=quiet, say=lines.append)
    assert any(str(pack) in line and "moved aside" in line for line in lines)
    assert not study_status(folder).broken
    for table, expected in zip(everything(folder), before, strict=True):
        pd.testing.assert_frame_equal(table, expected)
    if kind == "link":
        assert (tmp_path / "outside.zip").read_bytes() == data


def test_a_pack_whose_files_overlap_is_refused(folder):
    """It would hold thousands of runs that have to be read, in a file of the size of one."""
    pack_runs(folder.runs)
    [pack] = packs(folder)
    with zipfile.ZipFile(pack, "a") as file:
        info = file.getinfo(f"{STUDY.runs[0].identity}/run.json")
        for number in range(300):
            again = zipfile.ZipInfo(f"{number:016x}/run.json")
            for name in ("CRC", "file_size", "compress_size", "header_offset", "external_attr"):
                setattr(again, name, getattr(info, name))
            file.filelist.append(again)
        file.comment = b""  # so that the list is written again
    status = study_status(folder)
    assert status.broken == {str(pack): "its files overlap"}
    assert status.finished == 0


def test_packs_are_not_read_or_written_through_a_link(folder, tmp_path):
    """The folder of the runs leads to another store."""
    pack_runs(folder.runs, 2)
    (folder.runs / ".index.json").unlink()
    sent = StudyFolder(tmp_path / "sent")
    STUDY.open(sent)
    sent.runs.rmdir()
    sent.runs.symlink_to(folder.runs)
    before = sorted(folder.runs.rglob("*"))
    status = study_status(sent)
    assert (status.finished, status.broken) == (0, {str(sent.runs): "it should be a folder"})
    with pytest.raises(SystemExit) as stop:
        main(["study", "pack", str(sent.path)])
    assert stop.value.code == 2
    assert sorted(folder.runs.rglob("*")) == before


def test_every_changed_bit_of_a_pack_is_noticed_or_harmless(folder):
    """Times and permissions in a ZIP file are not read."""
    pack_runs(folder.runs)
    (folder.runs / ".index.json").unlink()
    [pack] = packs(folder)
    data = pack.read_bytes()
    rows = repr(read_outcomes(folder.runs, form=True).rows)
    rng = random.Random(0)
    noticed = 0
    for _ in range(60):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        pack.write_bytes(changed)
        outcomes = read_outcomes(folder.runs, form=True)
        noticed += bool(outcomes.broken)
        assert outcomes.broken or len(outcomes.rows) < 6 or repr(outcomes.rows) == rows
        assert all(repr(row) in rows for row in outcomes.rows.values())
    assert noticed > 40


def test_the_index_of_packs_is_used_while_they_are_unchanged(folder):
    pack_runs(folder.runs)
    [pack] = packs(folder)
    read_outcomes(folder.runs)
    before = pack.stat()
    data = bytearray(pack.read_bytes())
    data[2000] ^= 1
    pack.write_bytes(data)
    os.utime(pack, ns=(before.st_atime_ns, before.st_mtime_ns))  # hides all but ctime
    assert read_outcomes(folder.runs).broken


def test_the_command_packs_and_says_so(folder, capsys):
    main(["study", "pack", str(folder.path), "--json"])
    assert json.loads(capsys.readouterr().out) == {"runs": 6, "packs": 1, "left": {}}
    main(["study", "pack", str(folder.path)])
    out = capsys.readouterr().out
    assert out == f"0 runs packed; 1 pack in {folder.runs / 'packs'}\n"
    with pytest.raises(SystemExit) as stop:
        main(["study", "pack", str(folder.path / "absent")])
    assert stop.value.code == 2


def test_failed_runs_are_taken_out_of_their_pack_to_be_trained_again(folder, monkeypatch):
    run = STUDY.runs[2]
    shutil.rmtree(folder.runs / run.identity)
    failed = made_up(run)._replace(state="failed", reason="no reason")
    nothing = Emergence(math.nan, math.nan, math.nan, "failed")
    failed = failed._replace(plateau=nothing)
    write_result(Store(folder.runs), failed)
    Failures(folder.failures).note(run.identity, 0, "no reason", "loss")
    pack_runs(folder.runs)
    assert study_status(folder).reasons == {"no reason": 1}
    main(["study", "run", str(folder.path), "--retry-failed", "--json"])
    status = study_status(folder)
    assert (status.failed, status.finished) == (0, 6)
    assert len(list(folder.runs.glob(".aside*/run.json"))) == 1
    assert len(zipfile.ZipFile(packs(folder)[0]).namelist()) == 10


@pytest.mark.slow
def test_no_interruption_of_packing_loses_or_changes_a_run(quick_disk):
    """A kill at every write, and a full disk at every third. The sixth run is written in between,
    and the third one is set aside at the end."""
    answer = crowd("packing", quick_disk)
    third, sixth = answer["runs"][2], answer["runs"][5]
    states = answer["states"]
    for act, least in (("die", 50), ("full_disk", 15)):
        assert sum(state["act"] == act for state in states) > least
    for state in states:
        assert not any(state[key] for key in ("wrong", "wrong after", "broken", "broken after"))
        assert set(state["missing"]) <= {third, sixth}
        assert len(state["missing"]) < 2
        assert state["missing after"] == state["missing"]
        assert (state["again"], state["again after"]) == (0, 0)
        assert state["left"] == ["packs"]
        assert state["ended"] in ((0, 9) if state["act"] == "die" else (0, 5 << 8, 6 << 8))
    assert next(state["missing"] for state in states if state["ended"] == 0) == [third]
