"""The examples run as they are, in any folder, and docs/extending.md or docs/torch.md shows
them."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import emergo as em
from emergo.cli import main
from emergo.measure import head_classes

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("extending.md", "torch.md"))

NEIGHBOURS = ("in_context_chains", "few_shot", "modular_addition", "two_sets")  # a link suffices


def run_example(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Runs an example as a script in an empty folder; returns what it printed."""
    monkeypatch.chdir(folder)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.slow
def test_own_task(tmp_path, monkeypatch, capsys):
    printed = run_example("own_task", tmp_path, monkeypatch, capsys)
    assert "task: Loudest(length=8, dim=2)" in printed
    plateaus = [
        int(plateau)
        for plateau in re.findall(r"^ +[124] +2(?: of 2)? +(\d+)", printed, re.MULTILINE)
    ]
    assert len(plateaus) == 3, printed
    assert plateaus == sorted(plateaus, reverse=True), "the larger the gain, the sooner"
    assert (tmp_path / "out/own_task/attention.png").stat().st_size > 1000
    # The same from a study file: the runs of the one are those of the other, so that none is left
    # to train.
    files = (tmp_path / "out/own_task/runs").glob("[!.]*/*")
    trained = {file: file.stat().st_mtime_ns for file in files}
    main(["study", "run", str(ROOT / "examples/own_task.toml"), "--out", "out/own_task"])
    assert "6 of 6 runs finished" in capsys.readouterr().out
    assert trained
    assert {file: file.stat().st_mtime_ns for file in trained} == trained
    main(["study", "export", "out/own_task", "--to", "table.csv"])
    table = pd.read_csv(tmp_path / "table.csv")
    from_python = runpy.run_path(str(ROOT / "examples/own_task.py"), run_name="own_task")["study"]()
    assert sorted(table["identity"]) == sorted(run.identity for run in from_python.runs)


@pytest.mark.slow
def test_own_model(tmp_path, monkeypatch, capsys):
    printed = run_example("own_model", tmp_path, monkeypatch, capsys)
    assert "4 runs: 4 reached" in printed


