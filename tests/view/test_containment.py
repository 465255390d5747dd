"""One unusable file or run next to a good study: it is named, and the rest is shown, by the server,
in the exported file and in tables."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emergo.cli._study import Export, Show
from emergo.cli._view import View
from emergo.core.json import seal
from emergo.logs import read_logs
from emergo.study.results import record_tables
from emergo.view import Catalog

from .logs import write_log
from .made_up import finish, made_up_result, made_up_study
from .test_server import ask

STUDY = made_up_study(dims=[4, 8, 16], lengths=[8], seeds=1)
DIGITS = "9" * 5000
LAW = {"name": "law", "formula": "plateau = 1 dim^1.00", "exponents": {"dim": 1.0}}
LAW |= {"terms": [{"term": "dim", "fixed": False}], "tables": ["cells"]}


def records(change):
    """Write records of two runs after a change of their tables."""

    def write(folder, name):
        results = [made_up_result(run, 10) for run in STUDY.runs[:2]]
        runs, curves = change(*record_tables(results))
        for kind, table in (("runs", runs), ("curves", curves)):
            if isinstance(table, pd.DataFrame):
                table = pa.Table.from_pandas(table, preserve_index=False)
            pq.write_table(table, folder / f"{name}.{kind}.parquet")

    return write


def figure(law=None, curves=None, **columns):
    """Write a figure with a law, a table of runs, and possibly a table of curves."""

    def write(folder, name):
        report = {"figure": name, "laws": [LAW | (law or {})], "checks": []}
        (folder / f"{name}.json").write_text(json.dumps(report))
        rows = {"identity": ["a", "b"], "dim": [1.0, 2.0], "plateau": [1.0, 2.0]} | columns
        pq.write_table(pa.table(rows), folder / f"{name}.cells.parquet")
        if curves is not None:
            pq.write_table(pa.table(curves), folder / f"{name}.lines.parquet")

    return write


def config(text):
    """Put a text in the place of the description of a recorded run."""
    return records(lambda runs, curves: (runs.assign(run=[text, runs["run"][1]]), curves))


def odd_step(values):
    return records(lambda runs, curves: (runs, _with_step(curves, values)))


def _with_step(curves, values):
    table = pa.Table.from_pandas(curves, preserve_index=False)
    at = table.column_names.index("step")
    return table.set_column(at, "step", pa.array(values[: len(table)]))


STRUCTS = [{"a": 1}] * 1000
FILES = {
    "identities are lists": records(lambda r, c: (r.assign(identity=[["a"], ["b"]]), c)),
    "identities are missing": records(lambda r, c: (r.drop(columns="identity"), c)),
    "identities occur twice": records(lambda r, c: (r.assign(identity="a" * 16), c)),
    "identities are numbers": records(lambda r, c: (r.assign(identity=[1, 2]), c)),
    "a curve with 5,000 digits": records(
        lambda r, c: (r, c.rename(columns={"loss": f"a_{DIGITS}"}))
    ),
    "a curve with a large index": records(lambda r, c: (r, c.rename(columns={"loss": "a_999999"}))),
    "a column with a name of 5,000 digits": records(lambda r, c: (r.assign(**{DIGITS: [1, 2]}), c)),
    "NaN in a config": config('{"config": {"task": NaN}}'),
    "a config of brackets": config("[" * 100_000),
    "a config that is a list": config("[]"),
    "a large number in a config": config('{"config": {"dim": 1' + "0" * 5000 + "}}"),
    "steps are texts": odd_step(["a"] * 1000),
    "steps are structs": odd_step(STRUCTS),
    "steps are NaN": odd_step([np.nan] * 1000),
    "steps are huge": odd_step([1e308] * 1000),
    "steps fall": odd_step([float(i) for i in range(1000, 0, -1)]),
    "plateaus are lists": records(lambda r, c: (r.assign(plateau=[[1], [2]]), c)),
    "plateaus are texts": records(lambda r, c: (r.assign(plateau=["a", "b"]), c)),
    "plateaus are huge": records(lambda r, c: (r.assign(plateau=1e308, dim=[1e308, 1e-308]), c)),
    "plateaus are huge integers": records(lambda r, c: (r.assign(plateau=[2**62, 2**63 - 1]), c)),
    "states are bytes": records(lambda r, c: (r.assign(state=[b"\xff", b"\xfe"]), c)),
    "censored is a text": records(lambda r, c: (r.assign(censored=["maybe", "no"]), c)),
    "a column of structs": records(lambda r, c: (r.assign(dim=STRUCTS[:2]), c)),
    "a column of times": records(lambda r, c: (r.assign(dim=pd.to_datetime(["2000", "2001"])), c)),
    "a name with escapes": records(lambda r, c: (r.assign(**{"\x1b[31m": [1, 2]}), c)),
    "exponents are a list": figure({"exponents": [1.0]}),
    "a formula is a number": figure({"formula": 3}),
    "a term is a list": figure({"terms": [{"term": ["dim"], "fixed": False}]}),
    "a term is unknown": figure({"terms": [{"term": "none", "fixed": False}]}),
    "tables are numbers": figure({"tables": [1]}),
    "a law with an odd interval": figure({"ci95": {"dim": 3}}),
    "a published law is a text": figure({"published": "text"}),
    "steps of a figure are structs": figure(curves={"step": STRUCTS[:5], "loss": [1.0] * 5}),
    "steps of a figure are texts": figure(curves={"step": ["a", "b"], "loss": [1.0, 2.0]}),
    "steps of a figure are missing": figure(curves={"step": [None, 1.0], "loss": [1.0, 2.0]}),
    "curves of a figure are structs": figure(curves={"step": [1, 2], "loss": STRUCTS[:2]}),
    "parts of a figure are lists": figure(part=[["a"], ["b"]]),
}


# Read as they are: what is odd about them hides no other value.
USABLE = {
    "NaN in a config",  # the config says that it cannot be read
    "a config of brackets",
    "a config that is a list",
    "a large number in a config",
    "steps fall",
    "plateaus are huge",
    "plateaus are huge integers",
    "a curve with a large index",
    "a curve with 5,000 digits",
    "parts of a figure are lists",
    "steps are huge",
    "states are bytes",
    "a column of structs",
    "a column of times",
    "a name with escapes",
    "a term is a list",
    "a term is unknown",
    "tables are numbers",
    "curves of a figure are structs",
}


def show_all(folder):
    """Ask the server for everything; return what it lists, and the texts of all answers."""
    catalog = Catalog(folder)
    index = ask("/api/index", catalog)
    assert index.status_code == 200, index.text
    texts = [index.text]
    asked = ["runs", "picture"]
    for one in index.json()["sets"]:
        key = one["key"]
        runs = catalog.get(key).runs
        requests = [(name, {}) for name in asked]
        requests += [("law", {"x": json.dumps(x)}) for x in (["dim"], ["dim", "length"])]
        for run in runs[:1]:
            requests += [(name, {"run": run}) for name in ("run", "stages", "forecast")]
        for name in one["curves"] or ("loss",):
            requests.append(("curves", {"runs": ",".join(map(str, runs)), "name": name[:5000]}))
        for name, parameters in requests:
            answer = ask(f"/api/{name}", catalog, set=key, **parameters)
            assert answer.status_code in (200, 400, 404), (name, parameters, answer.text[:300])
            if answer.status_code == 200 and name not in ("picture", "curves"):
                json.dumps(answer.json(), allow_nan=False)
                texts.append(answer.text)
    assert ask("/api/live", catalog).status_code == 200
    return index.json(), "\n".join(texts)


def good_rows(catalog):
    table = catalog.get(STUDY.name).table()
    return dict(zip(table["columns"]["identity"], table["columns"]["plateau"], strict=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The good study. Pages are exported without the library that draws."""
    monkeypatch.setattr("emergo.view._export.bundle", lambda: "")
    monkeypatch.setattr("emergo.view._answers.MOST_LAWS", 3)  # they take most of the time
    finish(STUDY, tmp_path / "in", evaluations=10, fail=None)
    return tmp_path / "in"


