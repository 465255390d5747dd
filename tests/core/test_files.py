import errno
import os
from pathlib import Path

import pytest

from emergo.core.errors import InputError, StorageError
from emergo.core.files import is_folder, output_folder, own_folder, read_regular, remove, staged


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


def odd_things(folder: Path) -> dict[str, Path]:
    """Create things that are not regular files of a small size."""
    things = {name: folder / name for name in ("pipe", "loop", "link", "folder", "huge")}
    os.mkfifo(things["pipe"])
    things["loop"].symlink_to("loop")
    (folder / "target").write_text("mine")
    things["link"].symlink_to("target")
    things["folder"].mkdir()
    things["huge"].touch()
    os.truncate(things["huge"], 2**40)
    return things


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    """The pipe lacks a writer, so that reading it would hang."""
    for name, path in odd_things(tmp_path).items():
        with pytest.raises(ValueError, match=name):
            read_regular(path, 100)
    assert read_regular(tmp_path / "target", 4) == b"mine"
    with pytest.raises(ValueError, match="target has 4 bytes; at most 3 are read"):
        read_regular(tmp_path / "target", 3)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent", 3)


@pytest.mark.parametrize("name", ["pipe", "loop", "link", "huge"])
def test_what_is_in_the_place_of_a_folder_is_moved_aside_and_never_what_a_link_points_to(
    tmp_path, name
):
    path = odd_things(tmp_path)[name]
    aside = own_folder(path)
    assert aside is not None
    assert is_folder(path)
    assert os.path.lexists(aside)
    assert aside.name.startswith(".broken-")
    assert (tmp_path / "target").read_text() == "mine"
    assert own_folder(path) is None


def test_removing_does_not_follow_links(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("mine")
    (tmp_path / "folder").mkdir()
    for link in (tmp_path / "link", tmp_path / "folder" / "link"):
        link.symlink_to(tmp_path / "victim")
    for path in (tmp_path / "link", tmp_path / "folder", tmp_path / "absent"):
        remove(path)
    assert sorted(os.listdir(tmp_path)) == ["victim"]
    assert (tmp_path / "victim" / "precious").read_text() == "mine"


def _full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["mkdtemp", "replace", "block"])
def test_a_full_disk_is_named_when_files_are_staged(tmp_path, monkeypatch, call):
    def write():
        with staged(tmp_path) as stage:
            (stage / "a.txt").write_text("new")
            if call == "block":
                _full()

    (tmp_path / "a.txt").write_text("old")
    if call != "block":
        monkeypatch.setattr("tempfile.mkdtemp" if call == "mkdtemp" else "os.replace", _full)
    with pytest.raises(StorageError, match=r"No space left on device.*free some space") as caught:
        write()
    assert str(caught.value).startswith(f"{tmp_path}: cannot be written")
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(errno.EPIPE, "gone"), FileNotFoundError(errno.ENOENT, "none", "font.ttf")],
)
def test_other_errors_in_a_staged_block_pass_unchanged(tmp_path, error):
    with pytest.raises(type(error)), staged(tmp_path):
        raise error
