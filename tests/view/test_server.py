"""The server: what it hands out, and what it does not."""

import json
import os

import numpy as np
import pytest

from emergo.view import Catalog
from emergo.view._server import STATIC, make_app

from . import asking
from .made_up import finish, made_up_study


def ask(path, catalog, method="GET", **parameters):
    return asking.ask(make_app(catalog, "token"), path, method, params=parameters, headers={"x-emergo-token": "token"})


def test_the_page_and_its_files(catalog):
    page = ask("/", catalog)
    assert page.headers["content-type"].startswith("text/html")
    for file in ("app.js", "style.css", "vendor/uplot.js", "icon.svg"):
        assert f"/static/{file}" in page.text or file == "vendor/uplot.js"
        assert ask(f"/static/{file}", catalog).content == (STATIC / file).read_bytes()


TRAVERSALS = [
    "../_server.py",
    "..%2f_server.py",
    "%2e%2e/_server.py",
    "vendor/../../_server.py",
    "/etc/passwd",
    "vendor/LICENSE",
    "",
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_other_file(catalog, name):
    answer = ask(f"/static/{name}", catalog)
    assert answer.status_code == 404 or answer.content == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_it_only_reads(catalog, method):
    assert ask("/api/index", catalog, method).status_code == 405


def test_runs_and_their_curves(catalog):
    table = ask("/api/runs", catalog, set="made up").json()
    runs = table["columns"]["identity"]
    assert len(runs) == 18
    assert "layers" in table["constants"]
    answer = ask(
        "/api/curves", catalog, set="made up", name="loss", points=20, runs=",".join([runs[1], "none", "../../etc"])
    ).content
    count, *lengths = np.frombuffer(answer[:16], "<u4").tolist()
    assert (count, lengths[1:]) == (3, [0, 0])
    assert 2 < lengths[0] <= 20
    x, y = np.frombuffer(answer[16:], "<f4").reshape(2, -1)
    assert x[0] == 0
    assert y[0] == pytest.approx(1)


def test_a_run_of_another_folder_is_no_run(tmp_path, folder):
    """A name with `..` in it could lead to curves outside."""
    finish(made_up_study(dims=[4], lengths=[8], seeds=1), tmp_path / "in", fail=None)
    outside = next((folder / "runs").glob("[0-9a-f]*"))
    name = os.path.relpath(outside, tmp_path / "in" / "runs")
    assert (tmp_path / "in" / "runs" / name / "curves.parquet").is_file()
    catalog = Catalog(tmp_path / "in")
    answer = ask("/api/curves", catalog, set="made up", runs=name)
    assert np.frombuffer(answer.content, "<u4").tolist() == [1, 0]
    assert ask("/api/run", catalog, set="made up", run=name).status_code == 400
    assert ask("/api/stages", catalog, set="made up", run=name).json()["drops"] == []


def test_trouble_is_one_line(catalog, monkeypatch):
    monkeypatch.setattr("emergo.view._server.overview", lambda catalog: [][0])
    answer = ask("/api/index", catalog)
    assert (answer.status_code, answer.json()) == (500, {"error": "IndexError: list index out of range"})


def test_one_run_its_stages_and_a_law(catalog):
    run = ask("/api/runs", catalog, set="made up").json()["columns"]["identity"][1]
    assert ask("/api/run", catalog, set="made up", run=run).json()["identity"] == run
    assert len(ask("/api/stages", catalog, set="made up", run=run).json()["drops"]) == 1
    assert ask("/api/forecast", catalog, set="made up", run=run).json()["moments"][-1]["state"] == "emerged"
    law = ask("/api/law", catalog, set="made up", x='["dim","length"]').json()["law"]
    assert law["exponents"]["dim"] == pytest.approx(1.2, abs=0.1)
    assert ask("/api/figure_laws", catalog, set="made up").json() == []


def test_live_says_how_far_it_is_and_what_changed(catalog):
    live = ask("/api/live", catalog).json()
    (status,) = live["status"]
    assert (status["runs"], status["failed"], status["complete"]) == (18, 1, True)
    assert live["versions"] == {"made up": catalog.sets()["made up"].version}


WRONG = {
    "/api/runs?set=none": "no set of runs 'none'",
    "/api/run?set=made up&run=none": "no run 'none'",
    "/api/forecast?set=made up&run=../../etc": "no run '../../etc'",
    "/api/curves?set=made up&points=many": "points must be a whole number",
    "/api/curves?set=made up&points=100000": "points must be a whole number",
    "/api/law?set=made up&x=dim": "x is not JSON",
    "/api/law?set=made up&x=[1]": "x must be a list of terms",
    '/api/law?set=made up&x=["dim"]&where=[]': "where must be an object",
    '/api/law?set=made up&x=["nothing"]': "unknown column 'nothing'",
}


@pytest.mark.parametrize("request_of", WRONG)
def test_wrong_questions_are_one_line(catalog, request_of):
    path, _, query = request_of.partition("?")
    answer = ask(path, catalog, **dict(pair.split("=", 1) for pair in query.split("&")))
    assert answer.status_code == 400
    assert WRONG[request_of] in answer.json()["error"]


def test_a_picture_is_a_file_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("fig", "link"):
        report = {"figure": name, "title": "", "laws": [], "checks": []}
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps(report))
    (tmp_path / "in" / "fig.png").write_bytes(b"picture")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "secret.png")
    catalog = Catalog(tmp_path / "in")
    assert ask("/api/picture", catalog, set="fig").content == b"picture"
    assert ask("/api/picture", catalog, set="link").status_code == 404
    assert ask("/api/picture", catalog, set="../secret").status_code == 400