@pytest.mark.slow
def test_every_unusable_file_is_named_and_the_rest_is_shown(folder, tmp_path, capsys):
    expected = good_rows(Catalog(folder))
    for number, write in enumerate(FILES.values()):
        write(folder, f"odd{number}.x")
    index, words = show_all(folder)
    assert good_rows(Catalog(folder)) == expected
    notes = " ".join(index["notes"] + [note for one in index["sets"] for note in one["notes"]])
    shown = {one["key"] for one in index["sets"]}
    assert STUDY.name in shown
    View(folder, export=tmp_path / "page.html", json=True).run()
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"] >= len(expected)
    named = {}
    for number, what in enumerate(FILES):
        name = f"odd{number}.x"
        named[what] = f"{name}." in notes
        assert named[what] or name in shown, f"{what}: neither named nor shown"
        assert named[what] == (f"{name}." in err), what
    assert {what for what in FILES if not named[what]} == USABLE
    assert "\x1b" not in out + err + words.replace("\\u001b", "")


@pytest.mark.parametrize("part", ["studies", "runs", "runs/packs", "failures"])
def test_a_folder_that_cannot_be_listed_is_named_and_the_rest_is_shown(
    part, folder, tmp_path, monkeypatch
):
    """Root may read everything, so the error is made up."""
    shutil.copytree(folder, tmp_path / "place" / "good")
    shutil.copytree(folder, tmp_path / "place" / "denied")
    denied = tmp_path / "place" / "denied" / part
    denied.mkdir(exist_ok=True)
    scandir = os.scandir

    def listed(path="."):
        if str(path) == str(denied):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    catalog = Catalog(tmp_path / "place")
    assert f"good: {STUDY.name}" in catalog.sets()
    notes = [*catalog.notes, *(note for one in catalog.sets().values() for note in one.notes)]
    assert any("Permission denied" in note and part in note for note in notes)


