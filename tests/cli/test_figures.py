"""`emergo figures` and `emergo figure`."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from .command import call


def test_figures_lists_all_with_their_state(capsys, tmp_path):
    status, out, _ = call(capsys, "figures", "--out", str(tmp_path), "--json")
    rows = {f["id"]: f for f in json.loads(out)["figures"]}
    assert status == 0
    assert {f"zucchet2025/fig{n}" for n in (1, 2, 6, 7, 8, 9, 10)} | {"emergo/reduction", "emergo/closed-form"} <= set(rows)
    assert all(f["made"] is None and f["shows"] and f["seconds"]["laptop"] for f in rows.values())
    status, out, _ = call(capsys, "figures", "--out", str(tmp_path))
    assert "emergo/closed-form" in out


def test_figures_shows_what_is_still_to_be_trained(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 0.0 if f.id.endswith("fig3") else 40_000.0)
    found = call(capsys, "figures", "--out", str(tmp_path))[1]
    lines = {line.split()[0]: line for line in found.splitlines()}
    assert lines["zucchet2025/fig3"].count("recorded") == 2
    assert lines["zucchet2025/fig13"].count("11 h") == 2
    rows = json.loads(call(capsys, "figures", "--out", str(tmp_path), "--json")[1])["figures"]
    assert {f["id"]: f["needed"]["paper"] for f in rows}["zucchet2025/fig3"] == 0


@pytest.mark.slow
def test_figure_prints_json_and_nothing_else(capsys, tmp_path):
    status, out, _ = call(capsys, "figure", "zucchet2025/fig7", "--preset", "smoke", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert status == 0
    assert all(os.path.exists(f) for f in found["files"])


@pytest.mark.slow
def test_several_figures_at_once(capsys, tmp_path):
    ids = ("zucchet2025/fig6", "zucchet2025/fig7")
    status, out, _ = call(capsys, "figure", *ids, "--preset", "smoke", "--out", str(tmp_path), "--json")
    assert status == 0
    assert [f["figure"] for f in json.loads(out)["figures"]] == list(ids)
    status, out, _ = call(capsys, "figure", ids[0], "--preset", "smoke", "--out", str(tmp_path))
    assert "smoke preset, so no verdict" in out


@pytest.mark.slow
def test_ctrl_c_is_status_130_and_leaves_nothing_by_halves(tmp_path):
    command = [
        sys.executable,
        "-m",
        "emergo",
        "figure",
        "zucchet2025/fig9",
        "--preset",
        "paper",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "zucchet2025"
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:  # it is made just before the work starts
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert list(folder.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def started(monkeypatch, cpu):
    """The figures that were started, with `fresh`; none is made."""
    made = []

    def run_figure(figure, preset, out, progress, fresh, partial):
        made.append((figure.id, fresh))
        return {"figure": figure.id, "shrunk": None, "partial": None, "laws": [], "checks": [], "seconds": 0.0, "files": []}

    monkeypatch.setattr("emergo.papers.run_figure", run_figure)
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 3e6 if f.id.endswith("fig3") else 600.0)
    return made


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_long_figure_asks_on_a_terminal(capsys, monkeypatch, tmp_path, started, answer, status):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    found = call(capsys, "figure", "zucchet2025/fig3", "zucchet2025/fig1", "--preset", "paper", "--out", str(tmp_path))
    assert found[0] == status
    assert found[2].startswith("on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d. Start? [y/N] ")
    assert started == ([] if status else [("zucchet2025/fig3", False), ("zucchet2025/fig1", False)])
    assert status == 0 or found[2].endswith("emergo: nothing was started\n")


@pytest.mark.parametrize("arguments", [("--yes", "--json"), ("--yes", "--fresh", "--json")])
def test_with_yes_a_figure_does_not_ask(capsys, tmp_path, started, arguments):
    status, out, err = call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path), *arguments)
    assert (status, err) == (0, "")
    assert json.loads(out)["figure"] == "zucchet2025/fig3"
    assert started == [("zucchet2025/fig3", "--fresh" in arguments)]


@pytest.mark.parametrize(("terminal", "more"), [(True, ("--json",)), (False, ())])
def test_where_nobody_can_be_asked_a_long_figure_wants_yes(capsys, monkeypatch, tmp_path, started, terminal, more):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n") if terminal else io.StringIO("y\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path / "new"), *more)
    assert (status, out) == (2, "")
    assert err == (
        "emergo: on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d; add --yes to start it\n"
    )
    assert not (tmp_path / "new").exists()
    assert started == []


def test_a_partial_figure_does_not_ask_and_says_what_it_shows(capsys, tmp_path):
    status, out, _ = call(capsys, "figure", "zucchet2025/fig15", "--preset", "paper", "--partial", "--out", str(tmp_path))
    assert status == 0
    assert (
        "runs: cells that lack a seed are left out" in out
        or json.loads((tmp_path / "zucchet2025/fig15.json").read_text())["partial"] is None
    )


def test_on_a_gpu_a_figure_does_not_ask(capsys, monkeypatch, tmp_path, started):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path))[0] == 0
    assert len(started) == 1
