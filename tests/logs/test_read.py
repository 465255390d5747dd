"""Test reading runs from every format of logs."""

import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.logs import measure_logs, read_logs


def read_one(path, **options):
    (run,) = read_logs([path], **options)
    return run


def points(run, metric):
    return dict(zip(run.curve(metric).index.tolist(), run.curve(metric).tolist(), strict=True))


def history():
    """Return a history of Weights & Biases, with NaN where a metric was not logged."""
    steps = np.arange(20)
    table = pd.DataFrame(
        {
            "_step": steps,
            "_runtime": steps * 0.1,
            "_timestamp": 1.7e9 + steps,
            "train/loss": 1 / (1 + steps),
        }
    )
    return table.assign(
        **{"val/loss": np.where(steps % 5 == 0, 2 / (1 + steps), np.nan), "lr": 1e-3}
    )


def test_entries_with_too_many_cells_are_refused_before_all_are_read(tmp_path, monkeypatch):
    """A line of JSON takes ten times its length in memory, and gzip hides how long a file is."""
    monkeypatch.setattr("emergo.logs._json._CELLS", 100)
    monkeypatch.setattr("emergo.core.parquet.MOST_CELLS", 500)
    line = json.dumps({f"m{i}": i for i in range(50)})
    (tmp_path / "log.jsonl").write_text("\n".join([line] * 20 + ["broken", ""]))
    with pytest.raises(InputError, match="it unpacks to 12 rows of 50 columns"):
        read_one(tmp_path / "log.jsonl")


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "jsonl"])
def test_a_history_of_weights_and_biases(tmp_path, kind):
    path = tmp_path / f"d4.{kind}"
    lines = []
    if kind == "parquet":
        history().to_parquet(path)
    elif kind == "jsonl":
        path.write_text(
            "".join(json.dumps(row.dropna().to_dict()) + "\n" for _, row in history().iterrows())
        )
    else:
        history().to_csv(path, index=False)  # pandas packs it, by its suffix
    run = read_one(path, say=lines.append)
    assert run.name == "d4"
    assert run.metrics == ["train/loss", "val/loss"]
    assert run.constants == {"lr": 1e-3}
    assert points(run, "val/loss") == {
        step: pytest.approx(2 / (1 + step)) for step in (0, 5, 10, 15)
    }
    assert run.curves.shape == (20, 2)
    assert lines == [f"{path}: the column 'step' is missing; '_step' is used instead"]
    with pytest.raises(InputError, match="unknown metric 'train'"):
        run.curve("train")


def test_another_name_of_the_steps_is_reported_once_for_the_default_name(tmp_path):
    for name in "ab":
        pd.DataFrame({"global_step": [0, 1], "loss": [1.0, 0.0]}).to_csv(tmp_path / f"{name}.csv")
    lines = []
    list(read_logs([tmp_path / "a.csv", tmp_path / "b.csv"], say=lines.append))
    assert len(lines) == 1
    assert "'global_step' is used instead" in lines[0]
    with pytest.raises(InputError, match="unknown column 'steps'; known: global_step, loss"):
        read_one(tmp_path / "a.csv", step="steps")


def chart(tmp_path):
    rows = ['"Step","d4_s0 - a - loss","d4_s0 - a - loss__MIN","d4_s0 - a - loss__MAX"']
    rows[0] += (
        ',"d8_s1 - loss","d8_s1 - loss__MIN","d8_s1 - loss__MAX","d8_s1 - _step","d8_s1 - '
        '_step__MIN"'
    )
    rows += ["0,1.0,1.0,1.0,,,,,", "1,0.5,0.4,0.6,1.5,1.5,1.5,1,1", "2,,,,0.25,0.25,0.25,2,2"]
    (tmp_path / "wandb_export.csv").write_text("\n".join(rows))
    return tmp_path / "wandb_export.csv"


