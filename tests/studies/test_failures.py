"""Records of failures: one file each, found again whatever else is in their folder."""

import pytest

from emergo._errors import StorageError
from emergo.studies import Failures

ONE, TWO = "0" * 16, "1" * 16


def test_failures_are_counted_read_and_forgotten(tmp_path):
    failures = Failures(tmp_path)
    assert failures.counts() == ({}, {})
    failures.note(ONE, 0, "the loss was not finite", "loss", device="cpu")
    failures.note(ONE, 1, "no memory", "memory")
    failures.note(ONE, 1, "no memory", "memory")  # seen again after an interruption
    failures.note(TWO, 0, "no memory", "memory")
    assert failures.counts() == ({ONE: 2, TWO: 1}, {})
    assert [failures.recorded(ONE, number) for number in range(3)] == [True, True, False]
    record = failures.read(ONE, 0)
    assert (record["kind"], record["reason"], record["try"], record["device"]) == ("loss", "the loss was not finite", 0, "cpu")
    failures.forget(ONE)
    assert failures.counts() == ({TWO: 1}, {})


def test_what_cannot_be_read_is_no_failure_and_named(tmp_path):
    """An empty file, as a full disk leaves it, does not make a run fail that was never trained."""
    failures, path = Failures(tmp_path), tmp_path / f"{ONE}.0.json"
    assert failures.read(ONE, 0) == {}
    for content in ("", "{", "[]", "3", "{}", f'{{"identity": "{ONE}", "try": 1, "kind": "loss", "reason": ""}}'):
        path.write_text(content)
        assert failures.read(ONE, 0) == {}
        assert not failures.recorded(ONE, 0)
        counts, broken = failures.counts()
        assert not counts
        assert list(broken) == [str(path)]
    assert Failures(tmp_path / "absent").counts() == ({}, {})


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(StorageError, match="absent"):
        Failures(tmp_path / "absent").note(ONE, 0, "", "loss")
