"""Test logs of training in the explorer: what is found, read, measured and forecast."""

import base64
import gzip
import json
import os
import re

import pandas as pd
import pytest

import emergo as em
from emergo.view import Catalog, Learned, export_page
from emergo.view._answers import look_back, run_detail
from emergo.view._server import make_app

from . import asking
from .logs import add_rows, write_log

LEARNED = Learned("loss", below=1.0)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "one.csv"
    write_log(path)
    return path


def test_logs_of_a_folder_are_one_set(tmp_path, log):
    write_log(tmp_path / "two.csv", falls=1200)
    (tmp_path / "table.csv").write_text("dim,plateau\n1,2\n")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    catalog = Catalog(tmp_path, LEARNED)
    (runs,) = catalog.sets().values()
    assert (runs.kind, runs.runs, runs.notes) == ("log", ["one", "two"], ())
    assert runs.columns["plateau"] == pytest.approx([1018, 1218], abs=2)
    assert runs.columns["lr"] == [0.1, 0.1]
    assert runs.families()["induction_head"][0] == [0, 0]
    (described,) = catalog.overview()["sets"]
    assert described["learned"] == {"metric": "loss", "below": 1.0, "above": None}


def test_one_log_is_shown_alone(tmp_path, log):
    write_log(tmp_path / "two.csv")
    catalog = Catalog(log)
    assert catalog.overview()["folder"] == "one.csv"
    (runs,) = catalog.sets().values()
    assert runs.runs == ["one"]
    assert "plateau" not in runs.columns
    with pytest.raises(em.InputError, match=r"none.csv: no such file or folder; name a log, or a"):
        Catalog(tmp_path / "none.csv")


def test_any_format_of_logs_can_be_opened(tmp_path, log):
    pd.read_csv(log).to_parquet(tmp_path / "log.parquet")
    history = [{"step": step, "loss": 1 / (1 + step)} for step in range(5)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    for name in ("log.parquet", "trainer_state.json"):
        (runs,) = Catalog(tmp_path / name).sets().values()
        assert len(runs.curve(runs.runs[0], "loss")[0]) >= 5


def test_a_log_that_grows_is_read_again(log):
    catalog = Catalog(log)
    (runs,) = catalog.sets().values()
    assert runs.curve("one", "loss")[0][-1] == 1500
    add_rows(log, 1520, 1600)
    source = catalog._logs[log.parent][0]
    source._logs = {file: read._replace(again=0.0) for file, read in source._logs.items()}
    (again,) = catalog.sets().values()
    assert again.curve("one", "loss")[0][-1] == 1600
    assert again.version != runs.version
    assert again.curves.stamp("one") != runs.curves.stamp("one")


def test_the_page_of_a_log_has_maps_and_classes(log):
    runs = Catalog(log).get("one")
    detail = run_detail(runs, "one")
    found = {(each["layer"], each["head"]): each["class"] for each in detail["classes"]}
    assert found == {(1, 2): "induction", (0, 3): "previous_token"}
    (induction,) = [each for each in detail["classes"] if each["class"] == "induction"]
    assert induction["low"] < induction["step"] <= induction["high"]
    assert len(detail["steps"]) == len(detail["maps"]["induction_head_1_2"]) == 76
    assert {"loss", "eval_loss"} == set(detail["curves"])


def test_rows_without_scores_show_the_last_ones(log):
    table = pd.read_csv(log)
    scores = [name for name in table if "_head_" in str(name)]
    table.loc[table.index % 4 > 0, scores] = None
    table.to_csv(log, index=False)
    detail = run_detail(Catalog(log).get("one"), "one")
    expected = table["induction_head_1_2"].ffill().tolist()
    assert detail["maps"]["induction_head_1_2"] == pytest.approx(expected, rel=1e-3)
    assert detail["maps"]["entropy_1_2"] == pytest.approx(table["entropy_1_2"].tolist(), rel=1e-3)
    (induction,) = [each for each in detail["classes"] if each["class"] == "induction"]
    assert induction["high"] - induction["low"] == 80  # four rows


def test_rows_with_metrics_alone_are_not_in_the_maps(log):
    with log.open("a") as file:
        file.write("1510,0.3\n")
    detail = run_detail(Catalog(log).get("one"), "one")
    assert detail["steps"][-1] == 1500
    assert detail["curves"]["loss"][0][-1] == 1510


def test_forecasts_of_a_log_are_those_of_its_part_so_far(log):
    runs = Catalog(log, LEARNED).get("one")
    answer = look_back(runs, "one")
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["came"] == pytest.approx(1018, abs=2)
    assert answer["moments"][-1]["state"] == "emerged"
    moment = next(each for each in answer["moments"] if each["state"] == "forecast")
    table = pd.read_csv(log)
    known = em.forecast(table[table["step"] <= moment["at"]], "loss", below=1.0)
    assert (moment["words"], moment["step"]) == (str(known), known.step)


def test_earlier_forecasts_stay_when_the_log_grows(log):
    steps = []
    for last in (1500, 2000):
        write_log(log, falls=1800, last=last)
        answer = look_back(Catalog(log, LEARNED).get("one"), "one")
        steps.append([moment["at"] for moment in answer["moments"]])
    assert len(steps[0]) < 70
    assert set(steps[0][:-1]) <= set(steps[1])


def test_what_counts_as_learned_can_be_asked(log):
    app = make_app(Catalog(log), "token")

    def ask(**parameters):
        given = {"token": "token", "set": "one", "run": "one"} | parameters
        return asking.ask(app, "/api/forecast", params=given)

    assert ask(metric="loss", below="1.0").json()["moments"][-1]["state"] == "emerged"
    assert ask(metric="largest_1_2", above="0.5").json()["metric"] == "largest_1_2"
    assert "no column 'accuracy'" in ask(metric="accuracy", below="1.0").json()["why"]
    answer = ask(metric="loss", below="low")
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "below must be a number, got 'low'"},
    )


