"""`emergo theory`, `emergo measure` and `emergo fit`."""

import json
import os

import pytest

from .command import call


def test_two_commands_turn_six_logs_into_a_law(capsys, tmp_path):
    """Dim and seed come from file names, the length from a config in the same folder."""
    for dim in (4, 8, 16):
        for seed in (0, 1):
            rows = [
                f"{s},{0.1 * s},{1.0 if s < 10 * dim + seed else 0.0}" for s in range(0, 401, 2)
            ]
            (tmp_path / f"d{dim}_s{seed}.csv").write_text(
                "_step,_runtime,val/loss\n" + "\n".join(rows)
            )
    (tmp_path / "config.yaml").write_text(
        "length:\n  desc: null\n  value: 32\nmodel:\n  value:\n    layers: 2\n"
    )
    table = tmp_path / "runs.csv"
    logs = sorted(map(str, tmp_path.glob("d*.csv")))
    command = [
        "measure",
        *logs,
        "--metric",
        "val/loss",
        "--below",
        "0.5",
        "--columns",
        r"d(?P<dim>\d+)_s(?P<seed>\d+)",
    ]
    status, out, err = call(capsys, *command, "--out", str(table), "--json")
    runs = json.loads(out)["runs"]
    assert status == 0
    assert err == f"emergo: {logs[0]}: the column 'step' is missing; '_step' is used instead\n"
    assert {(run["dim"], run["seed"], run["length"], run["model.layers"]) for run in runs} == {
        (dim, seed, 32, 2) for dim in (4, 8, 16) for seed in (0, 1)
    }
    status, out, _ = call(
        capsys, "fit", str(table), "--x", "dim", "--out", str(tmp_path / "fit"), "--json"
    )
    assert status == 0
    assert json.loads(out)["exponents"]["dim"] == pytest.approx(1, abs=0.05)
    assert json.loads(out)["runs"] == 6
    assert all(os.path.exists(file) for file in json.loads(out)["files"])
    assert call(capsys, *command, "--out", str(table))[0] == 0  # replaces its own table


def test_measure_replaces_only_its_own_table(capsys, tmp_path):
    logs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for log in logs:
        log.write_text("step,loss\n0,1\n1,0\n")
    (tmp_path / "link.csv").symlink_to(logs[0])
    for out, words in (
        ("a.csv", "one of the logs"),
        ("link.csv", "one of the logs"),
        ("b.csv", "or of a table that this command has written"),
    ):
        given = [
            "measure",
            str(logs[0]),
            "--metric",
            "loss",
            "--below",
            "0.5",
            "--out",
            str(tmp_path / out),
        ]
        status, _, err = call(capsys, *given)
        assert status == 2
        assert words in err
        assert err.count("\n") == 1
    assert all(log.read_text() == "step,loss\n0,1\n1,0\n" for log in logs)


def test_measure_hides_constant_columns_and_reports_repaired_logs(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({f"option_{i}": i for i in range(9)}))
    for name, crossing in (("s0", 3), ("s1", 5)):
        rows = [f"{s},{float(s < crossing)}" for s in (*range(8), *range(6, 8))]
        (tmp_path / f"{name}.csv").write_text("step,loss\n" + "\n".join(rows))
    given = [
        str(tmp_path / "s0.csv"),
        str(tmp_path / "s1.csv"),
        "--metric",
        "loss",
        "--below",
        "0.5",
    ]
    status, out, err = call(capsys, "measure", *given, "--columns", r"s(?P<seed>\d+)")
    assert status == 0
    assert "seed" in out
    assert "option_0" not in out
    assert err.count("steps go back to 6") == 2
    status, out, _ = call(capsys, "measure", *given, "--json")
    assert json.loads(out)["runs"][0]["option_8"] == 8


def test_fit_leaves_fixed_columns_out_of_its_default_and_counts_failed_runs(capsys, tmp_path):
    rows = (
        ["dim,length,plateau"]
        + [f"{d},{t},{d * t * k}" for d in (2, 4) for t in (3, 9) for k in (1, 1.1)]
        + ["2,3,"]
    )
    (tmp_path / "t.csv").write_text("\n".join(rows))
    status, out, _ = call(
        capsys, "fit", str(tmp_path / "t.csv"), "--fix", "length=1", "--out", str(tmp_path)
    )
    assert status == 0
    assert "dim^1.00 length^1.00" in out
    assert "note: 1 failed runs" in out


def test_fit_shows_both_laws_when_runs_are_censored(capsys, tmp_path):
    rows = ["dim,plateau,censored"] + [
        f"{d},{min(d * k, 30)},{d * k > 30}" for d in (2, 4, 8) for k in (2, 3, 4)
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    status, out, _ = call(
        capsys, "fit", str(tmp_path / "t.csv"), "--x", "dim", "--out", str(tmp_path)
    )
    assert status == 0
    law, _, least_squares = out.partition("note: least squares leave out 1 censored run")
    assert "9 runs" in law
    assert "8 runs" in least_squares


def test_intervals_resample_what_scatters_more(capsys, tmp_path):
    def fitted(bend):
        rows = ["dim,plateau"] + [
            f"{d},{d**2 * (bend if d == 4 else 1) * k}" for d in (2, 4, 8) for k in (1, 1.1, 1.2)
        ]
        (tmp_path / "t.csv").write_text("\n".join(rows))
        return call(capsys, "fit", str(tmp_path / "t.csv"), "--x", "dim", "--out", str(tmp_path))[1]

    assert "(cells)" in fitted(3)
    assert "(seeds)" in fitted(1)


@pytest.mark.slow
def test_theory_prints_one_json_object(capsys):
    status, out, err = call(
        capsys,
        "theory",
        "--length",
        "64",
        "--dim",
        "16",
        "--burst",
        "2",
        "--flow",
        "exact",
        "--json",
    )
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert {"plateau", "censored", "rate", "predicted", "escape_linear"} <= set(found)
    assert found["plateau"] > 0


def test_an_unfinished_plateau_is_censored(capsys):
    status, out, _ = call(
        capsys, "theory", "--length", "64", "--dim", "16", "--horizon", "5", "--json"
    )
    assert status == 0
    assert json.loads(out)["censored"] is True
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16", "--horizon", "5")
    assert status == 0
    assert "plateau" in out
