"""Listings of folders, and reasons of errors."""

import os

from emergo.store.reader import IDENTITY, list_names


def test_symlinks_do_not_count_as_folders(tmp_path):
    (tmp_path / ("0" * 16)).mkdir()
    (tmp_path / ("1" * 16)).symlink_to(tmp_path / ("0" * 16))
    (tmp_path / ("2" * 16)).symlink_to("2" * 16)
    (tmp_path / ("3" * 16)).write_text("")
    (tmp_path / "notes").mkdir()
    assert list_names(tmp_path, IDENTITY) == {
        "0" * 16: True,
        "1" * 16: False,
        "2" * 16: False,
        "3" * 16: False,
    }
    broken: dict[str, str] = {}
    (tmp_path / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "absent"):
        assert list_names(tmp_path / name, IDENTITY, broken) == {}
    assert list(broken) == [str(tmp_path / "link"), str(tmp_path / "pipe")]
