"""Test sets of runs from records and from the files of figures."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from emergo.store.records import SHIPPED
from emergo.view import Catalog
from emergo.view._tables import figure_set, read_table, record_set


def test_the_records_of_the_package_are_sets():
    runs = record_set(SHIPPED / "schedule.runs.parquet")
    assert (runs.name, runs.kind) == ("schedule", "records")
    assert runs.runs == pd.read_parquet(SHIPPED / "schedule.runs.parquet")["identity"].tolist()
    assert "repeat" in runs.axes
    assert set(runs.families()) >= {"loss", "attention", "entropy"}
    step, loss = runs.curve(runs.runs[0], "loss")
    assert len(step) == len(loss) > 10
    assert (np.diff(step) > 0).all()
    assert runs.config(runs.runs[0])["task"]["type"] == "SingleLocation"


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_records_with_another_checksum_are_named(tmp_path, kind):
    for path in SHIPPED.glob("schedule.*"):
        shutil.copy(path, tmp_path)
    table = pd.read_parquet(tmp_path / f"schedule.{kind}.parquet")
    table.iloc[::-1].to_parquet(tmp_path / f"schedule.{kind}.parquet", index=False)
    [runs] = Catalog(tmp_path).sets().values() if kind == "curves" else [None]
    notes = Catalog(tmp_path).overview()["notes"] if runs is None else runs.notes
    assert any(f"schedule.{kind}.parquet: it has another checksum" in note for note in notes)


@pytest.fixture
def figure(tmp_path):
    """A figure with two tables that share a run, and a table of curves without identities."""
    table = pd.DataFrame({"identity": ["a", "b"], "dim": [4, 8], "plateau": [10.0, 20.0]})
    table.to_parquet(tmp_path / "fig.left.parquet")
    table.assign(identity=["b", "c"]).to_parquet(tmp_path / "fig.right.parquet")
    curves = {"step": [0, 1, 2, 0, 1], "seed": [0, 0, 0, 1, 1], "loss": [3.0, 2, 1, 6, 5]}
    pd.DataFrame(curves).to_parquet(tmp_path / "fig.curves.parquet")
    report = {"figure": "paper/fig", "title": "what it shows", "laws": [], "checks": []}
    (tmp_path / "fig.json").write_text(json.dumps(report))
    return tmp_path / "fig.json"


def test_a_run_in_two_tables_of_a_figure_is_one_run(figure):
    runs = figure_set(figure)
    assert runs is not None
    parts = dict(zip(runs.runs, runs.columns["part"], strict=True))
    assert parts == {
        "curves.0": "curves",
        "curves.1": "curves",
        "a": "left",
        "b": "left, right",
        "c": "right",
    }


def test_a_table_of_a_figure_named_runs_is_no_records(figure):
    pd.DataFrame({"seed": [0]}).to_parquet(figure.with_name("fig.runs.parquet"))
    content = Catalog(figure.parent).overview()
    assert [each["key"] for each in content["sets"]] == ["paper/fig"]
    assert content["notes"] == []


def test_a_run_without_identity_begins_where_the_steps_start_again(figure):
    runs = figure_set(figure)
    assert runs is not None
    assert [runs.curve(f"curves.{i}", "loss")[1].tolist() for i in (0, 1)] == [[3, 2, 1], [6, 5]]
    assert runs.columns["seed"][:2] == [0, 1]
    assert runs.families() == {"loss": [[]]}


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"figure": 1, "laws": [], "checks": []}',
        '{"figure": "f", "laws": [1], "checks": []}',
    ],
)
def test_other_json_files_are_not_figures(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    assert figure_set(tmp_path / "other.json") is None


def test_an_unreadable_table_is_listed_in_the_notes(figure, monkeypatch):
    (figure.parent / "fig.left.parquet").write_bytes(b"nothing")
    (figure.parent / "fig.linked.parquet").symlink_to(figure.parent / "fig.right.parquet")
    runs = figure_set(figure)
    assert runs is not None
    unread = [note.partition(":")[0] for note in runs.notes]
    assert unread == ["fig.left.parquet", "fig.linked.parquet"]
    monkeypatch.setattr("emergo.view._tables.LARGEST", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        read_table(figure.parent / "fig.right.parquet")
