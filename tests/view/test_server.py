"""Test the server: its answers, and that it hands out nothing else."""

import json
import os

import numpy as np
import pytest

from emergo.view import Catalog
from emergo.view._bundle import STATIC
from emergo.view._server import make_app

from . import asking
from .made_up import finish, made_up_study


def ask(path, catalog, method="GET", **parameters):
    app = make_app(catalog, "token")
    return asking.ask(app, path, method, params=parameters | {"token": "token"})


def test_the_page_and_its_files(catalog):
    app = make_app(catalog, "token")
    cookie = asking.ask(app, "/", params={"token": "token"}).headers["set-cookie"]
    page = asking.ask(app, app.place, headers={"cookie": cookie.partition(";")[0]})
    assert page.headers["content-type"].startswith("text/html")
    for file in ("app.js", "style.css", "vendor/uplot.js", "icon.svg"):
        assert f"static/{file}" in page.text
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
def test_other_files_are_refused(catalog, name):
    index = (STATIC / "index.html").read_bytes()
    answer = ask(f"/static/{name}", catalog)
    assert answer.status_code == 404 or answer.content == index


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_only_get_is_allowed(catalog, method):
    assert ask("/api/index", catalog, method).status_code == 405


def test_runs_and_their_curves(catalog):
    table = ask("/api/runs", catalog, set="made up").json()
    runs = table["columns"]["identity"]
    assert len(runs) == 18
    assert "layers" in table["constants"]
    names = ",".join([runs[1], "none", "../../etc"])
    answer = ask("/api/curves", catalog, set="made up", name="loss", points=20, runs=names).content
    count, *lengths = np.frombuffer(answer[:16], "<u4").tolist()
    assert (count, lengths[1:]) == (3, [0, 0])
    assert 2 < lengths[0] <= 20
    x, y = np.frombuffer(answer[16:], "<f4").reshape(2, -1)
    assert x[0] == 0
    assert y[0] == pytest.approx(1)


def test_a_name_with_dots_does_not_lead_to_a_run_of_another_folder(tmp_path, folder):
    finish(made_up_study(dims=[4], lengths=[8], seeds=1), tmp_path / "in", fail=None)
    outside = next((folder / "runs").glob("[0-9a-f]*"))
    name = os.path.relpath(outside, tmp_path / "in" / "runs")
    assert (tmp_path / "in" / "runs" / name / "curves.parquet").is_file()
    catalog = Catalog(tmp_path / "in")
    answer = ask("/api/curves", catalog, set="made up", runs=name)
    assert np.frombuffer(answer.content, "<u4").tolist() == [1, 0]
    assert ask("/api/run", catalog, set="made up", run=name).status_code == 400
    assert ask("/api/stages", catalog, set="made up", run=name).json()["drops"] == []


def test_an_unexpected_error_is_one_line(catalog, monkeypatch):
    monkeypatch.setattr(catalog, "status", lambda: [][0])
    answer = ask("/api/live", catalog)
    assert answer.status_code == 500
    assert answer.json() == {"error": "IndexError: list index out of range"}


def test_one_run_its_stages_forecasts_and_a_law(catalog):
    run = ask("/api/runs", catalog, set="made up").json()["columns"]["identity"][1]
    assert ask("/api/run", catalog, set="made up", run=run).json()["identity"] == run
    assert len(ask("/api/stages", catalog, set="made up", run=run).json()["drops"]) == 1
    moments = ask("/api/forecast", catalog, set="made up", run=run).json()["moments"]
    assert moments[-1]["state"] == "emerged"
    law = ask("/api/law", catalog, set="made up", x='["dim","length"]').json()["law"]
    assert law["exponents"]["dim"] == pytest.approx(1.2, abs=0.1)


def test_live_shows_progress_and_versions(catalog):
    live = ask("/api/live", catalog).json()
    (status,) = live["status"]
    assert (status["runs"], status["failed"], status["complete"]) == (18, 1, True)
    assert len(status["failed_runs"]) == 1
    assert live["versions"] == {"made up": catalog.get("made up").version}


INVALID = {
    "/api/runs?set=none": "no set of runs 'none'",
    "/api/run?set=made up&run=none": "no run 'none'",
    "/api/forecast?set=made up&run=../../etc": "no run '../../etc'",
    "/api/curves?set=made up&points=many": "points must be a whole number",
    "/api/curves?set=made up&points=100000": "points must be a whole number",
    "/api/curves?set=made up&smooth=0": "smooth must be a whole number from 1 to 999",
    "/api/law?set=made up&x=dim": "x must be a JSON list of terms",
    "/api/law?set=made up&x=1": "x must be a JSON list of terms",
    '/api/law?set=made up&x=["dim"]&where=[]': "where must be an object",
    '/api/law?set=made up&x=["dim"]&where={"dim":{"low":1}}': "where must be an object",
    '/api/law?set=made up&x=["nothing"]': "unknown column 'nothing'",
}


@pytest.mark.parametrize("request_text", INVALID)
def test_an_invalid_request_is_one_line(catalog, request_text):
    path, _, query = request_text.partition("?")
    answer = ask(path, catalog, **dict(pair.split("=", 1) for pair in query.split("&")))
    assert answer.status_code == 400
    assert INVALID[request_text] in answer.json()["error"]


def test_a_picture_must_be_a_file_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("fig", "link", "large"):
        report = {"figure": name, "title": "", "laws": [], "checks": []}
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps(report))
    (tmp_path / "in" / "fig.png").write_bytes(b"picture")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "in" / "large.png").touch()
    os.truncate(tmp_path / "in" / "large.png", 2**26)
    catalog = Catalog(tmp_path / "in")
    assert ask("/api/picture", catalog, set="fig").content == b"picture"
    assert ask("/api/picture", catalog, set="large").status_code == 404
    assert ask("/api/picture", catalog, set="link").status_code == 404
    assert ask("/api/picture", catalog, set="../secret").status_code == 400
