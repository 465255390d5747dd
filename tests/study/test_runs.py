"""A collection of runs: as a table, as a law, as a plot. Most curves are made up."""

import importlib
import linecache
import math
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from emergo.core.errors import InputError
from emergo.core.plotting import Line, shades, spread_lines
from emergo.models import Transformer
from emergo.store import Store
from emergo.study import Runs, Study, concat
from emergo.study.results import write_result
from emergo.training import Result

from .crowd import made_up, study
from .tiny import quiet, tiny


def law_of(study: Study) -> Runs:
    """Return runs whose plateaus are dim², three times that for the larger learning rate, and 1%
    more for every seed."""
    results = []
    for run in study.runs:
        slow = 3 if run.config.optimizer.learning_rate > 1e-3 else 1
        at = (run.config.task.spec.inputs - 1) ** 2 * (1 + 0.01 * run.seed) * slow
        curves = {"step": np.array([0.0, at, 2 * at]), "loss": np.array([1.0, 0.1, 0.05])}
        results.append(Result.measured(run, curves, None, "cpu"))
    return Runs(results, study.axes, study.values_of, None, next(iter(study.tune), None))


@pytest.fixture
def runs():
    made = study(3, 3, name="made up")
    return Runs([made_up(run) for run in made.runs], made.axes, made.values_of)


def test_a_table_has_one_row_per_run_and_curves_one_per_evaluation(runs):
    assert list(runs.table["dim"]) == [4, 4, 4, 3, 3, 3, 2, 2, 2]
    assert list(runs.table["state"]) == ["censored", "reached", "reached"] * 3
    curves = runs.curves
    assert list(curves.columns[:4]) == ["identity", "dim", "seed", "step"]
    assert curves.groupby("identity").size().to_list() == [5] * 9
    assert Runs([]).table.empty
    assert list(Runs([]).curves.columns) == ["identity", "step"]


def test_runs_are_chosen_by_columns_or_by_a_function(runs):
    assert set(runs.where(dim=3).table["dim"]) == {3}
    assert len(runs.where(dim=3, state="reached")) == 2
    assert len(runs.where(lambda result: result.run.seed == 0)) == 3
    assert len(runs.where(lambda result: result.run.seed == 0, dim=4)) == 1
    assert len(runs.where(dim=99)) == 0
    assert runs.where(dim=3).axes == ["dim"]
    with pytest.raises(InputError, match="unknown column 'dmi'; did you mean dim"):
        runs.where(dmi=3)


def test_a_collection_shows_its_cells(runs):
    text = repr(runs).splitlines()
    assert text[0] == "9 runs: 6 reached, 3 censored"
    assert text[1].split() == ["dim", "runs", "plateau", "censored"]
    assert [line.split()[:2] for line in text[2:]] == [["2", "3"], ["3", "3"], ["4", "3"]]
    assert repr(Runs([])) == "0 runs: none"
    failed = Runs([Result.untrained(runs[1].run, "no memory", "cpu")])
    assert repr(failed).startswith("1 run: 1 failed\n")


def test_a_law_of_the_plateaus():
    law = law_of(study(5, 3, grid={"dim": [3, 7, 15, 31]})).fit("plateau", "dim")
    assert law.runs == 12
    assert law.exponents["dim"] == pytest.approx(2.0)


def test_of_a_tuned_axis_only_the_chosen_value_counts():
    runs = law_of(study(1, 3, grid={"dim": [3, 7, 15]}, tune={"learning_rate": [1e-3, 3e-3]}))
    assert set(runs.table[runs.table["chosen"]]["learning_rate"]) == {1e-3}
    assert runs.table["chosen"].sum() == 9
    law = runs.fit("plateau", ["dim"])
    assert law.runs == 9
    alone = law_of(study(1, 3, grid={"dim": [3, 7, 15]})).fit("plateau", ["dim"])
    assert law.exponents == alone.exponents
    assert runs.where(dim=7).table["chosen"].sum() == 3


def test_curves_are_drawn_with_labels_and_a_legend(runs):
    figure = runs.plot("loss", by="dim")
    [axes] = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert {line.get_color() for line in axes.lines} == set(shades(3, "dim"))
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "dim"
    assert [text.get_text() for text in legend.get_texts()] == ["2", "3", "4"]
    for line, result in zip(axes.lines, runs, strict=True):
        curves = result.curves or {}
        np.testing.assert_array_equal(line.get_xdata(), curves["step"][1:])  # without step 0
        np.testing.assert_array_equal(line.get_ydata(), curves["loss"][1:])
    assert axes.get_xscale() == "log"


