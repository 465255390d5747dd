"""Forms of files, and listings of folders."""

import os
import re

import pytest

from emergo.store.reader import IDENTITY, checker, count, list_names, number, scalars, why

FORM = {
    "name": str,
    "id": IDENTITY,
    "runs": [(IDENTITY, count)],
    "more?": {"share": number},
    "columns?": scalars,
}
CHECK = checker(FORM)
GOOD = {
    "name": "a",
    "id": "0" * 16,
    "runs": [["1" * 16, 3, "rest"]],
    "more": {"share": 0.5},
    "columns": {"a": None, "b": 1.5},
}


def test_a_value_of_the_form_passes():
    CHECK(GOOD, "the content")
    CHECK(
        {name: value for name, value in GOOD.items() if name not in ("more", "columns")}
        | {"other": []},
        "the content",
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 3}, "name is of another kind: 3"),
        ({"id": "../../../victim"}, "id is not of the form"),
        ({"id": "0" * 16 + "\n"}, "id is not of the form"),
        ({"runs": {}}, "runs is of another kind"),
        ({"runs": [["1" * 16]]}, "runs is too short"),
        ({"runs": [["1" * 16, True]]}, "runs is not of the form count: True"),
        ({"runs": [["1" * 16, -1]]}, "count: -1"),
        ({"runs": [["1" * 16, 10**19]]}, "count: 1000"),
        ({"more": {}}, "more lacks share"),
        ({"more": {"share": float("inf")}}, "share is not of the form number: inf"),
        ({"more": {"share": "0.5"}}, "share is not"),
        ({"columns": {"a": [1]}}, "columns is not of the form scalars"),
        ({"columns": []}, "columns is not of the form scalars"),
    ],
)
def test_a_mismatch_is_named(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        CHECK(GOOD | changes, "the content")


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="the content lacks id"):
        CHECK({"name": "a"}, "the content")


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


def test_reasons_of_errors():
    assert why(FileNotFoundError(2, "No such file", "/a/run.json")) == "run.json is missing"
    assert why(PermissionError(13, "Permission denied", "/a")) == "Permission denied"
    assert why(ValueError()) == "ValueError"
