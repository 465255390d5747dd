"""What a figure is: how it is found, described and written."""

import dataclasses

import pandas as pd
import pytest
from matplotlib.figure import Figure as Plot

from emergo._errors import InputError
from emergo.papers import FIGURES, Figure, RunSource, figure, find_figure, made_preset, run_figure
from emergo.papers._figure import Check, Outcome, describe
from emergo.studies import Records
from emergo.studies._records import SHIPPED


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="did you mean zucchet2025/fig1"):
        find_figure("zuchet2025/fig1")
    with pytest.raises(InputError, match="did you mean zucchet2025/fig3 or yuksel2026/fig3"):
        find_figure("fig3")
    with pytest.raises(InputError, match="unknown preset 'laptp'; did you mean laptop"):
        run_figure(FIGURES["zucchet2025/fig1"], "laptp", "nowhere")


def test_a_folder_with_something_else_in_it_holds_no_figure(tmp_path):
    figure = FIGURES["emergo/reduction"]
    assert made_preset(figure, tmp_path) is None
    (tmp_path / "emergo").mkdir()
    (tmp_path / "emergo" / "reduction.json").write_text("[1, 2")
    assert made_preset(figure, tmp_path) is None


@pytest.mark.parametrize("preset", ["paper", "smoke"])
def test_an_expectation_holds_and_only_a_published_value_is_agreed_with(preset):
    checks = (Check("ours", 1.0, None, True, "one"), Check("theirs", 1.0, 2.0, False))
    outcome = Outcome({}, Plot(), checks=checks)
    figure = Figure("x/y", "a test", {"paper": 2, "smoke": 1}, lambda settings, source: outcome, {"paper": 1})
    ours, theirs = describe(figure, preset, outcome, RunSource())["checks"]
    expected = (True, None, False) if preset == "paper" else (None, None, None)
    assert (ours["holds"], ours["agrees"], theirs["agrees"]) == expected


def test_a_figure_in_memory_is_what_is_written(tmp_path):
    made = figure("zucchet2025/fig15")
    report = made.write(tmp_path)
    assert report["laws"] == made.laws
    assert {file.removeprefix(f"{tmp_path}/zucchet2025/") for file in report["files"]} == {
        *(f"fig15.{end}" for end in ("svg", "png", "json")),
        *(f"fig15.{table}.parquet" for table in made.tables),
    }
    assert "plateau = 7.54 dim^1.43 length^1.08" in repr(made)
    assert made._repr_png_().startswith(b"\x89PNG")


def test_parts_of_which_outcomes_will_do_are_there_without_curves():
    figure = FIGURES["emergo/capacity"]
    parts = {"depth": figure.studies()["depth"]}
    source = RunSource(records=Records(pd.read_parquet(SHIPPED / "zucchet2025.runs.parquet")))
    assert figure.missing(parts, source) == []
    assert len(dataclasses.replace(figure, outcomes=()).missing(parts, source)) == 30
    assert len(figure.missing({"luck": figure.studies()["luck"]}, RunSource())) == 64
