"""What the page gets: laws that are the package's own, one run, stages."""

import json

import pandas as pd
import pytest

import emergo as em
from emergo.measure import fit_law, law_json
from emergo.studies import StudyFolder, study_table
from emergo.view import Catalog
from emergo.view._answers import default_law, every_law, figure_laws, fit, overview, run_detail, stages, tied_terms

from .made_up import HEADS


@pytest.fixture
def runs(catalog):
    (only,) = catalog.sets().values()
    return only


def test_the_law_is_that_of_the_study(runs, folder):
    answer = fit(runs, "plateau", ["dim", "length"])
    plan = StudyFolder(folder).read()[0]
    law = fit_law(study_table(StudyFolder(folder), plan), "plateau", ["dim", "length"])
    assert answer["law"]["formula"] == law.formula
    assert answer["law"]["ci95"]["dim"] == pytest.approx(law.ci95["dim"])
    assert answer["law"]["failed"] == 1
    assert set(answer["terms"]) == {"dim", "length"}
    assert len(answer["fitted"]) == len(answer["identity"]) == 18


def test_a_law_of_chosen_runs_and_terms(runs):
    answer = fit(runs, "plateau", ["dim"], {"length": [32]})
    assert answer["law"]["runs"] + answer["law"]["failed"] == 9
    assert answer["law"]["exponents"]["dim"] == pytest.approx(1.2, abs=0.15)  # 9 runs whose logarithms spread by 0.1
    with pytest.raises(em.InputError, match="constant"):
        fit(runs, "plateau", ["length"], {"length": [32]})
    with pytest.raises(em.InputError, match="unknown column"):
        fit(runs, "plateau", ["width_of_nothing"])


def test_all_laws_that_a_page_without_a_server_can_ask_for(runs):
    laws = every_law(runs)
    assert {tuple(json.loads(key)[1]) for key in laws} == {("dim", "length"), ("dim",), ("length",)}
    assert default_law(runs) == {"y": "plateau", "x": ["dim", "length"]}


def test_one_run_has_its_config_and_its_heads(runs):
    detail = run_detail(runs, runs.runs[1])
    assert set(detail["curves"]) == {"loss", "train_loss"}
    assert len([name for name in detail["maps"] if name.startswith("attention_")]) == HEADS[0] * HEADS[1]
    assert all(len(values) == len(detail["steps"]) for values in detail["maps"].values())
    assert detail["config"]["task"]["dim"] == runs.columns["dim"][1]
    with pytest.raises(em.InputError, match="no run"):
        run_detail(runs, "../../etc")


def test_stages_of_a_run(runs):
    found = stages(runs, runs.runs[1])
    assert found["curve"] == "loss"
    assert len(found["drops"]) == 1
    assert stages(runs, "none")["drops"] == []


def test_an_overview_is_json_and_names_what_was_not_read(catalog):
    content = overview(catalog)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["sets"][0]["terms"] == ["dim", "length"]


def test_terms_of_a_law_by_its_exponents():
    assert tied_terms({"dim": 1.2, "length": 0.8, "burst": -0.8}) == ["dim", "length/burst"]
    assert tied_terms({"dim": 1.0, "length": 1.0}) == ["dim*length"]


def test_a_figures_law_is_found_among_its_tables(tmp_path, folder):
    """A figure writes its law and its tables, not which tables the law was fitted to."""
    table = study_table(StudyFolder(folder), StudyFolder(folder).read()[0]).assign(burst=1)
    parts = {"left": table[table["length"] == 32], "middle": table[table["dim"] == 8], "other": table.assign(plateau=1.0)[:4]}
    for name, part in parts.items():
        part.to_parquet(tmp_path / f"fig.{name}.parquet")
    fitted = fit_law(pd.concat([parts["left"], parts["middle"]]).drop_duplicates("identity"), x=["dim", "length"])
    report = {"figure": "fig", "title": "", "laws": [law_json(fitted), {"exponents": {"dim": 1.0}}], "checks": []}
    (tmp_path / "fig.json").write_text(json.dumps(report))
    runs = Catalog(tmp_path).sets()["fig"]
    found, unknown = figure_laws(runs)
    assert unknown is None
    assert found is not None
    assert found["x"] == ["dim", "length"]
    assert {part for value in found["where"]["part"] for part in value.split(", ")} == {"left", "middle"}
    assert fit(runs, **found)["law"]["C"] == pytest.approx(fitted.C)
