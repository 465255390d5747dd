"""`emergo forecast`."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .command import call

LOG = Path(__file__).parents[2] / "examples" / "plateau.csv"


def log_until(path: Path, step: int) -> str:
    """Write the log of docs/forecast.md as it was at a step."""
    header, *rows = LOG.read_text().splitlines(keepends=True)
    written = path.with_suffix(".part")  # renamed, so that a reader sees all rows or the old ones
    written.write_text(header + "".join(row for row in rows if int(row.split(",")[0]) <= step))
    written.replace(path)
    return str(path)


def gradual_until(path: Path, step: int) -> str:
    """Write the log of a loss that passes 0.1 at step 3,832, as it was at a step."""
    losses = {at: 0.5 - 0.45 / (1 + math.exp((3000 - at) / 400)) for at in range(0, step + 1, 25)}
    written = path.with_suffix(".part")
    written.write_text("step,loss\n" + "".join(f"{at},{x}\n" for at, x in losses.items()))
    written.replace(path)
    return str(path)


@pytest.fixture
def so_far(tmp_path):
    return gradual_until(tmp_path / "so-far.csv", 2800)


def test_the_page_says_what_the_command_says(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = (LOG.parents[1] / "docs" / "forecast.md").read_text()
    states = []
    for step in (1000, 2000, 2800):
        path = log_until(tmp_path / "so-far.csv", step)
        status, out, _ = call(capsys, "forecast", path, "--below", "0.1")
        assert status == 0
        for line in out.splitlines():
            assert line in page
        states.append(out.partition("\n")[0])
    assert "no signal" in states[0]
    assert "a drop is coming" in states[1]
    assert "a drop is coming (97%)" in states[2]


def test_json_has_the_intervals(capsys, so_far):
    status, out, _ = call(capsys, "forecast", so_far, "--below", "0.1", "--json")
    (found,) = json.loads(out)["forecasts"]
    assert status == 0
    assert (found["run"], found["state"], found["metric"]) == ("so-far", "forecast", "loss")
    assert found["intervals"]["80%"][0] < 3832 < found["intervals"]["80%"][1]
    assert found["drop"]["signal"] == "loss"


def test_without_a_threshold_only_a_drop_is_announced(capsys, so_far):
    status, out, _ = call(capsys, "forecast", so_far)
    assert status == 0
    assert "a drop is coming" in out
    assert "false alarms" in out


def test_a_log_is_followed_and_its_alerts_start_a_command(tmp_path):
    """In its own process, on a log that grows until the run has emerged."""
    log = tmp_path / "log.csv"
    said = tmp_path / "said.txt"
    alert = tmp_path / "alert"
    alert.write_text(f'#!/bin/sh\necho "$1" >> {said}\n')
    alert.chmod(0o755)
    command = [sys.executable, "-m", "emergo", "forecast", str(log), "--below", "0.1"]
    command += ["--follow", "--every", "0.02", "--alert", f"{alert} {{}}"]
    wide = os.environ | {"COLUMNS": "200"}  # one line per sentence
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=wide)
    assert process.stdout is not None
    first = []
    for step in (1000, 2000, 2800, 4000):
        gradual_until(log, step)
        first.append(process.stdout.readline())
        process.stdout.readline()  # the reason
        if step in (2000, 2800):
            process.stdout.readline()  # the chance of a drop
    assert process.wait(60) == 0
    process.stdout.close()
    found = [line.removeprefix("log: ")[:5] for line in first]
    assert found == ["no si", "a dro", "~3,60", "emerg"]
    assert said.read_text() == "".join(first[1:])


def test_follow_takes_one_log_and_a_command_that_exists(capsys, so_far):
    for options, words in (
        (("--follow", "--json"), "no --json"),
        (("--alert", "true {}"), "--alert needs --follow"),
        (("--follow", "--alert", "no-such-command {}"), "no command no-such-command"),
    ):
        status, _, err = call(capsys, "forecast", so_far, *options)
        assert status == 2
        assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--below", "0.1", "--above", "0.9"), "give one threshold: --below"),
        (("--below", "0.1", "--metric", "los"), "did you mean loss?"),
        (("--below", "0.1", "--step", "epoch"), "epoch"),
    ],
)
def test_wrong_input_gets_one_line(capsys, so_far, options, words):
    status, out, err = call(capsys, "forecast", so_far, *options)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert words in err


def test_a_damaged_log_gets_one_line(capsys, tmp_path):
    (tmp_path / "log.parquet").write_bytes(b"PAR1 and not much more")
    status, _, err = call(capsys, "forecast", str(tmp_path / "log.parquet"), "--below", "0.1")
    assert (status, len(err.splitlines())) == (2, 1)


def test_the_name_of_a_log_is_neither_shell_nor_an_option_of_the_alert(
    capsys, tmp_path, monkeypatch
):
    """The command of --alert may be a shell."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "-n$(touch owned)`touch owned`;touch owned;.csv"
    log.write_text(LOG.read_text())
    alert = "sh -c 'echo {} >> said'"
    words = ("forecast", str(log), "--below", "0.1", "--follow", "--every", "0.01")
    assert call(capsys, *words, "--alert", alert)[0] == 0
    assert not (tmp_path / "owned").exists()
    said = (tmp_path / "said").read_text().splitlines()
    assert said[-1].startswith("n__touch owned__touch owned__touch owned_")
    assert "emerged at" in said[-1]