def test_a_plot_of_what_does_not_exist_is_refused(runs):
    with pytest.raises(InputError, match="unknown curve 'los'; did you mean loss"):
        runs.plot("los")
    with pytest.raises(InputError, match="unknown column 'dmi'; did you mean dim"):
        runs.plot("loss", by="dmi")
    with pytest.raises(InputError, match="none of these runs has its curves"):
        Runs([result._replace(curves=None) for result in runs]).plot("loss")


def test_a_curve_per_head_is_drawn_with_one_panel_per_layer(runs):
    result = runs[0]
    values = np.random.default_rng(0).random((5, 2, 3))
    result = result._replace(curves={**(result.curves or {}), "induction_head": values})
    figure = Runs([result]).plot_heads(0, "induction_head")
    assert [axes.get_title("left") for axes in figure.axes] == ["layer 0", "layer 1"]
    for layer, axes in enumerate(figure.axes):
        for head, line in enumerate(axes.lines):
            np.testing.assert_array_equal(line.get_ydata(), values[1:, layer, head])
        assert axes.get_xscale() == "log"
    with pytest.raises(InputError, match="unknown curve per head 'loss'; known: attention"):
        runs.plot_heads(0, "loss")
    with pytest.raises(InputError, match="there is no run 9"):
        runs.plot_heads(9)


def test_attention_maps_are_drawn_over_training(runs, tmp_path):
    with pytest.raises(InputError, match="give the study keep=True"):
        runs.plot_maps()
    model = Transformer(layers=2, heads=2, width=8)
    kept = tiny(seeds=1, steps=50, keep=True, threshold=None).replace(model=model).run(tmp_path)
    figure = kept.plot_maps(0, steps=[0, 50], n=16)
    assert len(figure.axes) == 4 * 2
    maps = kept.parameters(0, 50).attention_maps(16).mean(1)
    (image,) = figure.axes[5].images  # of layer 1, head 0, at step 50
    np.testing.assert_array_equal(image.get_array(), maps[1, 0])
    assert figure.axes[0].get_title("left") == "step 0"
    assert figure.axes[4].get_ylabel() == "layer 1\nhead 0"
    assert len(kept.plot_maps(0, n=2).axes) == 4 * len(kept.kept(0))


def test_missing_parameters_runs_and_folders_are_named(runs, tmp_path):
    with pytest.raises(InputError, match="these runs were not kept in a folder"):
        runs.parameters()
    store = Store(tmp_path)
    write_result(store, runs[0])
    kept = Runs(list(runs), store=store)
    with pytest.raises(InputError, match="no parameters were kept; train the study with keep=True"):
        kept.parameters()
    for index in (9, -10):
        for ask in (kept.kept, kept.parameters):
            words = f"there is no run {index}: 9 runs here, numbered from 0"
            with pytest.raises(InputError, match=words):
                ask(index)
    with pytest.raises(InputError, match="typo: no such folder"):
        study(1, 1).read(tmp_path / "typo")


@pytest.mark.slow
def test_a_study_that_is_run_and_read_gives_the_same(tmp_path):
    """Trained for real."""
    trained = tiny(grid={"dim": [2, 3]}, seeds=1, steps=50, keep=True)
    ran = trained.run(tmp_path, progress=lambda now: None)
    read = trained.read(tmp_path)
    pd.testing.assert_frame_equal(ran.table, read.table)
    pd.testing.assert_frame_equal(ran.curves, read.curves)
    assert repr(ran) == repr(read)
    assert trained.read(tmp_path, curves=False)[0].curves is None
    assert math.isfinite(
        float(np.sum(read.parameters(1, 25).forward(read.parameters(1, 25).batch(2)).value))
    )
    assert read.parameters(1).run == read[1].run
    fresh = trained.replace(keep=False).run(progress=lambda now: None)
    np.testing.assert_array_equal(fresh.curves["loss"], ran.curves["loss"])


SOURCE = """
import jax.numpy as jnp
import emergo as em


class Stale(em.Task):
    @property
    def spec(self):
        return em.Spec(2, 1, 1)

    def truth(self, key):
        return ()

    def batch(self, key, n, truth):
        return em.Batch(jnp.ones((n, 2, 1)), jnp.ones((n, 1)))

    def loss(self, output, batch):
        return jnp.sum((output.value - batch.target) ** 2, -1)
"""


