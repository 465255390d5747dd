"""Runs that were trained elsewhere, as tables. Nothing is trained here."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError
from emergo.engine import Result, Run
from emergo.studies import Records, Store, add_records, build_run, provenance_of, read_records, record_tables
from emergo.studies._records import write_records

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig.curves.parquet", "fig.runs.parquet"]
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
    add_records(wanted[:1], store, "outcomes", tmp_path / "without", curves=False)
    assert not read_records(tmp_path / "without").has_curves(wanted[0])


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


def test_provenance_in_words():
    results = [result("reached", seed) for seed in range(3)]
    results[0] = results[0]._replace(provenance={"device": "NVIDIA H200"})
    assert provenance_of({"all": results, "again": results[:1]}) == "1 runs on NVIDIA H200, 2 runs on cpu"
