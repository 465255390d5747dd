"""The page of a folder of studies."""

import errno
import json
import math
import os
import re
from typing import Any

import numpy as np
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

import emergo as em
from emergo.engine import Result
from emergo.report import report_studies
from emergo.report._page import log_axis
from emergo.studies import Store, StudyFolder

from ..cli.command import call

EVIL = "</script><script>alert(1)</script>"


def study(name="burst", dims=(2, 4), **more):
    task, model = em.SingleLocation(length=8, dim=4), em.Transformer(layers=1, heads=2, width=4)
    law = em.Fit(x=["dim"])
    return em.Study(task, model, em.Optimizer(), grid={"dim": list(dims)}, seeds=2, steps=100, name=name, law=law, **more)


def fill(folder, wanted, states=("reached",)):
    """Puts finished runs into a folder without training: the plateau is 10 * dim; states come in turn."""
    wanted.open(StudyFolder(folder))
    for n, run in enumerate(wanted.runs):
        state, end = states[n % len(states)], 10 * run.config.task.dim
        loss = {"reached": [1.0, 0.01], "censored": [1.0, 0.9], "failed": [1.0, float("nan")]}[state]
        maps = [[[0.1, 0.2]], [[0.9, 0.5]]]
        curves = {name: np.array(values) for name, values in {"step": [0, end], "loss": loss, "attention": maps}.items()}
        Store(StudyFolder(folder).runs).write(Result.measured(run, curves, end if state == "failed" else None, "cpu"))


def parts(path):
    """The charts and the data of a page."""
    text = path.read_text()
    found = [re.search(rf"const {name} = (.*);\n", text) for name in ("charts", "datasets")]
    assert all(found)
    return [json.loads(match[1]) for match in found if match]


def test_a_page_has_curves_plateaus_the_law_and_the_cells(tmp_path):
    fill(tmp_path, study())
    report = report_studies(tmp_path)
    assert report["files"] == [str(tmp_path / "report.html")]
    [burst] = report["studies"]
    assert (burst["study"], burst["runs"], burst["finished"]) == ("burst", 4, 4)
    assert burst["law"]["exponents"]["dim"] == pytest.approx(1.0, abs=0.01)
    charts, datasets = parts(tmp_path / "report.html")
    assert list(charts) == ["s0-loss", "s0-attention", "s0-plateau"]
    assert max(row["y"] for row in datasets["s0_attention"]) == 0.9, "of the head with most"
    assert {(row["x"], row["c"]) for row in datasets["s0_plateau"]} == {(2.0, "all"), (4.0, "all")}
    for chart in charts.values():
        svg = vl_convert.vegalite_to_svg(json.dumps(chart | {"width": 600, "datasets": datasets}))
        assert "mark-" in svg
        assert "NaN" not in svg
    page = re.sub(r"<script>.*?</script>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=""", page), "nothing is loaded from elsewhere"
    assert page.count("<tr>") == 3
    assert "plateau = " in page


def test_a_schedule_within_a_task_is_in_words(tmp_path):
    repeat: Any = em.Switch(0.4, 0.0, at=100)  # stands for the number that it gives
    task = em.SingleLocation(length=8, dim=4, repeat=repeat)
    model = em.Transformer(layers=1, heads=2, width=4)
    fill(tmp_path, em.Study(task, model, em.Optimizer(), grid={"dim": [2, 4]}, seeds=1, steps=100, name="schedule"))
    report_studies(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "<b>task</b>: SingleLocation, length 8, repeat Switch (before 0.4, after 0, at 100)" in text


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([96, 225], [100, 120, 140, 160, 180, 200, 220]),
        ([90, 1000], [100, 150, 200, 300, 500, 700, 1000]),
        ([1, 1e9], [10.0**power for power in range(10)]),
        ([300, 305, math.nan], [300 + i / 2 for i in range(11)]),
        ([5], [5]),
    ],
)
def test_numbers_of_a_logarithmic_axis_do_not_crowd(values, ticks):
    assert log_axis(values)["values"] == ticks


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=4))
def test_a_logarithmic_axis_always_has_numbers(values):
    ticks = log_axis(values)["values"]
    edge = (max(values) / min(values)) ** 0.05
    assert ticks
    assert all(min(values) / edge <= tick <= max(values) * edge for tick in ticks)
    assert len(ticks) <= 18


def test_bounds_and_failures_are_said(tmp_path):
    fill(tmp_path, study(dims=(2, 4, 8)), ("censored", "failed"))
    report_studies(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "at least 80" in text
    assert len(re.findall(r"<li>1 run: .* at step \d+</li>", text.replace("</li><li>", "</li>\n<li>"))) == 3
    assert "No law yet" in text
    assert all(row["bound"] for row in parts(tmp_path / "report.html")[1]["s0_plateau"])


def test_names_are_only_text(tmp_path):
    fill(tmp_path, study(name=EVIL))
    fill(tmp_path, study(name="other", dims=(16, 32)))
    report_studies(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert EVIL not in text
    assert "&lt;/script&gt;" in text
    assert text.count("</script>") == 2


def test_many_runs_are_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.report._study.MOST_RUNS", 3)
    fill(tmp_path, study(dims=range(1, 9)))
    report_studies(tmp_path)
    _, datasets = parts(tmp_path / "report.html")
    assert len({row["r"] for row in datasets["s0_loss"]}) == 3
    assert "3 of 16 runs are drawn" in (tmp_path / "report.html").read_text()


def test_a_study_without_results_is_a_page_too(tmp_path):
    study().open(StudyFolder(tmp_path))
    report = report_studies(tmp_path, tmp_path / "elsewhere" / "page.html")
    assert report["studies"][0]["finished"] == 0
    assert "No run is finished yet" in (tmp_path / "elsewhere" / "page.html").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keep.csv", "the page is an HTML file; name it like page.html"),
        ("keep.html", "this file is there and is no page of this command; choose another name"),
    ],
)
def test_a_file_that_is_no_page_of_ours_is_kept(tmp_path, capsys, name, words):
    fill(tmp_path, study())
    (tmp_path / name).write_text("<p>mine</p>")
    status, out, err = call(capsys, "report", str(tmp_path), "--out", str(tmp_path / name))
    assert (status, out, err) == (2, "", f"emergo: --out {tmp_path / name}: {words}\n")
    assert (tmp_path / name).read_text() == "<p>mine</p>"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, capsys):
    (tmp_path / "closed").mkdir(mode=0)
    status, out, err = call(capsys, "report", str(tmp_path / "closed"))
    assert (status, out) == (2, "")
    assert "cannot be read (Permission denied)" in err


def test_a_folder_that_the_system_does_not_let_us_look_into_is_one_line(tmp_path, capsys, monkeypatch):
    """As above, also for root."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("pathlib.Path.stat", refuse)
    monkeypatch.setattr("emergo.studies._reader.os.scandir", refuse)
    status, out, err = call(capsys, "report", str(tmp_path / "closed"))
    monkeypatch.undo()
    assert (status, out) == (2, "")
    assert "cannot be read (Permission denied)" in err


def test_the_command(tmp_path, capsys):
    fill(tmp_path, study())
    status, out, _ = call(capsys, "report", str(tmp_path))
    assert status == 0
    assert out == f"burst: 4 of 4 runs are finished\nopen {tmp_path / 'report.html'}\n"
    assert call(capsys, "report", str(tmp_path))[0] == 0, "a page of ours is written anew"
    status, out, err = call(capsys, "report", str(tmp_path / "none"))
    assert (status, out) == (2, "")
    assert "no study here" in err