def test_changed_code_of_stored_runs_is_reported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "stale_code.py"
    for constant in ("1", "2"):
        file.write_text(SOURCE.replace("jnp.ones((n, 1))", f"{constant} * jnp.ones((n, 1))"))
        importlib.invalidate_caches()
        sys.modules.pop("stale_code", None)
        linecache.clearcache()
        module = importlib.import_module("stale_code")
        study = tiny(seeds=2, steps=5, threshold=None).replace(task=module.Stale())
        if constant == "1":
            study.run(tmp_path / "out", progress=quiet)
            study.read(tmp_path / "out")  # pytest turns a warning into an error
    words = "`Stale.batch` has changed since these 2 runs were trained; raise `version` of Stale"
    with pytest.warns(UserWarning, match=words):
        assert len(study.read(tmp_path / "out")) == 2


@pytest.fixture(scope="module")
def heads():
    """Runs of two seeds with two heads and different learning rates."""
    model = Transformer(layers=1, heads=2, width=8)
    grid = {"learning_rate": [3e-3, 1e-2]}
    return (
        tiny(seeds=2, steps=60, grid=grid, threshold=None).replace(model=model).run(progress=quiet)
    )


def test_every_column_of_the_curves_is_a_name(heads):
    for column in set(heads.curves.columns) - {"identity", "seed", "learning_rate"}:
        figure = heads.plot(column, by="seed")
        assert figure.axes[0].get_ylabel() == column.replace("_", " ")
    assert heads.plot("attention").axes[0].get_ylabel() == "attention (largest of 2)"
    [line, *_] = heads.plot("loss", x="attention_0_1").axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), heads[0].curves["attention"][:, 0, 1])
    law = heads.fit("attention_0_1", ["learning_rate"])
    assert np.isfinite(law.exponents["learning_rate"])
    with pytest.raises(InputError, match="unknown curve 'attention_0_2'; did you mean attention_0"):
        heads.plot("attention_0_2")
    with pytest.raises(InputError, match="unknown column 'attention_0_2'; did you mean"):
        heads.fit("attention_0_2", ["learning_rate"])


def test_intervals_panels_and_axes(heads):
    figure = heads.plot("loss", panels="learning_rate", interval=1)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "learning_rate 0.003",
        "learning_rate 0.01",
    ]
    both = [result.curves["loss"][1:] for result in heads.where(learning_rate=3e-3)]
    [line] = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), np.median(both, 0))
    [band] = figure.axes[0].collections
    assert band.get_datalim(figure.axes[0].transData).y1 == pytest.approx(np.max(both))
    own, axes = plt.subplots()
    assert heads.plot("loss", ax=axes) is own
    assert len(axes.lines) == 4
    plt.close(own)
    for wrong in ({"interval": 2}, {"interval": 1, "x": "loss"}, {"ax": axes, "panels": "seed"}):
        with pytest.raises(InputError):
            heads.plot(**wrong)


def test_a_band_holds_the_last_value_of_runs_that_ended():
    short = Line(None, None, np.array([0, 10]), np.array([1.0, 0.0]))
    long = Line(None, None, np.array([0, 10, 20]), np.array([1.0, 0.5, 0.4]))
    [line] = spread_lines([short, long], 1.0)
    np.testing.assert_allclose(line.y, [1.0, 0.25, 0.2])
    assert line.low is not None
    assert line.high is not None
    np.testing.assert_allclose([line.low[-1], line.high[-1]], [0.0, 0.4])


def test_runs_of_several_studies_are_joined(heads):
    other = heads.where(learning_rate=1e-2)
    assert len(concat(heads, other)) == len(heads + other) == 4
    named = concat(all=heads, some=other)
    assert named.table["study"].tolist() == ["all"] * 4 + ["some"] * 2
    assert len(named.where(study="some")) == 2
    wide = tiny(seeds=1, steps=60, grid={"width": [4]}, threshold=None).run(progress=quiet)
    joined = concat(heads, wide)
    assert joined.axes == ["learning_rate", "width"]
    # An axis of another study has the value of its field.
    assert joined.table["width"].tolist() == [8] * 4 + [4]
    assert joined.table["learning_rate"].iloc[-1] == 3e-3
    wrong: Any = 3
    with pytest.raises(InputError, match="concat takes runs, got 3"):
        concat(wrong)


def test_misspelled_keywords_of_run_are_named():
    with pytest.raises(
        InputError, match=r"unknown keyword of Study\.run 'n_paralel'; did you mean"
    ):
        tiny().run(n_paralel=1)