@pytest.mark.slow
def test_schedule(tmp_path):
    """In a process that optimizes programs, as for a user: it trains for so long that this pays."""
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"}
    command = [sys.executable, str(ROOT / "examples" / "schedule.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert "10 runs: 10 reached" in printed
    rows = re.findall(r"^ *(.*\S) +2 +([\d.]+) +0$", printed, re.MULTILINE)
    plateaus = {repeat: float(plateau) for repeat, plateau in rows}
    stopped = [
        plateaus.pop(repeat) for repeat in list(plateaus) if repeat not in ("0", "0.0", "0.5")
    ]
    never, always = sorted(plateaus.values(), reverse=True)
    assert len(stopped) == 3, printed
    assert max(stopped) < always < 0.8 * never, printed


@pytest.mark.slow
def test_probe(tmp_path, monkeypatch, capsys):
    printed = run_example("probe", tmp_path, monkeypatch, capsys)
    rows = [line.split() for line in printed.splitlines()[1:]]
    gaps = {(int(seed), int(step)): float(gap) for _, seed, step, _, _, gap, _ in rows}
    last = max(step for seed, step in gaps if seed == 0)
    assert gaps[0, last] > 10 * gaps[0, 0], printed


@pytest.mark.slow
def test_intervention(tmp_path, monkeypatch, capsys):
    printed = run_example("intervention", tmp_path, monkeypatch, capsys)
    rows = re.findall(r"^ *(\S.*\S) +2 +(\D*)([\d.]+) +(\d)$", printed, re.MULTILINE)
    plateaus = {label: float(plateau) for label, _, plateau, _ in rows}
    assert plateaus["none"] < 300 < plateaus["uniform until step 300"]
    frozen = next(row for row in rows if row[0] == "no gradient through the pattern")
    assert frozen[2:] == ("1000", "2"), "both runs are censored at the last step"


@pytest.mark.slow
def test_parameters(tmp_path, monkeypatch, capsys):
    printed = run_example("parameters", tmp_path, monkeypatch, capsys)
    shares = [float(share) for share in re.findall(r"relevant token (\d\.\d\d)", printed)]
    assert shares[0] < 0.3
    assert shares[-1] > 0.9
    assert "maps (1, 2, 1, 8, 8)" in printed


@pytest.mark.slow
def test_own_attention(tmp_path, monkeypatch, capsys):
    printed = run_example("own_attention", tmp_path, monkeypatch, capsys)
    assert "2 runs: 2 reached" in printed
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)$", printed, re.MULTILINE)]
    embedding, whole, pattern, _ = losses
    assert whole < 0.2 < embedding, "only attention finds the answer"
    assert pattern > 3 * whole, "the answer needs attention at its own position"
    folder = tmp_path / "out/own_attention"
    assert {"heads.png", "maps.png"} <= {file.name for file in folder.glob("*.png")}
    assert len(list(folder.glob("tensorboard/*/events*"))) == 2


def medians(printed: str) -> dict[str, tuple[float, int]]:
    """Return the plateau and the number of censored runs of each cell in a printed table."""
    rows = re.findall(r"^ *([\d.]+) +\d+(?: of \d)? +>?([\d.]+) +(\d)$", printed, re.MULTILINE)
    return {value: (float(plateau), int(censored)) for value, plateau, censored in rows}


@pytest.mark.slow
def test_modular_addition(tmp_path, monkeypatch, capsys):
    """Only runs with weight decay generalise."""
    cells = medians(run_example("modular_addition", tmp_path, monkeypatch, capsys))
    assert cells["0"] == (1000, 2), cells
    assert cells["1"][0] < 600, cells
    assert cells["1"][1] == 0, cells


@pytest.mark.slow
def test_two_sets(tmp_path, monkeypatch, capsys):
    cells = medians(run_example("two_sets", tmp_path, monkeypatch, capsys))
    assert cells["0.5"][0] < cells["0"][0], cells
    assert not any(censored for _, censored in cells.values()), cells


@pytest.mark.slow
def test_few_shot(tmp_path, monkeypatch, capsys):
    """In context, in weights, and in between: what was learned in context is lost again."""
    printed = run_example("few_shot", tmp_path, monkeypatch, capsys)
    rows = re.findall(r"^\d+ +(.*)$", printed, re.MULTILINE)
    columns = np.array([row.split() for row in rows], float).T
    (never, half, always), in_weights = columns[:3], columns[3:]
    assert never.max() < 0.4 < 0.7 < in_weights[0, -1], printed
    assert in_weights[2].max() < 0.4 < 0.9 < always[-1], printed
    assert half.max() > half[-1] + 0.1, printed


@pytest.mark.slow
def test_in_context_chains(tmp_path, monkeypatch, capsys):
    """Distances from the two predictors: that from symbols is smallest first, then pairs win."""
    printed = run_example("in_context_chains", tmp_path, monkeypatch, capsys)
    assert "2 runs: 2 reached" in printed
    rows = re.findall(r"^\d+ +(\d+) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE)
    curves = np.array(rows, float)
    lowest = curves[:, 1].argmin()
    assert 0 < lowest < len(curves) - 1, printed
    assert curves[lowest, 1] < curves[lowest, 2], "closer to symbols than to pairs"
    assert curves[-1, 2] < curves[-1, 1], "closer to pairs at the end"


@pytest.mark.slow
def test_watch(tmp_path, monkeypatch, capsys):
    """An earlier log is overwritten. A head becomes an induction head as the loss falls."""
    monkeypatch.setattr(sys, "argv", ["watch.py"])
    (tmp_path / "log.csv").write_text("step,loss\n0,1.0\n")
    run_example("watch", tmp_path, monkeypatch, capsys)
    log = pd.read_csv(tmp_path / "log.csv")
    plateau = em.emergence(log["step"], log["loss"], 0.5).time
    assert 300 < plateau < 900
    found = head_classes(log)
    induction = found[(found["class"] == "induction") & (found["layer"] == 1)]
    assert len(induction)
    assert induction["step"].min() == pytest.approx(plateau, abs=200)
    # Of docs/forecast.md: this loss falls gradually, and is forecast before it has fallen.
    forecast = em.forecast(log[log["step"] <= plateau - 40], below=0.5)
    assert forecast.state == "forecast"
    assert forecast.intervals[95][0] < plateau < forecast.intervals[95][1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_shown(path):
    """Under 90 lines; every excerpt in the documentation is what the example says."""
    text = path.read_text()
    assert len(text.splitlines()) < 90
    if path.stem in NEIGHBOURS:
        assert f"[{path.name}](../examples/{path.name})" in PAGE
        return
    section = PAGE.partition(f"[examples/{path.name}](../examples/{path.name})")[2]
    excerpt = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert excerpt, f"no page shows {path.name}"
    assert excerpt[1].strip() in text, f"a page shows something else than {path.name}"


def test_every_example_is_tested():
    assert {f"test_{path.stem}" for path in EXAMPLES} <= set(globals())
