"""`python -m emergo.papers`: what its options become. Nothing is made here."""

import json
import sys

import pytest

from emergo.engine import probe_curves
from emergo.papers import __main__ as module


@pytest.fixture
def asked(monkeypatch):
    """What was asked for, one call after another."""
    calls = []

    def make(ids, preset, out, **options):
        calls.append((ids, preset, options))
        return []

    def add(folder, name, to):
        calls.append((str(folder), name, to))
        return {"fig": 3}

    monkeypatch.setattr(module, "make_figures", make)
    monkeypatch.setattr(module, "add_figure_records", add)
    return calls


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["emergo.papers", *words])
    module.main()


def test_a_campaign(asked, monkeypatch, capsys):
    more = ["--curves", "left", "middle", "--probes", "emergo.engine:probe_curves", "--seconds", "60", "--workers", "3"]
    records = ["--add-records", "records", "--name", "fig", "--out", "runs"]
    call(monkeypatch, "zucchet2025/fig3", *more, *records, "--json")
    (ids, preset, options), added = asked
    assert (ids, preset) == (["zucchet2025/fig3"], "paper")
    expected = {"fresh": False, "partial": False, "seconds": 60.0, "curves": ["left", "middle"], "probes": [probe_curves]}
    assert options == expected | {"workers": 3}
    assert added == ("runs", "fig", "records")
    assert json.loads(capsys.readouterr().out) == {"figures": [], "added": {"fig": 3}}


@pytest.mark.parametrize(("words", "curves"), [((), None), (("--curves",), [])])
def test_curves_are_those_of_all_parts_or_none(asked, monkeypatch, words, curves):
    call(monkeypatch, "zucchet2025/fig3", *words, "--json")
    assert asked[0][2]["curves"] == curves
    assert len(asked) == 1


def test_without_a_figure_the_usage_is_shown(asked, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, asked) == (2, "", [])
    assert err.startswith("usage: python -m emergo.papers")
    assert "name at least one figure" in err


def test_a_probe_that_is_not_there_is_one_line(asked, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, "zucchet2025/fig3", "--probes", "emergo:nothing")
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "emergo: there is no probe emergo:nothing; give one as MODULE:NAME, e.g. emergo.engine:gradient_probe\n"
    )
    assert asked == []
