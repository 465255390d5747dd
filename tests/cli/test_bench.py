"""`emergo bench`."""

import importlib.util
import json
import os

import pytest

from .command import call

TIMED = {
    "layers": 2,
    "heads": 4,
    "length": 64,
    "dim": 16,
    "runs": 4,
    "precision": "fp32",
    "ms": 12.5,
    "runs_per_hour": 28.8,
    "ratio": 2.5,
    "ratio_compile": None,
    "ratio_expert": 1.5,
    "share_of_roofline": 0.5,
}


@pytest.fixture
def timed(monkeypatch, cpu):
    """The cases that the benchmark of training was asked for; nothing is timed."""
    asked = []

    def bench_training(cases):
        asked.extend(cases)
        print("a compiler talks")
        yield TIMED
        yield {k: TIMED[k] for k in ("layers", "heads", "length", "dim", "runs", "precision")} | {"error": "4 runs do not fit"}

    monkeypatch.setattr("emergo.bench.bench_training", bench_training)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return asked


def test_bench_prints_a_row_a_case(capsys, monkeypatch, timed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, out, err = call(capsys, "bench", "training", "--quick")
    head, under, first, second = out.splitlines()
    assert status == 0
    assert err == (
        "emergo: PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'\na compiler talks\n"
    )
    assert first.split() == ["2", "4", "64", "16", "4", "fp32", "12.5", "28.8", "2.5", "-", "1.5", "50%"]
    assert second.endswith("4 runs do not fit")
    assert len(first) == len(head) > len(under)
    assert len(timed) == 2


def test_bench_prints_one_json_object(capsys, monkeypatch, timed):
    monkeypatch.setattr("emergo.bench.bench_flows", lambda cells: {"name": "flows", "cells": cells})
    status, out, _ = call(capsys, "bench", "--cells", "3", "--json")
    flows, first, second = json.loads(out)["benchmarks"]
    assert status == 0
    assert flows == {"name": "flows", "cells": 3}
    assert first == TIMED
    assert "error" in second
    assert len(timed) > 2
    assert len(json.loads(call(capsys, "bench", "flows", "--json")[1])["benchmarks"]) == 1


def test_bench_warns_of_other_work(capsys, monkeypatch, timed):
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert "other work spoils timings" in call(capsys, "bench", "training", "--quick")[2]
