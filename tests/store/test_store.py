"""Finished runs on disk: stored completely or not at all, and unchanged when read."""

import hashlib
import json
import os
import threading

import numpy as np
import pytest

from emergo.core.errors import InputError, StorageError
from emergo.store import Store, curve_frame, read_outcomes
from emergo.store.curves import curves_from
from emergo.store.outcomes import outcome_row

from ..study.tiny import rewrite
from .examples import KINDS, content, curves, same_curves

RUN = content()["identity"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_read_as_it_was_written(tmp_path, kind):
    store = Store(tmp_path / "new" / "store")
    assert RUN not in store
    folder = store.write(content(kind), curves(kind))
    assert RUN in store
    run = store.read(RUN)
    assert repr(run.row) == repr(outcome_row(content(kind)))
    assert run.provenance == {"device": "cpu"}
    same_curves(run, curves(kind))
    assert store.read(RUN, curves=False).curves is None
    assert sorted(p.name for p in folder.iterdir()) == ["curves.parquet", "run.json"]
    assert repr(read_outcomes(store.folder).rows) == repr({RUN: run.row})
    json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)  # such as NaN


def test_curves_written_with_the_defaults_of_pandas_are_read(tmp_path):
    """As older versions wrote them: with dictionaries, statistics and two more schemas."""
    store = Store(tmp_path)
    file = store.write(content(), curves()) / "curves.parquet"
    size = file.stat().st_size
    curve_frame(curves()).to_parquet(file, index=False)
    assert file.stat().st_size > 1.5 * size
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    rewrite(file.with_name("run.json"), files={file.name: checksum})
    same_curves(store.read(RUN), curves())


def test_a_run_without_curves(tmp_path):
    store = Store(tmp_path)
    store.write(content("failed") | {"curves": []}, None)
    assert store.read(RUN).curves is None


def test_empty_and_missing_folders_have_no_outcomes(tmp_path):
    assert read_outcomes(tmp_path) == read_outcomes(tmp_path / "absent") == ({}, {}, {}, {})


def test_a_failed_rename_leaves_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(StorageError, match="the disk is gone"):
        store.write(content(), curves())
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []
    with pytest.raises(InputError, match=RUN):
        store.read(RUN)
    store.write(content(), curves())
    assert RUN in store


def test_the_first_of_two_writes_wins(tmp_path):
    """Two processes compute the same; here the runs differ, to tell them apart."""
    store = Store(tmp_path)
    store.write(content("censored"), curves("censored"))
    store.write(content("reached"), curves("reached"))
    assert store.read(RUN).row["state"] == "censored"
    assert os.listdir(tmp_path) == [RUN]


def test_threads_that_write_the_same_run_leave_one(tmp_path):
    store = Store(tmp_path)
    begin = threading.Barrier(8)
    errors = []

    def write():
        begin.wait()
        try:
            store.write(content(), curves())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert os.listdir(tmp_path) == [RUN]
    same_curves(store.read(RUN), curves())


def test_a_damaged_run_is_moved_aside_by_the_next_write(tmp_path):
    store = Store(tmp_path)
    folder = store.write(content("censored"), curves())
    (folder / "run.json").write_text("{")
    assert store.has_entry(RUN)
    assert RUN not in store
    store.write(content("reached"), curves())
    assert store.read(RUN).row["state"] == "reached"
    assert len(list(tmp_path.glob(".broken-*/run.json"))) == 1


def test_a_folder_that_is_not_writable_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Store(tmp_path / "file").write(content(), curves())


def test_a_run_that_is_set_aside_keeps_its_files(tmp_path):
    store = Store(tmp_path)
    store.write(content(), curves())
    store.set_aside(RUN)
    assert not store.has_entry(RUN)
    assert not read_outcomes(tmp_path).rows
    [aside] = tmp_path.glob(".aside*")
    assert (aside / "run.json").exists()


def test_snapshots_become_part_of_the_finished_run(tmp_path):
    store = Store(tmp_path)
    for step in (0, 50):
        store.snapshot_path(RUN, step).write_text(str(step))
    assert store.steps(RUN) == []  # not before the run is finished
    store.write(content(), curves())
    assert store.steps(RUN) == [0, 50]
    for step, text in ((None, "50"), (0, "0")):
        with store.parameters(RUN, step) as path:
            assert path.read_text() == text
    for run, step, why in (
        (RUN, 25, "no parameters of step 25; kept are 0, 50"),
        ("0" * 16, None, "no parameters were kept; train the study with keep=True"),
    ):
        with pytest.raises(InputError, match=why), store.parameters(run, step):
            pass


def test_curves_become_a_table_and_return():
    frame = curve_frame(curves())
    assert {"step", "loss", "attention_0_0", "attention_1_2", "loss_single"} <= set(frame.columns)
    back = curves_from(frame)
    assert set(back) == set(curves())
    for name, values in curves().items():
        np.testing.assert_array_equal(back[name], values)
    assert curve_frame(None).empty
