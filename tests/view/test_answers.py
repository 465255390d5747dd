"""Test the answers to the page's questions: laws, one run, stages."""

import dataclasses
import json

import pandas as pd
import pytest

import emergo as em
from emergo.measure import fit_law, law_json
from emergo.store import StudyFolder
from emergo.study import study_table
from emergo.view import Catalog
from emergo.view._answers import (
    default_law,
    describe_set,
    every_law,
    fit,
    numeric_axes,
    run_detail,
    stages,
)

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
    # The logarithms of these 9 runs spread by 0.1.
    assert answer["law"]["exponents"]["dim"] == pytest.approx(1.2, abs=0.15)
    with pytest.raises(em.InputError, match="constant"):
        fit(runs, "plateau", ["length"], {"length": [32]})
    with pytest.raises(em.InputError, match="unknown column"):
        fit(runs, "plateau", ["width_of_nothing"])


def test_the_exported_page_has_the_laws_of_all_combinations_of_axes(runs):
    said = []
    laws = every_law(runs, said.append)
    assert said == ["made up: fitting 3 laws"]
    assert {tuple(json.loads(key)[1]) for key in laws} == {("dim", "length"), ("dim",), ("length",)}
    # The first law has as many resamples as on a live page, the others have fewer.
    whole = [fit(runs, *json.loads(key)) == law for key, law in laws.items()]
    assert whole == [True, False, False]
    assert default_law(runs) == {"y": "plateau", "x": ["dim", "length"]}


def test_one_run_has_its_config_and_its_heads(runs):
    detail = run_detail(runs, runs.runs[1])
    assert set(detail["curves"]) == {"loss", "train_loss"}
    assert (
        len([name for name in detail["maps"] if name.startswith("attention_")])
        == HEADS[0] * HEADS[1]
    )
    assert all(len(values) == len(detail["steps"]) for values in detail["maps"].values())
    assert detail["config"]["task"]["dim"] == runs.columns["dim"][1]
    with pytest.raises(em.InputError, match="no run"):
        run_detail(runs, "../../etc")


def test_stages_of_a_run(runs):
    found = stages(runs, runs.runs[1])
    assert found["curve"] == "loss"
    assert len(found["drops"]) == 1
    assert stages(runs, "none")["drops"] == []


def test_outcomes_of_a_table_are_not_terms_of_a_law(runs):
    """Tables of figures list outcomes next to axes, and rows without a plateau."""
    count = len(runs.runs)
    measured = {"accuracy": [0.5 + 0.01 * i for i in range(count)], "kind": ["softmax"] * count}
    columns = {**runs.columns, **measured, "double": [2 * dim for dim in runs.columns["dim"]]}
    axes = ["accuracy", "dim", "double", "kind", "length"]
    table = dataclasses.replace(runs, kind="figure", law=None, axes=axes, columns=columns)
    assert numeric_axes(table) == ["dim", "double", "length"]
    assert default_law(table) == {"y": "plateau", "x": ["dim", "length"]}  # not both of one
    figure = {"laws": [{"exponents": {"dim": 1.2}}]}
    assert default_law(dataclasses.replace(table, figure=figure)) == {
        "y": "plateau",
        "x": ["dim"],
    }
    few = {name: values[:2] for name, values in columns.items()}
    assert default_law(dataclasses.replace(table, columns=few)) is None


@pytest.fixture
def figure(tmp_path, folder):
    """A figure with three tables, two of which hold the runs of its law."""
    table = study_table(StudyFolder(folder), StudyFolder(folder).read()[0])
    left = table[table["length"] == 32]
    middle = table[table["dim"] == 8]
    other = table.assign(identity=table["identity"].str[::-1], plateau=table["dim"] ** 3.0)
    for name, part in {"left": left, "middle": middle, "other": other}.items():
        part.to_parquet(tmp_path / f"fig.{name}.parquet")
    law = fit_law(pd.concat([left, middle]).drop_duplicates("identity"), x=["dim", "length"])
    laws = [law_json(law) | {"tables": ["left", "middle"]}]
    laws += [{"formula": "plateau = 2 dim^1", "exponents": {"dim": 1.0}}]
    laws += [law_json(law) | {"tables": []}]
    report = {"figure": "fig", "title": "", "laws": laws, "checks": []}
    (tmp_path / "fig.json").write_text(json.dumps(report))
    return Catalog(tmp_path).sets()["fig"], law


def test_a_figures_law_is_fitted_again_to_its_own_runs(figure):
    runs, law = figure
    request = describe_set(runs)["figure"]["laws"][0]["fit"]
    assert (request["y"], request["x"]) == ("plateau", ["dim", "length"])
    answer = fit(runs, "plateau", request["x"], request["where"])
    assert answer["law"]["C"] == pytest.approx(law.C)
    assert len(answer["fitted"]) == law.runs + law.failed
    assert fit(runs, "plateau", ["dim", "length"])["law"]["C"] != pytest.approx(law.C)


def test_a_figures_law_without_terms_or_tables_has_a_reason(figure):
    runs, _ = figure
    _, old, lost = (law["fit"] for law in describe_set(runs)["figure"]["laws"])
    assert "does not list the terms" in old["why"]
    assert "none of the figure's tables" in lost["why"]
    assert {tuple(json.loads(key)[1]) for key in every_law(runs)} >= {("dim", "length")}
