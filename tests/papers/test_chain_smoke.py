"""The smoke presets of the figures of trained chains: they train, and what they show is what was
trained."""

import numpy as np
import pytest

from emergo.papers import FIGURES, make_figure, source_for
from emergo.papers.experiments import second_plateau

EVALUATIONS = 13
STAGES = [f"yuksel2026/fig{n}" for n in (1, 3, 6, 9, 11, 12, 13, 18)]
MAPS = [f"yuksel2026/fig{n}" for n in (2, 7, 8, 14, 16, 17, 19)]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes a figure's smoke preset; figures that show the same runs train them once."""
    folder = tmp_path_factory.mktemp("smoke")

    def make(id):
        figure = make_figure(FIGURES[id], "smoke", source_for(FIGURES[id], folder, fresh=True))
        assert figure.checks
        assert all(check["holds"] is None and "60 steps" in check["why"] for check in figure.checks)
        assert all(axes.has_data() for axes in figure.plot.axes)
        return figure

    return make


def check_curves(table, runs):
    """One row per evaluation of every run; training lowers the KL from the teacher; attention is a
    distribution."""
    assert len(table) == EVALUATIONS * runs
    ends = table.groupby("seed")["kl_teacher"].agg(["first", "last"])
    assert (ends["last"] < 0.8 * ends["first"]).all()
    attention = table.filter(regex=r"^attention_by_lag_0_0_")
    assert attention.shape[1] >= 2
    assert (attention.sum(axis=1) <= 1 + 1e-5).all()
    np.testing.assert_allclose(
        table["kl_references_1"], table["kl_teacher"], rtol=1e-4
    )  # the last reference is the teacher


@pytest.mark.parametrize("id", STAGES)
def test_figures_of_stages(id, made):
    figure = made(id)
    runs = FIGURES[id].runs("smoke")
    check_curves(figure.tables["curves"], len(runs))
    layers = getattr(runs[0].config.model, "layers", None)
    assert layers == 1 + (id in ("yuksel2026/fig11", "yuksel2026/fig12"))
    assert ("attention_by_lag_1_0_0" in figure.tables["curves"]) == (layers == 2)
    assert ("kl_contexts_1" in figure.tables["curves"]) == (id == "yuksel2026/fig3")


@pytest.mark.parametrize("id", MAPS)
def test_figures_of_maps(id, made):
    figure = made(id)
    check_curves(figure.tables["curves"], len(FIGURES[id].runs("smoke")))
    assert figure.checks[0]["measured"] == pytest.approx(
        1, abs=0.05
    )  # attention is uniform at the start
    if id == "yuksel2026/fig2":
        keys = figure.tables["maps"].filter(like="key_")
        assert set(figure.tables["maps"]["step"]) == {0, 30}
        assert np.all(keys.sum(axis=1) <= 1 + 1e-5)
    moving = figure.outcome.animation
    assert moving is not None
    assert moving.frames == EVALUATIONS + 8


def test_figure_4(made):
    tables = made("yuksel2026/fig4").tables
    assert set(tables) == {"Xavier", "0.01", "0", "m_1", "m_2"}
    heads = {
        name: table.filter(regex="^attention_by_lag_0_").to_numpy()
        for name, table in tables.items()
    }
    assert (heads["0"][:, :2] == heads["0"][:, 2:]).all()
    assert (heads["0.01"][-1, :2] != heads["0.01"][-1, 2:]).any()
    assert (tables["m_2"]["teacher_loss"] != tables["m_1"]["teacher_loss"]).all()  # another teacher


def test_figure_5(made):
    rows = made("yuksel2026/fig5").tables["runs"].set_index("n_train")
    assert list(rows.index) == ["16", "online"]
    assert rows["loss"]["16"] > rows["loss"]["online"]  # sixteen sequences are learned by heart
    assert set(rows["context"]) <= {1, 2}


def test_figure_15(made):
    tables = made("yuksel2026/fig15").tables
    assert set(tables) == {"2_heads", "3_heads"}
    check_curves(tables["3_heads"], 2)
    assert "attention_by_lag_0_2_0" in tables["3_heads"]


def test_rounding(made):
    rows = made("emergo/rounding").tables["runs"]
    assert len(rows) == 8
    assert rows[rows["scale"] == 0]["identical"].all()
    assert not rows[
        (rows["scale"] >= 1e-3) | ((rows["scale"] > 0) & (rows["precision"] == "fp64"))
    ]["identical"].any()
    wide = rows[rows["scale"] == 1e-2].set_index("precision")["first"]
    assert wide["fp32"] == pytest.approx(wide["fp64"], rel=0.05)


def test_dropout(made):
    rows = made("emergo/dropout").tables["runs"]
    assert rows["dropout"].tolist() == [
        "in every step",
        "in one step of three",
        "and the published start",
    ]
    assert rows["kl_teacher"].nunique() == 3
    assert (rows["least"] <= rows["kl_teacher"]).all()


def test_second_plateau(made):
    rows = made("emergo/second-plateau").tables["runs"]
    assert rows["how"].tolist() == [second_plateau.BASE, "no dropout"]
    assert rows["end"].nunique() == 2


def test_stages(made):
    figure = made("emergo/stages")
    times = figure.tables["times"]
    assert set(times["part"]) == {"logit", "preconditioned", "sgd"}
    flows = times[times["part"] != "sgd"]
    assert len(flows) == 2 * 4 * 2 * 2  # flows, cells, seeds and stages
    by_stage = flows.pivot_table(
        index=["part", "seed", "length", "span", "importance"], columns="stage", values="time"
    )
    assert (by_stage[1] < by_stage[2]).all()
    first = flows[flows["stage"] == 1]
    assert np.allclose(first["time"], first["derived"], rtol=0.6)  # short sequences: only roughly
    laws = {law["name"]: law for law in figure.laws}
    assert laws["stage 1, logit flow"]["exponents"]["length"] > 0.5
