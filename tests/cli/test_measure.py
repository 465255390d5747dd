"""`emergo theory`, `emergo measure` and `emergo fit`."""

import json
import os

import pytest

from .command import call


def test_measure_then_fit(capsys, tmp_path):
    rows = ["run,dim,seed,step,loss"]
    for dim in (4, 8, 16):
        for seed in range(3):
            crossing = 10 * dim + seed
            rows += [f"{dim}-{seed},{dim},{seed},{s},{1.0 if s < crossing else 0.0}" for s in range(0, 401, 2)]
    (tmp_path / "logs.csv").write_text("\n".join(rows))
    table = tmp_path / "runs.parquet"
    options = ("--metric", "loss", "--below", "0.5", "--out", str(table), "--json")
    status, out, _ = call(capsys, "measure", str(tmp_path / "logs.csv"), *options)
    measured = json.loads(out)
    assert status == 0
    assert len(measured["runs"]) == 9
    assert measured["censored"] == 0
    status, out, _ = call(capsys, "fit", str(table), "--x", "dim", "--out", str(tmp_path / "fit"), "--json")
    law = json.loads(out)
    assert status == 0
    assert law["exponents"]["dim"] == pytest.approx(1, abs=0.05)
    assert all(os.path.exists(f) for f in law["files"])
    status, out, _ = call(capsys, "fit", str(table), "--x", "dim", "--out", str(tmp_path / "fit"))
    assert status == 0
    assert "95%" in out


def test_fit_leaves_fixed_columns_out_of_its_default_and_counts_failed_runs(capsys, tmp_path):
    rows = ["dim,length,plateau"] + [f"{d},{t},{d * t * k}" for d in (2, 4) for t in (3, 9) for k in (1, 1.1)] + ["2,3,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    status, out, _ = call(capsys, "fit", str(tmp_path / "t.csv"), "--fix", "length=1", "--out", str(tmp_path))
    assert status == 0
    assert "dim^1.00 length^1.00" in out
    assert "note: 1 failed runs" in out


def test_fit_shows_both_laws_when_runs_are_censored(capsys, tmp_path):
    rows = ["dim,plateau,censored"] + [f"{d},{min(d * k, 30)},{d * k > 30}" for d in (2, 4, 8) for k in (2, 3, 4)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    status, out, _ = call(capsys, "fit", str(tmp_path / "t.csv"), "--x", "dim", "--out", str(tmp_path))
    assert status == 0
    assert "this fit uses them" in out


def test_fit_says_where_a_law_misses_by_more_than_seeds_differ(capsys, tmp_path):
    def fitted(bend):
        rows = ["dim,plateau"] + [f"{d},{d**2 * (bend if d == 4 else 1) * k}" for d in (2, 4, 8) for k in (1, 1.1, 1.2)]
        (tmp_path / "t.csv").write_text("\n".join(rows))
        return call(capsys, "fit", str(tmp_path / "t.csv"), "--x", "dim", "--out", str(tmp_path))[1]

    assert "take the law for granted" in fitted(3)
    assert "take the law for granted" not in fitted(1)


@pytest.mark.slow
def test_theory_prints_one_json_object(capsys):
    status, out, err = call(capsys, "theory", "--length", "64", "--dim", "16", "--burst", "2", "--flow", "exact", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert {"plateau", "censored", "rate", "predicted", "escape_linear"} <= set(found)
    assert found["plateau"] > 0


def test_theory_for_people(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16")
    assert status == 0
    assert "plateau" in out


def test_a_cell_that_does_not_get_there_is_censored_and_not_an_error(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16", "--horizon", "5", "--json")
    assert status == 0
    assert json.loads(out)["censored"] is True
