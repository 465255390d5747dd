"""The explorer as one file."""

import base64
import gzip
import hashlib
import json
import re

import pytest

import emergo as em
from emergo.view import Catalog, export_page

from .made_up import finish, made_up_study


def content_of(page: str):
    (packed,) = re.findall(r'<script type="application/octet-stream" id="data">(.*?)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture
def page(catalog, tmp_path):
    export_page(catalog, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_it_holds_all_runs_with_curves_laws_and_stages(page):
    data = content_of(page)["data"]["made up"]
    assert len(data["table"]["columns"]["identity"]) == len(data["curves"]) == len(data["configs"]) == 18
    assert len(data["laws"]) == 3
    run = data["table"]["columns"]["identity"][1]
    number, curves = data["curves"][run]
    assert all(len(text.split(",")) == len(data["steps"][number].split(",")) for text in curves.values())
    assert len(data["stages"][run]["drops"]) == 1
    assert len(data["forecasts"]) == 18
    assert {moment["state"] for moment in data["forecasts"][run]["moments"]} == {"no signal", "forecast", "emerged"}


def test_it_asks_nobody_and_runs_only_its_own_script(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)


def test_a_name_in_the_title_is_text(tmp_path):
    folder = tmp_path / "<script>alert(1)</script>".replace("/", "∕")
    folder.mkdir()
    finish(made_up_study(dims=[4], lengths=[8], seeds=1), folder, fail=None)
    export_page(Catalog(folder), tmp_path / "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_curves_are_thinned_until_the_file_is_small_enough(catalog, tmp_path, monkeypatch):
    """benchmarks/view.py has the size with 1,000 runs."""
    whole = export_page(catalog, tmp_path / "page.html")
    monkeypatch.setattr("emergo.view._export.LARGEST", 0)
    small = export_page(catalog, tmp_path / "page.html")
    assert small["points"] == 12
    assert small["bytes"] < whole["bytes"]
    data = content_of((tmp_path / "page.html").read_text())["data"]["made up"]
    assert max(text.count(",") + 1 for text in data["steps"]) <= small["points"]


def test_what_cannot_be_exported(catalog, tmp_path):
    with pytest.raises(em.InputError, match=r"name it like page\.html"):
        export_page(catalog, tmp_path / "page.pdf")
    with pytest.raises(em.InputError, match="no finished runs"):
        export_page(Catalog(tmp_path), tmp_path / "page.html")
