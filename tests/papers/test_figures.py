"""Every figure through its smoke preset, and the numbers that the cheap ones must give at full size."""

import dataclasses
import json
import os

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Plot
from PIL import Image

from emergo._errors import InputError
from emergo.engine import History
from emergo.papers import FIGURES, Check, Figure, Outcome, find_figure, made_preset, run_figure
from emergo.papers._figure import describe
from emergo.papers._work import Work
from emergo.studies import Records, Result, read_records, record_tables, run_from_json
from emergo.studies._records import RESULTS

KEYS = {"schema", "figure", "shows", "preset", "shrunk", "partial", "laws", "checks", "files", "seconds", "provenance"}
LAW_KEYS = {
    "name",
    "formula",
    "C",
    "exponents",
    "ci95",
    "ci_kind",
    "r2",
    "runs",
    "censored",
    "published",
    "level",
    "agrees",
    "why",
}


@pytest.mark.slow
@pytest.mark.parametrize("id", sorted(FIGURES))
def test_smoke(id, tmp_path, tmp_path_factory):
    shares = []
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke-runs"  # some figures show the same runs
    shared.mkdir(exist_ok=True)
    (tmp_path / "runs").symlink_to(shared)
    found = run_figure(FIGURES[id], "smoke", tmp_path, lambda what, share: shares.append(share))
    assert set(found) == KEYS
    assert all(0 <= s <= 1 for s in shares)
    stored = json.loads((tmp_path / f"{id}.json").read_text())
    assert stored["laws"] == found["laws"]
    assert set(stored["provenance"]) == {"version", "commit", "device", "precision", "jax"}
    assert {f.rsplit(".", 1)[1] for f in found["files"]} - {"gif"} == {"svg", "png", "parquet", "json"}
    for file in found["files"]:
        assert file.startswith(str(tmp_path))
        if file.endswith("parquet"):
            assert len(pd.read_parquet(file)) > 0
        if file.endswith("png"):
            assert matplotlib.image.imread(file).std() > 0.01  # something is drawn
        if file.endswith("gif"):
            with Image.open(file) as frames:
                frames.seek(3)  # something moves: equal frames are written once
    for law in found["laws"]:
        assert set(law) >= LAW_KEYS
        assert law["agrees"] is None  # no verdict on a shrunken preset
    assert found["shrunk"]
    assert all(check["agrees"] is None and found["shrunk"] in check["why"] for check in found["checks"])
    assert not list(tmp_path.rglob(".emergo-*"))
    assert made_preset(FIGURES[id], tmp_path) == "smoke"


@pytest.mark.slow
def test_figure_1_and_2_at_full_size(tmp_path):
    one = run_figure(FIGURES["zucchet2025/fig1"], "paper", tmp_path)["laws"][0]
    assert one["agrees"] is True
    assert one["exponents"]["length"] == pytest.approx(0.99, abs=0.01)
    assert one["exponents"]["dim"] == pytest.approx(0.49, abs=0.01)
    assert one["r2"] > 0.999
    left, right = run_figure(FIGURES["zucchet2025/fig2"], "paper", tmp_path)["laws"]
    assert left["agrees"] is True
    assert left["exponents"]["burst"] == pytest.approx(-left["exponents"]["length"])
    # The printed law of Fig. 2 right is twice too high: at p = 0 it contradicts Fig. 2 left.
    assert right["agrees"] is False
    assert right["level"] == pytest.approx(0.47, abs=0.02)
    assert right["exponents"]["length"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_the_reduction_misses_half_of_the_exponent(tmp_path):
    laws = {law["name"]: law for law in run_figure(FIGURES["emergo/reduction"], "paper", tmp_path)["laws"]}
    assert laws["reduced"]["exponents"]["burst"] == pytest.approx(-1, abs=0.05)
    assert laws["exact"]["exponents"]["burst"] == pytest.approx(-0.5, abs=0.03)
    assert laws["full"]["exponents"]["burst"] == pytest.approx(laws["exact"]["exponents"]["burst"], abs=1e-6)
    assert laws["reduced"]["agrees"] is True
    assert laws["full"]["agrees"] is False


def test_flow_figures_are_the_same_in_paper_and_laptop():
    same = [f for f in FIGURES.values() if f.runs is None and f.id != "zucchet2025/fig9"]
    assert all(f.presets["paper"] == f.presets["laptop"] for f in same)


def test_records_stand_in_for_training(tmp_path, monkeypatch):
    """Half of a smoke preset recorded: only the other half is trained, and the JSON names both sources."""
    figure = FIGURES["zucchet2025/fig12"]
    assert figure.runs is not None
    runs = figure.runs(figure.presets["smoke"])
    curves = {
        "step": np.array([0, 25, 50]),
        "loss": np.array([0.5, 0.45, 0.05]),
        "train_loss": np.array([np.nan, 0.5, 0.3]),
        "alignment": np.array([0.0, 0.5, 0.9]),
        "attention": np.full((3, 2, 2), 0.5),
        "entropy": np.full((3, 2, 2), 1.0),
    }
    made = {run.identity: Result.of(History(run, "reached", None, curves, "elsewhere")) for run in runs}
    known = Records(*record_tables([made[runs[0].identity]], [runs[0].identity]))
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: known)
    trained = []

    def train(missing, on_end, **options):
        for run in missing:
            trained.append(run)
            on_end(History(run, "reached", None, curves, "here"))

    monkeypatch.setattr("emergo.studies._run.train", train)
    found = run_figure(figure, "smoke", tmp_path)
    assert [run.identity for run in trained] == [run.identity for run in runs[1:]]
    assert found["provenance"]["device"] == f"1 runs on elsewhere, {len(runs) - 1} runs on here"
    assert run_figure(figure, "smoke", tmp_path, fresh=True)["provenance"]["device"] == f"{len(runs)} runs on here"
    assert [run.identity for run in trained[len(runs) - 1 :]] == [runs[0].identity]  # the rest was kept


