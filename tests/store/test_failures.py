"""Records of failed attempts: one file each."""

import pytest

from emergo.core.errors import StorageError
from emergo.store import Failures

ONE = "0" * 16
TWO = "1" * 16


def test_failures_are_counted_read_and_forgotten(tmp_path):
    failures = Failures(tmp_path)
    assert failures.counts() == ({}, {})
    failures.note(ONE, 0, "the loss was not finite", "loss", device="cpu")
    failures.note(ONE, 1, "no memory", "memory")
    failures.note(ONE, 1, "no memory", "memory")  # repeated after an interruption
    failures.note(TWO, 0, "no memory", "memory")
    assert failures.counts() == ({ONE: 2, TWO: 1}, {})
    assert [failures.recorded(ONE, number) for number in range(3)] == [True, True, False]
    record = failures.read(ONE, 0)
    assert (record["kind"], record["reason"], record["try"], record["device"]) == (
        "loss",
        "the loss was not finite",
        0,
        "cpu",
    )
    failures.forget(ONE)
    assert failures.counts() == ({TWO: 1}, {})


def test_unreadable_records_are_named_and_not_counted(tmp_path):
    """A full disk may leave an empty file, which must not count as a failure."""
    failures = Failures(tmp_path)
    path = tmp_path / f"{ONE}.0.json"
    assert failures.read(ONE, 0) == {}
    for content in (
        "",
        "{",
        "[]",
        "3",
        "{}",
        f'{{"identity": "{ONE}", "try": 1, "kind": "loss", "reason": ""}}',
    ):
        path.write_text(content)
        assert failures.read(ONE, 0) == {}
        assert not failures.recorded(ONE, 0)
        counts, broken = failures.counts()
        assert not counts
        assert list(broken) == [str(path)]
    assert Failures(tmp_path / "absent").counts() == ({}, {})


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match="absent"):
        Failures(tmp_path / "absent").note(ONE, 0, "", "loss")