def test_a_damaged_log_is_named_and_the_others_are_shown(tmp_path, log):
    (tmp_path / "bad.csv").write_text("step,loss\nx,1\n")
    (tmp_path / "empty.csv").write_text("step,loss\n")
    (runs,) = Catalog(tmp_path).sets().values()
    assert runs.runs == ["one"]
    assert len(runs.notes) == 2
    assert all(note.startswith(("bad.csv: ", "empty.csv: ")) for note in runs.notes)


def test_a_table_that_cannot_be_read_is_named_and_the_logs_are_shown(tmp_path, log):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "large.csv").write_text("step,loss\n0,1\n")
    os.truncate(tmp_path / "large.csv", 2**40)
    catalog = Catalog(tmp_path)
    (runs,) = catalog.sets().values()
    assert runs.runs == ["one"]
    named = {note.partition(":")[0] for note in catalog.notes}
    assert named == {"pipe.csv", "large.csv"}


def test_nothing_outside_of_the_folder_is_read(tmp_path, log):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link.csv").symlink_to(log)
    write_log(inner / "own.csv")
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": 7}')
    (inner / "config.json").symlink_to(secret)
    catalog = Catalog(inner)
    (runs,) = catalog.sets().values()
    assert runs.runs == ["own"]
    assert "password" not in runs.columns
    assert any("link.csv: leads outside" in note for note in catalog.notes)


def test_logs_are_exported_to_one_file(tmp_path, log):
    write_log(tmp_path / "two.csv")
    written = export_page(Catalog(tmp_path, LEARNED), tmp_path / "page.html")
    assert written["runs"] == 2
    page = (tmp_path / "page.html").read_text()
    packed = re.findall(r'id="data">(.*?)</script>', page)[0]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))["data"]["logs"]
    assert len(data["classes"]["two"]) == 2
    assert data["forecasts"]["one"]["moments"]
