import os

import pytest

from emergo._errors import InputError
from emergo._files import output_folder, staged


def test_files_appear_together_in_order_and_leave_no_trace(tmp_path):
    with staged(tmp_path / "new") as stage:
        (stage / "a.txt").write_text("a")
        (stage / "b.txt").write_text("b")
        assert list((tmp_path / "new").glob("*.txt")) == []
    assert sorted(f.name for f in (tmp_path / "new").iterdir()) == ["a.txt", "b.txt"]


def test_a_failure_keeps_the_old_file_whole(tmp_path):
    (tmp_path / "a.txt").write_text("old")

    def write():
        with staged(tmp_path) as stage:
            (stage / "a.txt").write_text("ne")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to this folder"):
        output_folder(tmp_path / "file" / "out")