def test_an_unexpected_error_of_a_log_is_named_and_the_rest_is_shown(folder, monkeypatch):
    for name in ("good", "odd"):
        write_log(folder / f"{name}.csv")

    def read(files, **options):
        if files[0].name == "odd.csv":
            raise KeyError("unexpected")
        return read_logs(files, **options)

    monkeypatch.setattr("emergo.view._logs.read_logs", read)
    sets = Catalog(folder).sets()
    assert set(sets) == {STUDY.name, "logs"}
    assert sets["logs"].runs == ["good"]
    assert sets["logs"].notes == ("odd.csv: KeyError: 'unexpected'",)


def reseal(run, folder, columns=None, content=None):
    """Change a stored run, with checksums that fit."""
    path = folder / "runs" / run
    if columns is not None:
        table = pq.read_table(path / "curves.parquet").to_pydict()
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns(table)), buffer)
        (path / "curves.parquet").write_bytes(buffer.getvalue())
    about = json.loads((path / "run.json").read_text())
    del about["checksum"]
    about["files"] = {
        "curves.parquet": hashlib.sha256((path / "curves.parquet").read_bytes()).hexdigest()
    }
    if content is not None:
        content(about)
    (path / "run.json").write_bytes(seal(about))


RUNS = {
    "time = 1e308": {"content": lambda a: a["outcome"].update(time=1e308, high=1e308)},
    "a negative time": {"content": lambda a: a["outcome"].update(time=-1.0, low=-2.0)},
    "steps are NaN": {"columns": lambda t: t | {"step": [np.nan] * len(t["step"])}},
    "steps fall": {"columns": lambda t: t | {"step": t["step"][::-1]}},
    "steps are infinite": {"columns": lambda t: t | {"step": [*map(float, t["step"][1:]), np.inf]}},
    "5,000 digits": {"columns": lambda t: t | {f"a_{DIGITS}": t["loss"]}},
    "a large index": {"columns": lambda t: t | {"a_999999_9999": t["loss"]}},
    "a long name": {"columns": lambda t: t | {"a" * 5000: t["loss"]}},
    "curves are texts": {"columns": lambda t: t | {"loss": ["a"] * len(t["step"])}},
    "no steps": {"columns": lambda t: {"loss": t["loss"]}},
}


@pytest.mark.slow
def test_every_unusable_run_is_named_and_the_rest_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.view._export.bundle", lambda: "")
    folder = tmp_path / "in"
    study = made_up_study(dims=[4, 8, 16], lengths=[8], seeds=5)
    finish(study, folder, evaluations=10, fail=None)
    expected = good_rows(Catalog(folder))
    odd = [run.identity for run in study.runs[1 : 1 + len(RUNS)]]
    for run, change in zip(odd, RUNS.values(), strict=True):
        reseal(run, folder, **change)
    _, words = show_all(folder)
    rest = {run: value for run, value in expected.items() if run not in odd}
    assert good_rows(Catalog(folder)) == rest
    commands = {
        "show": Show(folder),
        "export": Export(folder, to=tmp_path / "t.csv", curves=tmp_path / "c.csv"),
        "view": View(folder, export=tmp_path / "page.html"),
    }
    said = {"server": words}
    for name, command in commands.items():
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            command.run()
        said[name] = out.getvalue()
    for name, text in said.items():
        for run, what in zip(odd, RUNS, strict=True):
            assert run in text, f"{name} does not name the run: {what}"
    table = pd.read_csv(tmp_path / "t.csv")
    assert dict(zip(table["identity"], table["plateau"], strict=True)) == pytest.approx(rest)
    assert set(pd.read_csv(tmp_path / "c.csv")["identity"]) == set(rest)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(study.read(folder)) == len(rest)
    assert all(any(run in str(one.message) for one in caught) for run in odd)


def test_runs_with_curves_of_different_types_are_all_exported(folder, tmp_path):
    odd = STUDY.runs[1].identity
    reseal(odd, folder, lambda t: t | {"loss": [value < 0.5 for value in t["loss"]]})
    Export(folder, to=tmp_path / "t.csv", curves=tmp_path / "c.parquet", json=True).run()
    curves = pd.read_parquet(tmp_path / "c.parquet")
    assert set(curves["identity"]) == {run.identity for run in STUDY.runs}
    assert set(curves["loss"][curves["identity"] == odd]) <= {0.0, 1.0}


ODD_TERMS = [
    "[" * 20_000,
    "[" * 3000 + "]" * 3000,
    "[NaN]",
    "[1e999]",
    "[[]]",
    "[{}]",
    '"dim"',
    "1" * 5000,
]
ODD_TERMS += ["[" + "9" * 5000 + "]", '["dim^1e308"]', '["dim^nan"]', '["' + "dim*" * 999 + 'dim"]']


@pytest.mark.parametrize("text", ODD_TERMS, ids=[text[:12] for text in ODD_TERMS])
@pytest.mark.parametrize("parameter", ["x", "where"])
def test_an_odd_law_is_a_wrong_request(text, parameter, catalog):
    answer = ask("/api/law", catalog, set="made up", **({"x": '["dim"]'} | {parameter: text}))
    assert answer.status_code == 400, answer.text[:300]
    assert len(answer.text) < 1000