def test_a_partial_figure_trains_nothing_and_shows_whole_cells(tmp_path, monkeypatch):
    figure = FIGURES["zucchet2025/fig15"]
    assert figure.runs is not None
    smoke = figure.presets["smoke"]
    grids = {name: dataclasses.replace(getattr(smoke, name), seeds=2) for name in ("adam", "sgd")}
    settings = dataclasses.replace(smoke, **grids)
    figure = dataclasses.replace(figure, presets={"smoke": settings})
    parts = settings.parts()
    losses = {run.identity: np.array([0.5, 0.5, 0.05 / run.config.task.dim]) for run in parts["adam"]}
    made = [
        Result.of(History(run, "reached", None, {"step": np.array([0, 25, 50]), "loss": loss}, "elsewhere"))
        for run, loss in zip(parts["adam"], losses.values(), strict=True)
    ]

    def none(*_, **__):
        raise AssertionError("nothing is to be trained")

    monkeypatch.setattr("emergo.studies._run.train", none)
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: Records(*record_tables(made[:-1])))
    found = run_figure(figure, "smoke", tmp_path, partial=True)
    every = len(parts["sgd"]) + len(parts["adam"])
    assert found["partial"] == f"{len(made) - 2} of {every} runs: cells that lack a seed are left out"
    assert [law["name"] for law in found["laws"]] == ["adam"]
    assert found["laws"][0]["runs"] == len(made) - 2
    assert found["checks"] == []  # they compare with SGD
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: Records(pd.DataFrame()))
    with pytest.raises(InputError, match="no cell of this figure is there with all its seeds"):
        run_figure(figure, "smoke", tmp_path, partial=True)


def test_recorded_runs_are_those_of_the_paper_presets():
    """An identity that changed by accident would orphan them."""
    work = Work(records=read_records())
    wanted = {run.identity for figure in FIGURES.values() for run in figure.wanted("paper", work)}
    tables = sorted(RESULTS.glob("*.runs.parquet"))
    assert RESULTS / "zucchet2025.runs.parquet" in tables
    for path in tables:
        recorded = pd.read_parquet(path)
        assert len(recorded) > 0
        assert set(recorded["identity"]) <= wanted
        for text, identity in zip(recorded["run"], recorded["identity"], strict=True):
            assert run_from_json(json.loads(text)).identity == identity


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="did you mean zucchet2025/fig1"):
        find_figure("zuchet2025/fig1")
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
    figure = Figure("x/y", "a test", {}, lambda s, p: None, {}, {"smoke": "smaller"})  # pyright: ignore[reportArgumentType]
    checks = (Check("ours", 1.0, None, True, "one"), Check("theirs", 1.0, 2.0, False))
    ours, theirs = describe(figure, preset, Outcome({}, Plot(), checks=checks))["checks"]
    expected = (True, None, False) if preset == "paper" else (None, None, None)
    assert (ours["holds"], ours["agrees"], theirs["agrees"]) == expected
