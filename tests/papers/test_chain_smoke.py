"""The smoke presets of figures of trained chains: they train and show what was trained."""

import numpy as np
import pytest

from emergo.papers import FIGURES, make_figure, source_for

EVALUATIONS = 13
STAGES = [f"yuksel2026/fig{n}" for n in (1, 3, 6, 9, 11, 12, 13, 18)]
MAPS = [f"yuksel2026/fig{n}" for n in (2, 7, 8, 14, 16, 17, 19)]
# Trained with the optimised path of each model, the others with `apply`.
OPTIMISED = ("yuksel2026/fig1", "yuksel2026/fig12")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes a smoke preset; runs that figures share are trained once."""
    folder = tmp_path_factory.mktemp("smoke")

    def make(id):
        with pytest.MonkeyPatch.context() as patch:
            if id in OPTIMISED:
                patch.delenv("EMERGO_FAST")
            figure = make_figure(FIGURES[id], "smoke", source_for(FIGURES[id], folder, fresh=True))
        assert figure.checks
        assert all(check["holds"] is None and "steps 60" in check["why"] for check in figure.checks)
        drawings = [axes for axes in figure.plot.axes if axes.axison]  # the task has no axes
        assert all(axes.has_data() for axes in drawings)
        return figure

    return make


def check_curves(table, runs):
    """Check that each run has all evaluations, learns, and has distributions as attention."""
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