def test_a_chart_of_weights_and_biases(tmp_path):
    runs = list(read_logs([chart(tmp_path)], columns=r"d(?P<dim>\d+)_s(?P<seed>\d+)"))
    assert [run.name for run in runs] == ["d4_s0 - a", "d8_s1"]
    assert [run.metrics for run in runs] == [["loss"], ["loss"]]
    assert [points(run, "loss") for run in runs] == [{0: 1, 1: 0.5}, {1: 1.5, 2: 0.25}]
    assert [run.constants for run in runs] == [{"dim": 4, "seed": 0}, {"dim": 8, "seed": 1}]
    with pytest.raises(InputError, match="run 'd4_s0 - a': unknown metric 'accuracy'"):
        list(read_logs([chart(tmp_path)], metrics=["accuracy"]))


STATE = {
    "best_metric": None,
    "global_step": 20,
    "log_history": [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-3, "loss": 2.0, "step": 10},
        {"epoch": 0.5, "eval_loss": 2.5, "eval_runtime": 0.1, "step": 10},
        {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 5e-4, "loss": math.nan, "step": 20},
        {"epoch": 1.0, "eval_loss": 1.5, "eval_runtime": 0.2, "step": 20},
        {"epoch": 1.0, "step": 20, "train_loss": 1.8, "train_runtime": 3.0},
    ],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_the_state_of_a_trainer(tmp_path, indent):
    """The last checkpoint counts, by number, and its config is read."""
    for step in (5, 10, 20):
        folder = tmp_path / "gpt" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        entries = [entry for entry in STATE["log_history"] if entry["step"] <= step]
        (folder / "trainer_state.json").write_text(
            json.dumps(STATE | {"log_history": entries}, indent=indent)
        )
        (folder / "config.json").write_text(
            json.dumps({"n_layer": 2, "rope": {"theta": 1e4}, "architectures": ["GPT2"]})
        )
    run = read_one(tmp_path / "gpt")
    assert run.name == "gpt"
    assert points(run, "eval_loss") == {10: 2.5, 20: 1.5}
    assert points(run, "loss")[10] == 2.0
    assert math.isnan(points(run, "loss")[20])
    assert run.constants == {"n_layer": 2, "rope.theta": 1e4}
    assert measure_logs([tmp_path / "gpt"], "loss", 0.5)["state"].tolist() == ["failed"]
    run = read_one(tmp_path / "gpt" / "checkpoint-10" / "trainer_state.json")
    assert (run.name, run.curves.index.tolist()) == ("gpt", [10])
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError,
        match=r"empty: a folder without event files of TensorBoard or a trainer_state\.json",
    ):
        read_one(tmp_path / "empty")


