"""Records: runs that were trained elsewhere, as tables."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.store import Records, merge_records, read_records
from emergo.store.records import POINTS, SHIPPED, record_tables, thinned, write_records

from .examples import KINDS, content, curves, same_curves

RUNS = [content(seed=seed)["identity"] for seed in range(5)]


def write(folder, *runs, name: str = "fig") -> None:
    """Write records of runs, each given as its kind and seed, and True for curves."""
    pairs = [(content(k, seed), curves(k, seed) if drawn else None) for k, seed, drawn in runs]
    write_records(*record_tables(pairs), folder, name)


def test_records_are_read_as_they_were_written(tmp_path):
    for seed, kind in enumerate(KINDS):
        write(tmp_path, (kind, seed, kind != "failed"), name=f"fig{seed % 2}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"fig{number}.{kind}"
        for number in (0, 1)
        for kind in ("curves.parquet", "runs.parquet", "sha256")
    ]
    records = read_records(tmp_path)
    assert len(records) == 5
    for seed, kind in enumerate(KINDS):
        run = records.read(RUNS[seed])
        expected = content(kind, seed)
        assert (run.row["state"], run.row["seed"]) == (expected["outcome"]["state"], seed)
        assert run.row["failed_step"] == expected["outcome"]["failed_step"]
        assert run.row["reason"] == expected["outcome"].get("reason")
        assert run.provenance == {"device": "cpu"}
        assert json.loads(run.row["run"])["config"] == expected["config"]
        assert records.holds(RUNS[seed], curves=True) == (kind != "failed")
        assert records.name_of(RUNS[seed]) == f"fig{seed % 2}"
        if kind == "failed":
            assert run.curves is None
        else:
            same_curves(run, curves(kind, seed))
    assert "0" * 16 not in records


def test_new_records_replace_the_same_runs_and_keep_the_others(tmp_path):
    write(tmp_path, ("reached", 0, True))
    write(tmp_path, ("reached", 1, False), ("censored", 0, True))
    write(tmp_path)
    records = read_records(tmp_path)
    assert records.read(RUNS[0]).row["state"] == "censored"
    assert records.read(RUNS[1]).row["plateau"] == 48.0
    same_curves(records.read(RUNS[0]), curves("censored", 0))
    assert not records.holds(RUNS[1], curves=True)


def test_merging_adds_missing_runs_and_missing_curves(tmp_path):
    write(tmp_path / "there", ("reached", 0, False), ("reached", 2, True))
    write(tmp_path / "new", *[("reached", seed, True) for seed in range(3)])
    assert merge_records(tmp_path / "new", tmp_path / "there") == {"fig": 2}
    merged = read_records(tmp_path / "there")
    for seed in range(3):
        same_curves(merged.read(RUNS[seed]), curves(seed=seed))
    assert merge_records(tmp_path / "new", tmp_path / "there") == {}


@given(st.integers(1, 500))
def test_thinned_curves_keep_evenly_spaced_evaluations(count):
    whole = {"step": np.arange(count), "heads": np.random.default_rng(0).random((count, 2))}
    thin = thinned(whole)
    assert len(thin["step"]) == min(count, POINTS)
    assert {thin["step"][0], thin["step"][-1]} == {0, count - 1}
    assert (np.diff(thin["step"]) > 0).all()
    np.testing.assert_array_equal(thin["heads"], whole["heads"][thin["step"]])


def test_arrays_at_few_evaluations_take_one_column(tmp_path):
    """Runs of the same table may have other shapes, or no array; later additions keep them."""
    rng = np.random.default_rng(0)
    expected = []
    for seed, shape in enumerate([(2, 3, 3), (4, 3, 3), ()]):
        own = curves(seed=seed)
        if shape:
            own["map"] = np.full((3, *shape), np.nan, np.float32)
            own["map"][1] = rng.random(shape)
        expected.append(own)
    pairs = [(content(seed=seed), own) for seed, own in enumerate(expected)]
    for part in (pairs[:1], pairs[1:]):
        write_records(*record_tables(part), tmp_path, "fig")
    columns = pd.read_parquet(tmp_path / "fig.curves.parquet").columns
    assert [column for column in columns if "map" in column] == ["map:2x3x3", "map:4x3x3"]
    for seed, own in enumerate(expected):
        same_curves(read_records(tmp_path).read(RUNS[seed]), own)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("map:300000x300000", "cannot reshape"),  # it would take terabytes
        ("map:2x2", r"shape \(3, 2, 2\); at most 11 numbers"),
        ("map:two", "invalid literal"),
    ],
)
def test_arrays_of_another_size_than_their_name_says_are_refused(column, why, monkeypatch):
    monkeypatch.setattr("emergo.store.curves.MOST_VALUES", 11)
    runs, _ = record_tables([(content(seed=0), None)])
    values = [None, np.zeros(4), None]
    table = pd.DataFrame({"identity": RUNS[0], "step": [0, 1, 2], column: values})
    records = Records(runs.assign(records="fig"), table)
    with pytest.raises(InputError, match=f"records fig: .*{RUNS[0]}.*{why}"):
        records.read(RUNS[0])


def test_arrays_are_rounded_and_scalars_are_exact(tmp_path):
    heads = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    heads[0] = np.nan, np.inf
    own = curves() | {"heads": heads, "scalar": heads[:, 0].copy()}
    write_records(*record_tables([(content(), own)]), tmp_path, "fig")
    read = read_records(tmp_path).read(RUNS[0]).curves
    assert read is not None
    np.testing.assert_array_equal(read["scalar"], own["scalar"])
    np.testing.assert_allclose(read["heads"], heads, rtol=2**-12)
    assert (read["heads"] != heads)[1:].mean() > 0.9


def test_missing_and_empty_records(tmp_path):
    assert len(read_records(tmp_path / "absent")) == 0
    assert len(Records(*record_tables([]))) == 0


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_damaged_records_are_named(tmp_path, kind):
    """One changed bit is found by the checksum, even if the table is still readable."""
    write(tmp_path, ("reached", 0, True))
    assert len(read_records(tmp_path)) == 1
    path = tmp_path / f"fig.{kind}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    words = rf"{path.name}: cannot be read as records \(it has another checksum"
    with pytest.raises(InputError, match=words):
        read_records(tmp_path)


def test_records_without_checksums_are_checked_by_their_identities(tmp_path):
    runs, _ = record_tables([(content(), None)])
    path = tmp_path / "fig.runs.parquet"
    runs.to_parquet(path)
    assert RUNS[0] in read_records(tmp_path)
    runs["run"] = runs["run"].str.replace('"seed": 0', '"seed": 1')
    runs.to_parquet(path)
    with pytest.raises(InputError, match="a run has another identity than its description"):
        read_records(tmp_path)
    path.write_text("not a table")
    with pytest.raises(InputError, match=r"fig\.runs\.parquet"):
        read_records(tmp_path)


def test_all_shipped_records_have_checksums():
    listed = [name for path in SHIPPED.glob("*.sha256") for name in path.read_text().split()[1::2]]
    assert sorted(listed) == sorted(path.name for path in SHIPPED.glob("*.parquet"))


def test_a_link_without_a_target_is_named(tmp_path):
    (tmp_path / "fig.runs.parquet").symlink_to("fig.runs.parquet")
    with pytest.raises(InputError, match=r"fig\.runs\.parquet: cannot be read as records"):
        read_records(tmp_path)
