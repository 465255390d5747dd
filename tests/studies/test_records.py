"""Runs that were trained elsewhere, as tables. Nothing is trained here."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo._errors import InputError
from emergo.engine import Result, Run
from emergo.studies import (
    Records,
    Store,
    add_records,
    build_run,
    merge_records,
    provenance_of,
    read_records,
    record_tables,
)
from emergo.studies._records import SHIPPED, thinned, write_records

from .test_store import CONFIG, LOSSES, result, same


def short(one: Result) -> Result:
    """A result whose curves of several numbers have 12 significant bits to begin with, so that records keep them to the bit."""
    assert one.curves is not None
    coarse = {name: np.ldexp(np.round(np.ldexp(v, 8)), -8).astype(v.dtype) for name, v in one.curves.items() if v.ndim > 1}
    return one._replace(curves={**one.curves, **coarse})


def test_records_through_parquet(tmp_path):
    written = [result(kind, seed) for seed, kind in enumerate(LOSSES)]
    runs, curves = record_tables([*written[:3], written[3]._replace(curves=None)])
    runs.to_parquet(tmp_path / "fig.runs.parquet")
    curves.to_parquet(tmp_path / "fig.curves.parquet")
    more = result("reached", 99)
    record_tables([more])[0].to_parquet(tmp_path / "other.runs.parquet")
    records = read_records(tmp_path)
    assert len(records) == 5
    for one in written[:3]:
        assert one.run in records
        assert records.has_curves(one.run)
        same(records.read(one.run), one)
    for one in (written[3], more):
        assert not records.has_curves(one.run)
        read = records.read(one.run)
        assert read.curves is None
        assert (read.state, read.plateau) == (one.state, one.plateau)
    assert Run(CONFIG, 1234) not in records
    assert build_run(json.loads(runs["run"][0])) == written[0].run


def test_records_are_added_to_those_that_are_there(tmp_path):
    """Other runs are kept, the same ones replaced with their curves, and numbers are those that were written."""
    first, second, again = short(result("reached", 0)), short(result("reached", 1)), short(result("censored", 0))
    for written in ([first], [second._replace(curves=None), again], []):
        write_records(*record_tables(written), tmp_path, "fig")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig.curves.parquet", "fig.runs.parquet", "fig.sha256"]
    records = read_records(tmp_path)
    same(records.read(again.run), again)
    assert records.read(second.run).plateau == second.plateau
    assert not records.has_curves(second.run)


def test_the_runs_of_a_store_become_records(tmp_path):
    store = Store(tmp_path / "runs")
    for seed in range(2):
        store.write(short(result("reached", seed)))
    wanted = [Run(CONFIG, seed) for seed in range(3)]
    assert add_records(wanted, store, "fig", tmp_path / "records") == 2
    assert add_records([Run(CONFIG, 5)], store, "fig", tmp_path / "records") == 0
    records = read_records(tmp_path / "records")
    assert [run in records for run in wanted] == [True, True, False]
    same(records.read(wanted[1]), short(result("reached", 1)))


def made_again(tmp_path):
    """Records of a run without its curves, and a store that has the run from a second training, 300 evaluations long."""
    first, again, store = result("reached", 0), result("censored", 0), Store(tmp_path / "runs")
    write_records(*record_tables([first._replace(curves=None)]), tmp_path / "records", "fig")
    steps = np.arange(0, 7500, 25)
    again = again._replace(curves={"step": steps, "loss": np.linspace(0.5, 0.1, 300, dtype=np.float32)})
    store.write(again)
    return first, again, store


def test_curves_are_put_beside_a_recorded_outcome(tmp_path):
    """By another name than that of the records that have it: the outcome stays, and the second time is told of."""
    first, again, store = made_again(tmp_path)
    assert add_records([first.run], store, "other", tmp_path / "records", thin=True) == 1
    assert not (tmp_path / "records" / "other.runs.parquet").exists()
    records = read_records(tmp_path / "records")
    read = records.read(first.run)
    assert (read.state, read.plateau, read.steps) == (first.state, first.plateau, first.steps)
    assert read.provenance["device"] == first.provenance["device"]
    assert read.provenance["curves_state"] == "censored"
    assert float(read.provenance["curves_plateau"]) == again.plateau.time
    assert read.curves is not None
    assert (len(read.curves["step"]), read.curves["step"][0], read.curves["step"][-1]) == (100, 0, 7475)
    assert add_records([first.run], store, "other", tmp_path / "records") == 0, "they are there now"


def test_records_made_elsewhere_are_merged(tmp_path):
    """Runs that are lacking, and curves of those that are there without."""
    first, _, store = made_again(tmp_path)
    second = short(result("reached", 1))
    store.write(second)
    write_records(*record_tables([first._replace(curves=None)]), tmp_path / "elsewhere", "fig")
    assert add_records([first.run, second.run], store, "fig", tmp_path / "elsewhere") == 2
    assert merge_records(tmp_path / "elsewhere", tmp_path / "records") == {"fig": 2}
    merged = read_records(tmp_path / "records")
    assert merged.read(first.run).plateau == first.plateau
    assert len((merged.read(first.run).curves or {})["step"]) == 300
    same(merged.read(second.run), second)
    assert merge_records(tmp_path / "elsewhere", tmp_path / "records") == {}


@given(st.integers(1, 500), st.integers(2, 200))
def test_thinned_curves_are_some_of_the_evaluations(count, points):
    curves = {"step": np.arange(count), "heads": np.random.default_rng(0).random((count, 2))}
    some = thinned(curves, points)
    assert len(some["step"]) == min(count, points)
    assert {some["step"][0], some["step"][-1]} == {0, count - 1}
    assert (np.diff(some["step"]) > 0).all()
    np.testing.assert_array_equal(some["heads"], curves["heads"][some["step"]])


def test_arrays_of_few_evaluations_are_one_column(tmp_path):
    """Beside runs that have none, or some of another shape; adding more later keeps them."""
    rng, kept = np.random.default_rng(0), []
    for seed, shape in enumerate([(2, 3, 3), (4, 3, 3), ()]):
        one = result("reached", seed)
        maps = np.full((3, *shape), np.nan, np.float32)
        maps[1] = rng.random(shape)
        kept.append(one._replace(curves=dict(one.curves or {}) | ({"map": maps} if shape else {})))
    for part in (kept[:1], kept[1:]):
        write_records(*record_tables(part), tmp_path, "fig")
    columns = pd.read_parquet(tmp_path / "fig.curves.parquet").columns
    assert [column for column in columns if "map" in column] == ["map:2x3x3", "map:4x3x3"]
    records = read_records(tmp_path)
    for one in kept:
        curves = records.read(one.run).curves or {}
        assert curves.keys() == (one.curves or {}).keys()
        for name, values in (one.curves or {}).items():
            np.testing.assert_allclose(curves[name], values, rtol=0 if name == "map" else 2**-12)


def test_curves_of_several_numbers_are_shortened(tmp_path):
    """To 12 significant bits, those of one number not at all; what is not finite stays."""
    one = result("reached", 0)
    assert one.curves is not None
    heads = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    heads[0] = np.nan, np.inf
    scalar = heads[:, 0].copy()
    write_records(*record_tables([one._replace(curves={**one.curves, "heads": heads, "scalar": scalar})]), tmp_path, "fig")
    read = read_records(tmp_path).read(one.run).curves
    assert read is not None
    np.testing.assert_array_equal(read["scalar"], scalar)
    np.testing.assert_allclose(read["heads"], heads, rtol=2**-12)
    assert (read["heads"] != heads)[1:].mean() > 0.9


def test_no_records_are_no_error(tmp_path):
    assert Run(CONFIG, 0) not in read_records(tmp_path / "absent")
    assert len(Records(*record_tables([]))) == 0


def test_records_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "fig.runs.parquet").write_text("not a table")
    with pytest.raises(InputError, match=r"fig\.runs\.parquet"):
        read_records(tmp_path)


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_records_that_were_damaged_are_named(tmp_path, kind):
    """Where a bit has changed that leaves the table readable, too."""
    write_records(*record_tables([result("reached", 0)]), tmp_path, "fig")
    assert len(read_records(tmp_path)) == 1
    path = tmp_path / f"fig.{kind}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{path.name}: cannot be read as records \(it has another checksum"):
        read_records(tmp_path)


def test_records_whose_runs_are_others_are_named(tmp_path):
    """Without a list of checksums, by the hash of every description."""
    runs, _ = record_tables([result("reached", 0)])
    runs["run"] = runs["run"].str.replace('"seed": 0', '"seed": 1')
    runs.to_parquet(tmp_path / "fig.runs.parquet")
    with pytest.raises(InputError, match="a run has another identity than its description"):
        read_records(tmp_path)


def test_all_records_of_the_package_have_checksums():
    lists = {path.stem: path.read_text().split()[1::2] for path in SHIPPED.glob("*.sha256")}
    assert sorted(name for names in lists.values() for name in names) == sorted(p.name for p in SHIPPED.glob("*.parquet"))


def test_provenance_in_words():
    results = [result("reached", seed) for seed in range(3)]
    results[0] = results[0]._replace(provenance={"device": "NVIDIA H200"})
    assert provenance_of({"all": results, "again": results[:1]}) == "1 runs on NVIDIA H200, 2 runs on cpu"
