"""Properties of every figure: its studies, its presets, and the result of its smoke preset."""

import json
import os

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from emergo.models import ChainTransformer, MinimalAttention
from emergo.papers import FIGURES, RunSource, made_preset, make_figure, source_for
from emergo.papers._source import distinct
from emergo.papers.transformers import PAPER as TRANSFORMERS
from emergo.papers.yuksel2026._chains import paper as minimal
from emergo.papers.yuksel2026.stages_and_maps import FULL_SIZE
from emergo.papers.zucchet2025.fig11_12 import curve_studies
from emergo.store import read_records
from emergo.store.records import SHIPPED
from emergo.study.description import build_run, load_plugins

KEYS = {
    *("schema", "figure", "title", "preset", "caveat", "partial", "laws", "checks", "summary"),
    *("files", "seconds", "provenance"),
}
CASES = [
    (id, preset)
    for id in FIGURES
    if FIGURES[id].studies()
    for preset in ("paper", "laptop", "smoke")
]


@pytest.mark.parametrize("id", FIGURES)
def test_presets_cost_something_and_say_how_they_differ_from_the_paper(id):
    figure = FIGURES[id]
    assert set(figure.presets) == set(figure.seconds) == {"paper", "laptop", "smoke"}
    assert 0 < figure.seconds["smoke"] <= figure.seconds["laptop"] <= figure.seconds["paper"]
    assert figure.seconds["smoke"] <= 30
    differing = {
        preset for preset, settings in figure.presets.items() if settings != figure.presets["paper"]
    }
    assert {preset for preset in figure.presets if figure.caveat_of(preset)} == differing


@pytest.mark.parametrize(("id", "preset"), CASES)
def test_a_figure_declares_runs_that_another_process_can_name(id, preset):
    """Other processes build its runs from the descriptions in the plan."""
    studies = FIGURES[id].wanted(preset, RunSource())
    assert studies
    for study in studies.values():
        assert len({run.identity for run in study.runs}) == len(study.runs) == study.count
    load_plugins(["emergo.papers"])
    run = distinct(studies)[-1]
    assert build_run(json.loads(json.dumps(run.describe()))).identity == run.identity


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_recorded_runs_are_those_of_the_paper_presets():
    """An identity that changed by accident would orphan them."""
    source = RunSource(records=read_records())
    wanted = {
        run.identity
        for figure in FIGURES.values()
        for run in distinct(figure.wanted("paper", source))
    }
    # Fig. 12 of yuksel2026 with dropout on hidden features. No figure shows these runs now, but
    # forecasts are judged on them.
    earlier = FULL_SIZE.replace(model__layers=2, optimizer__learning_rate=1e-3, seeds=5)
    wanted |= {
        run.identity
        for run in earlier.replace(model__dropout_at=ChainTransformer().dropout_at).runs
    }
    # Fig. 11 of zucchet2025 at T = 256 instead of 128, and Fig. 5 of yuksel2026 on the published
    # teacher from s = 1e-9 instead of Xavier's start. Both were wrong; the answer to a referee
    # compares them.
    longer = curve_studies(TRANSFORMERS, (16, 32, 64), (256,), dim=32, length=256)
    small = minimal(MinimalAttention(), seeds=1).replace(task__maps="published")
    wanted |= {run.identity for run in distinct(longer)}
    wanted |= {
        run.identity for n in (600, 2000, 9000, None) for run in small.replace(n_train=n).runs
    }
    load_plugins(["emergo.papers"])
    tables = {path.name: pd.read_parquet(path) for path in SHIPPED.glob("*.runs.parquet")}
    names = (
        "zucchet2025",
        "zucchet2025-recall",
        "yuksel2026",
        "schedule",
        "recall-screen-first",
        "recall-screen-second",
        "recall-confirm",
        "coupled",
        "capacity",
        "attention",
        "exponents",
        "exponents-wide",
        "text",
    )
    assert set(tables) == {f"{name}.runs.parquet" for name in names}
    for recorded in tables.values():
        assert set(recorded["identity"]) <= wanted
        for text, identity in zip(recorded["run"], recorded["identity"], strict=True):
            assert build_run(json.loads(text)).identity == identity


@pytest.fixture
def shared(tmp_path_factory):
    """Return a folder for all figures of a session, because some show the same runs."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke"
    folder.mkdir(exist_ok=True)
    return folder


# test_chain_smoke.py makes these and checks their content.
TRAINED_ON_CHAINS = [f"yuksel2026/fig{n}" for n in range(1, 20) if n != 10]


OPTIMISED = "zucchet2025/fig3"  # trained with the optimised path, the others with `apply`
ENDS_EARLY = "emergo/rounding"  # its smoke preset ends before all growth rates can be measured


@pytest.mark.slow
@pytest.mark.parametrize("id", [id for id in FIGURES if id not in TRAINED_ON_CHAINS])
def test_smoke(id, shared, monkeypatch):
    if id == OPTIMISED:
        monkeypatch.delenv("EMERGO_FAST")
    figure = FIGURES[id]
    source = source_for(figure, shared)
    report = make_figure(figure, "smoke", source).write(shared)
    assert set(report) == KEYS
    assert json.loads((shared / f"{id}.json").read_text())["laws"] == report["laws"]
    assert made_preset(id, shared) == "smoke"
    declared = {run.identity for run in distinct(figure.wanted("smoke", source))}
    assert set(source.handed_out) == declared
    tables = check_files(report["files"])
    for law in report["laws"]:
        check_law(law)
    for check in report["checks"] if id != ENDS_EARLY else ():
        assert json.dumps(check["measured"]) not in ("null", "[]"), check["name"]
    for table in tables:
        check_outcomes(table)


def check_files(files):
    """Check that each file has the content that its name promises; return the tables."""
    assert {file.rsplit(".", 1)[1] for file in files} - {"gif"} == {"svg", "png", "parquet", "json"}
    for file in files:
        if file.endswith("png"):
            assert matplotlib.image.imread(file).std() > 0.01, "something is drawn"
        if file.endswith("gif"):
            with Image.open(file) as frames:
                frames.seek(3)  # something moves: equal frames are written once
    tables = [pd.read_parquet(file) for file in files if file.endswith("parquet")]
    assert all(len(table) for table in tables)
    return tables


def check_law(law):
    """Check that the numbers of a law fit its formula, each other and the intervals."""
    factors = " ".join(f"{name}^{power:.2f}" for name, power in law["exponents"].items())
    assert law["formula"].endswith(f"= {law['C']:.3g} {factors}")
    assert law["C"] > 0
    assert np.isfinite([*law["exponents"].values()]).all()
    assert law["r2"] <= 1
    assert law["runs"] > len(law["exponents"])
    for name, (low, high) in law["ci95"].items():
        assert low is None or low <= high, name
    if "with_censored" in law:
        assert law["with_censored"]["runs"] == law["runs"] + law["censored"] > law["runs"]
    if law["published"]:
        assert law["published"]["exponents"].keys() <= law["exponents"].keys()
        assert law["level"] > 0


def check_outcomes(table):
    """Check that a plateau ends within training, and that a censored one lasts as long."""
    if not {"plateau", "state", "steps"} <= set(table):
        return
    assert set(table["state"]) <= {"reached", "censored", "trained", "failed"}
    reached = table[table["state"] == "reached"]
    assert ((reached["plateau"] >= 0) & (reached["plateau"] <= reached["steps"] + 2)).all()
    censored = table[table["state"] == "censored"]
    assert (censored["plateau"] == censored["steps"]).all()
    assert table["plateau"][table["state"].isin(["failed", "trained"])].isna().all()
