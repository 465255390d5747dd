"""A figure is found, described and written."""

import dataclasses

import jax
import pandas as pd
import pytest
from matplotlib.figure import Figure as Plot

from emergo.core.errors import InputError
from emergo.papers import FIGURES, Check, Figure, Outcome, RunSource, figure, make_figure
from emergo.papers._figure import Presets, run_figure
from emergo.store import Records
from emergo.store.records import SHIPPED


def test_an_unknown_preset_suggests_a_similar_one():
    with pytest.raises(InputError, match="unknown preset 'laptp'; did you mean laptop"):
        make_figure(FIGURES["zucchet2025/fig1"], "laptp", RunSource())


@pytest.mark.parametrize("preset", ["paper", "smoke"])
def test_only_published_values_are_agreed_with(preset):
    """Expected values hold or fail. A preset that differs from the paper's gets no verdict."""
    checks = (
        Check("ours", 1.0, None, True, "one"),
        Check("theirs", 1.0, 2.0, False),
        Check("too wide", 1.0, 2.0, None),
        Check("open", [1.0, 0.0, 2.0], None, None, "1", interval=True),
    )
    presets: Presets = {"paper": 2, "smoke": 1}

    def make(settings, source):
        return Outcome({}, Plot(), checks=checks)

    test = Figure("x/y", "a test", presets, make, {"paper": 1})
    made = make_figure(test, preset, RunSource())
    ours, *theirs = made.checks
    expected = [True, None, "disagrees", "undecided", None] if preset == "paper" else [None] * 5
    assert [ours["holds"], ours["verdict"], *(c["verdict"] for c in theirs)] == expected
    for name in ("too wide", "open"):
        assert (f"{name}: undecided" in repr(made)) is (preset == "paper")


def test_a_figure_in_memory_equals_its_files(tmp_path):
    made = figure("zucchet2025/fig15")
    report = made.write(tmp_path)
    assert report["laws"] == made.laws
    assert {file.removeprefix(f"{tmp_path}/zucchet2025/") for file in report["files"]} == {
        *(f"fig15.{end}" for end in ("svg", "png", "json")),
        *(f"fig15.{table}.parquet" for table in made.tables),
    }
    assert "plateau = 7.54 dim^1.43 length^1.08" in repr(made)
    assert made._repr_png_().startswith(b"\x89PNG")


def test_a_figure_is_not_written_through_a_link(tmp_path):
    """The output folder may come from another person."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "zucchet2025").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match=r"out/zucchet2025: a link, .* move it away"):
        run_figure(FIGURES["zucchet2025/fig1"], "smoke", tmp_path / "out")
    assert not any((tmp_path / "victim").iterdir())


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="asks on a CPU only")
def test_long_training_needs_consent():
    with pytest.raises(InputError, match=r"take about .* h on a CPU; pass train=True"):
        figure("zucchet2025/fig3", fresh=True)


def test_parts_that_need_outcomes_only_exist_without_curves():
    figure = FIGURES["emergo/capacity"]
    parts = {"depth": figure.studies()["depth"]}
    source = RunSource(records=Records(pd.read_parquet(SHIPPED / "zucchet2025.runs.parquet")))
    assert figure.missing(parts, source) == []
    assert len(dataclasses.replace(figure, outcomes=()).missing(parts, source)) == 30
    assert len(figure.missing({"luck": figure.studies()["luck"]}, RunSource())) == 64