def test_json_lines(tmp_path):
    """Read levels, null, text, blank lines, and an incomplete last line."""
    lines = [
        '{"step": 0, "test": {"loss": 1}, "note": "a"}',
        "",
        '{"step": 1, "test": {"loss": NaN}, "note": "b"}',
    ]
    lines += [
        '{"step": 2, "test": {"loss": null}, "note": "c"}',
        '{"step": 3, "test": {"loss": "0.5"}, "note": "d"}',
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*lines, '{"step": 4, "test": {"lo']))
    run = read_one(path)
    assert run.metrics == ["test.loss"]
    assert repr(points(run, "test.loss")) == "{0.0: 1.0, 1.0: nan, 3.0: 0.5}"
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert repr(points(read_one(path.with_suffix(".jsonl.gz")), "test.loss")) == repr(
        points(run, "test.loss")
    )
    path.write_bytes("\n".join(lines).encode("utf-16"))
    assert read_one(path).curve("test.loss").index.tolist() == [0, 1, 3]
    (tmp_path / "list.json").write_text('[\n {"step": 0, "loss": 1.0},\n {"step": 1, "loss": 0.5}]')
    assert points(read_one(tmp_path / "list.json"), "loss") == {0: 1, 1: 0.5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "no entries"),
        ("a.jsonl", b'{"step": 0}\n{"step": \n{"step": 2}\n', r"line 2: "),
        ("a.jsonl", b'{"step": 0}\n[1]\n', r"expected entries such as"),
        ("a.jsonl", b'{"step": 0, "x": ' + b"[" * 10**5, "not a readable JSON file"),
        (
            "a.jsonl",
            b'{"step": 0, "loss": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5001 + b"\n",
            "not a readable JSON file",
        ),
        ("a.jsonl", b'{"step": ' + b"9" * 5000 + b"}\n", "not a readable JSON file"),
        ("a.jsonl", b'{"step": 0, "l\xe9": 1}\n', "neither UTF-8 nor UTF-16"),
        ("trainer_state.json", b'{"a": 1}', "unknown column 'step'"),
        ("trainer_state.json", b'{\n"log_history": [{"step": 1}', "not a readable JSON file"),
        ("trainer_state.json", b'{"log_history": []}', "no entries"),
        ("trainer_state.json", b'{"log_history": [1]}', "expected entries such as"),
        ("config.json", b'{\n"dim": 4\n}', "expected JSON lines, a list of entries"),
        ("a.csv", b"step,step_2\n", "no rows"),
        ("a.csv", b"Step,a - b,a - b__MIN,a - b__MAX\n", "no rows"),
        ("a.parquet", b"PAR1 cut off", "not a readable Parquet file"),
        ("a.csv.gz", b"step,loss\n0,1\n", "unknown column 'acc'"),  # the content decides
    ],
)
def test_unreadable_logs_are_errors_of_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_one(tmp_path / name, metrics=["acc"])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mixed_runs_are_an_error(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"step": [*range(6), *range(6)], "loss": rng.random(12), "config": ["a"] * 6 + ["b"] * 6}
    )
    table.to_csv(tmp_path / "mixed.csv", index=False)
    with pytest.raises(InputError, match=r"mixed\.csv: .*more than one run.*use one file per run"):
        read_one(tmp_path / "mixed.csv")
    assert [run.name for run in read_logs([tmp_path / "mixed.csv"], run="config")] == ["a", "b"]


def test_a_restart_is_detected_in_rows_of_other_metrics(tmp_path):
    """The result does not depend on the requested metrics."""
    path = tmp_path / "log.csv"
    lines = []
    rows = [f"{step},{100 - step}," for step in range(0, 101, 10)] + [
        "100,,0.1",
        "70,30,",
        "80,20,",
    ]
    path.write_text("step,train,test\n0,,9\n" + "\n".join(rows))
    for metrics in (None, ["test"]):
        run = read_one(path, metrics=metrics, say=lines.append)
        assert points(run, "test") == {0: 9}
    assert len(lines) == 2
    assert "restarted (steps go back to 70)" in lines[0]


def test_rows_without_a_step_are_an_error_for_requested_metrics_only(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"params": 9}\n{"step": 0, "loss": 1}\n{"step": 1, "loss": 0}\n'
    )
    run = read_one(tmp_path / "log.jsonl")
    assert points(run, "loss") == {0: 1, 1: 0}
    with pytest.raises(InputError, match="rows without a 'step'"):
        read_one(tmp_path / "log.jsonl", metrics=["params"])


def test_nullable_integers_of_pandas(tmp_path):
    frame = pd.DataFrame(
        {"step": pd.array([0, 1, 2], "Int64"), "seed": pd.array([7, 7, 7], "Int64")}
    )
    frame.assign(loss=pd.array([1, None, 0], "Int64"), other=[1.0, 2.0, 3.0]).to_parquet(
        tmp_path / "a.parquet"
    )
    run = read_one(tmp_path / "a.parquet", metrics=["loss"])
    assert run.constants == {"seed": 7}
    assert points(run, "loss") == {0: 1, 2: 0}


def test_the_step_is_no_metric(tmp_path):
    history().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="'_step' is the column of steps; name another one"):
        list(read_logs([tmp_path / "a.csv"], step="_step", metrics=["_step"]))
