"""Test emergence times from logs."""

import numpy as np
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.logs import measure_logs
from emergo.measure import write_table


def logs():
    rows = []
    for run, (dim, crossing) in {"a": (4, 35), "b": (8, 72), "c": (8, 500)}.items():
        rows += [
            {"run": run, "dim": dim, "step": s, "loss": 1.0 if s < crossing else 0.0}
            for s in range(0, 101, 10)
        ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_one_row_per_run_with_its_constants(tmp_path, suffix):
    path = tmp_path / f"logs{suffix}"
    write_table(logs().sample(frac=1, random_state=0), path)  # rows in any order
    table = measure_logs([path], "loss", 0.5).set_index("run")
    assert table.loc["a", "plateau"] == 35
    assert (table.loc["b", "plateau_low"], table.loc["b", "plateau_high"]) == (70, 80)
    assert table["censored"].to_dict() == {"a": False, "b": False, "c": True}
    assert table.loc["c", "plateau"] == 100
    assert table["dim"].to_dict() == {"a": 4, "b": 8, "c": 8}


def test_without_a_run_column_each_file_is_a_run(tmp_path):
    for name, crossing in (("x", 2), ("y", 4)):
        frame = pd.DataFrame(
            {"iteration": range(6), "accuracy": [float(i >= crossing) for i in range(6)]}
        )
        write_table(frame, tmp_path / f"{name}.csv")
    table = measure_logs(
        [tmp_path / "x.csv", tmp_path / "y.csv"], "accuracy", 0.5, "above", step="iteration"
    )
    assert table["run"].tolist() == ["x", "y"]
    assert table["plateau"].tolist() == [1.5, 3.5]


def test_blank_cells_are_not_evaluations_and_nan_is_divergence(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "run,step,loss,train\na,0,1,\na,1,,3\na,2,0.2,\nb,0,1,\nb,1,nan,\nb,2,0.2,\nc,0,1,2\nc,1,inf,1\n"
    )
    table = measure_logs([path], "loss", 0.5).set_index("run")
    assert table["state"].to_dict() == {"a": "reached", "b": "failed", "c": "failed"}
    assert table["plateau"].isna().to_dict() == {"a": False, "b": True, "c": True}
    assert table.loc["a", "evaluations"] == 2


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_nan_written_by_pandas_is_a_failed_run(tmp_path, suffix):
    """pandas writes NaN as a blank cell or as null."""
    path = tmp_path / f"log{suffix}"
    write_table(pd.DataFrame({"step": [0, 1, 2, 3], "loss": [1.0, np.nan, np.nan, np.nan]}), path)
    assert measure_logs([path], "loss", 0.5)["state"].tolist() == ["failed"]
    assert measure_logs([path], "loss", 0.5, missing="skip")["state"].tolist() == ["censored"]


def messages(path, metric="loss", **options):
    """Measure a log; return the table and the messages."""
    notes: list[str] = []
    return measure_logs([path], metric, 0.5, say=notes.append, **options), notes


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_after_blank_rows_suggest_to_skip_them(tmp_path, suffix):
    path = tmp_path / f"log{suffix}"
    loss = [np.nan if step % 7 == 6 else 1.0 if step < 18 else 0.0 for step in range(30)]
    write_table(pd.DataFrame({"step": range(30), "loss": loss}), path)
    table, notes = messages(path)
    assert table["state"].tolist() == ["failed"]
    (note,) = notes
    assert note.endswith(
        "1 failed run has numbers after rows without 'loss'; if it was not evaluated there, "
        "use --missing skip"
    )
    table, notes = messages(path, missing="skip")
    assert (table["plateau"].tolist(), notes) == ([17.5], [])
    diverged = tmp_path / f"diverged{suffix}"
    write_table(pd.DataFrame({"step": range(4), "loss": [1.0, 1.0, np.nan, np.nan]}), diverged)
    table, notes = messages(diverged)
    assert (table["state"].tolist(), notes) == (["failed"], [])


def test_a_literal_nan_before_numbers_can_be_skipped(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("run,step,loss\na,0,1\na,1,nan\na,2,0\nb,0,1\nb,1,nan\nc,0,1\nc,1,inf\nc,2,0\n")
    table, notes = messages(path)
    assert table["state"].tolist() == ["failed"] * 3
    assert len(notes) == 1
    assert "1 failed run has numbers after rows without 'loss'" in notes[0]
    skipped, notes = messages(path, missing="skip")
    assert skipped["state"].tolist() == ["reached", "failed", "failed"]
    assert skipped["plateau"][0] == 1.0
    assert notes == []


def test_epochs_are_steps_if_there_is_nothing_else(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss\n0,1\n1,0\n")
    table, notes = messages(tmp_path / "log.csv")
    assert table["plateau"].tolist() == [0.5]
    assert notes[0].endswith("the column 'step' is missing; 'epoch' is used instead")
    (tmp_path / "both.csv").write_text("epoch,step,loss\n0,0,1\n0,10,0\n")
    table, notes = messages(tmp_path / "both.csv")
    assert (table["plateau"].tolist(), notes) == ([5.0], [])


@pytest.mark.parametrize("names", ["loss_seed{}", "loss/seed={}", "loss seed_{}"])
def test_a_column_per_seed_is_a_run(tmp_path, names):
    """Seed 1 ends early; its cells are blank from there on."""
    columns = ["step", "dim", *map(names.format, (0, 1)), "accuracy_seed0"]
    rows = ["0,4,1,1,7", "1,4,1,1,7", "2,4,0,,8", "3,4,0,,8"]
    (tmp_path / "log.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    table = measure_logs([tmp_path / "log.csv"], "loss", 0.5)
    assert [name.startswith("log/seed") for name in table["run"]] == [True, True]
    assert table["seed"].tolist() == [0, 1]
    assert table["dim"].tolist() == [4, 4]
    assert table["plateau"].tolist() == [1.5, 1.0]
    assert table["state"].tolist() == ["reached", "censored"]


@pytest.mark.parametrize(
    "header", ["step,loss_seed0", "step,loss_0,loss_1", "run,step,loss_seed0,loss_seed1"]
)
def test_other_columns_are_not_runs(tmp_path, header):
    row = ",".join("1" * len(header.split(",")))
    (tmp_path / "log.csv").write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match="unknown column 'loss'; did you mean loss_"):
        measure_logs([tmp_path / "log.csv"], "loss", 0.5)


def test_all_similar_names_are_listed(tmp_path):
    names = ["val/loss", "train_loss", "test_loss", "eval_loss", "Loss_of_all_answers", "lr"]
    (tmp_path / "log.csv").write_text(f"step,{','.join(names)}\n" + "1,2,3,4,5,6,7\n")
    with pytest.raises(InputError, match="did you mean") as caught:
        measure_logs([tmp_path / "log.csv"], "loss", 0.5)
    assert set(str(caught.value).partition("did you mean ")[2][:-1].split(" or ")) == {*names[:5]}


def test_run_names_are_text_and_kept_as_written(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "run,step,loss\n01,0,1\n01,1,0\n1,0,1\n1,1,1\nNA,0,1\nNA,1,0\nnull,0,1\nnull,1,1\n"
    )
    table = measure_logs([path], "loss", 0.5)
    assert table["run"].tolist() == ["01", "1", "NA", "null"]
    assert table["censored"].tolist() == [False, True, False, True]


def test_a_column_called_run_does_not_replace_the_chosen_one(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("name,run,step,loss\nA,grp,0,1\nA,grp,1,0\nB,grp,0,1\nB,grp,1,0\n")
    assert measure_logs([path], "loss", 0.5, run="name")["run"].tolist() == ["A", "B"]


def test_files_of_one_name_are_told_apart_and_runs_of_one_name_are_refused(tmp_path):
    for folder in ("s1", "s2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.csv").write_text("step,loss\n0,1\n1,0\n")
        (tmp_path / folder / "runs.csv").write_text("run,step,loss\na,0,1\na,1,0\n")
    same = [tmp_path / f / "log.csv" for f in ("s1", "s2")]
    assert measure_logs(same, "loss", 0.5)["run"].tolist() == [str(p) for p in same]
    with pytest.raises(InputError, match="run 'a' is in"):
        measure_logs([tmp_path / f / "runs.csv" for f in ("s1", "s2")], "loss", 0.5)
    with pytest.raises(InputError, match=r"is in .* and in"):
        measure_logs([same[0], same[0]], "loss", 0.5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.txt", "x", "expected a log: .csv, .parquet"),
        ("none.csv", None, "no such file"),
        ("empty.csv", "", "the file is empty"),
        ("head.csv", "step,loss\n", "has no rows"),
        ("columns.csv", "step,los\n0,1\n", "unknown column 'loss'; did you mean los"),
        ("extra.csv", "step,loss\n0,1,5\n1,0,5\n", "not a readable CSV file"),
        ("words.csv", "step,loss\n0,1\n1,low\n", "column 'loss' is not numeric, e.g. 'low'"),
        (
            "seeds.csv",
            "step,seed,loss\n0,0,1\n0,1,1\n1,0,0\n1,1,0\n",
            "steps repeat with another 'seed'.*run='seed'",
        ),
        ("blank.csv", "step,loss\n0,\n1,\n", "has no value of 'loss'"),
        ("steps.csv", "step,loss\n,1\n1,0\n", "without a 'step'"),
        ("broken.parquet", "not parquet", "not a readable Parquet file"),
        ("binary.csv", b"\xff\xfd\x00\x01", "neither UTF-8 nor UTF-16"),
    ],
)
def test_the_error_names_an_unreadable_file(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        measure_logs([path], "loss", 0.5)
    assert name in str(caught.value)


def test_exported_curves_are_told_apart_by_identity(tmp_path):
    rows = [(f"{i:016x}", s, 1.0 if s < 3 + i else 0.0) for i in range(3) for s in range(8)]
    pd.DataFrame(rows, columns=["identity", "step", "loss"]).to_parquet(tmp_path / "curves.parquet")
    table = measure_logs([tmp_path / "curves.parquet"], "loss", 0.5)
    assert table["run"].tolist() == [f"{i:016x}" for i in range(3)]
    assert table["plateau"].tolist() == [2.5, 3.5, 4.5]


def test_no_files():
    with pytest.raises(InputError, match="no file"):
        measure_logs([], "loss", 0.5)


@pytest.mark.parametrize("content", ["step, loss\n0, 1\n1, 0\n", "step,loss\n0,1,\n1,0,\n"])
def test_blanks_after_commas_and_commas_at_line_ends_are_ignored(tmp_path, content):
    (tmp_path / "log.csv").write_text(content)
    assert measure_logs([tmp_path / "log.csv"], "loss", 0.5)["plateau"].tolist() == [0.5]


def test_a_table_whose_rows_name_no_run_is_refused(tmp_path):
    path = tmp_path / "log.parquet"
    pd.DataFrame({"identity": [None, None], "step": [0, 1], "loss": [1.0, 0.1]}).to_parquet(path)
    with pytest.raises(InputError, match=r"log\.parquet: holds no run"):
        measure_logs([path], "loss", 0.5)


def test_a_metric_of_bytes_is_refused(tmp_path):
    path = tmp_path / "log.parquet"
    pd.DataFrame({"step": [0, 1], "loss": [b"\xff", b"\xfe"]}).to_parquet(path)
    with pytest.raises(InputError, match="'loss' is not numeric: it holds bytes"):
        measure_logs([path], "loss", 0.5)
