"""Test the explorer as one file."""

import base64
import gzip
import hashlib
import json
import re

import pytest

import emergo as em
from emergo.view import Catalog, export_page

from .made_up import finish, made_up_study

DATA = re.compile(r'<script type="application/octet-stream" id="data">(.*?)</script>')


def data_of(page: str):
    (packed,) = DATA.findall(page)
    return json.loads(gzip.decompress(base64.b64decode(packed)))["data"]["made up"]


@pytest.fixture
def page(catalog, tmp_path):
    export_page(catalog, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_the_file_holds_all_runs_with_curves_laws_stages_and_forecasts(page):
    data = data_of(page)
    run = data["table"]["columns"]["identity"][1]
    for name in ("curves", "configs", "forecasts", "stages"):
        assert len(data[name]) == 18, name
    assert len(data["laws"]) == 3
    number, curves = data["curves"][run]
    count = data["steps"][number].count(",")
    assert all(text.count(",") == count for text in curves.values())
    assert len(data["stages"][run]["drops"]) == 1
    states = {moment["state"] for moment in data["forecasts"][run]["moments"]}
    assert states == {"no signal", "coming", "forecast", "emerged"}


def test_the_policy_allows_the_files_own_script_only(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)


def test_markup_in_a_name_is_escaped(tmp_path):
    folder = tmp_path / "<script>alert(1)<∕script>"
    folder.mkdir()
    finish(made_up_study(dims=[4], lengths=[8], seeds=1), folder, fail=None)
    export_page(Catalog(folder), tmp_path / "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_curves_are_thinned_until_the_file_is_small_enough(catalog, tmp_path, monkeypatch):
    """`benchmarks/view.py` measures the size with 1,000 runs."""
    whole = export_page(catalog, tmp_path / "page.html")
    monkeypatch.setattr("emergo.view._export.LARGEST", 0)
    small = export_page(catalog, tmp_path / "page.html")
    assert small["points"] == 12
    assert small["bytes"] < whole["bytes"]
    steps = data_of((tmp_path / "page.html").read_text())["steps"]
    assert max(text.count(",") + 1 for text in steps) <= small["points"]


def test_a_wrong_name_and_an_empty_folder_are_errors(catalog, tmp_path):
    with pytest.raises(em.InputError, match=r"name it like page\.html"):
        export_page(catalog, tmp_path / "page.pdf")
    with pytest.raises(em.InputError, match="no finished runs"):
        export_page(Catalog(tmp_path), tmp_path / "page.html")
