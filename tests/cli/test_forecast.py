"""`emergo forecast`."""

import json
from pathlib import Path

import pytest

from .command import call

LOG = Path(__file__).parents[2] / "examples" / "plateau.csv"


@pytest.fixture
def so_far(tmp_path):
    """The log of docs/forecast.md as it was at step 2,300."""
    return until(tmp_path, 94)


def until(folder, lines):
    path = folder / "so-far.csv"
    path.write_text("".join(LOG.read_text().splitlines(keepends=True)[:lines]))
    return str(path)


@pytest.mark.parametrize("lines", [42, 94, 110], ids=["step 1000", "step 2300", "step 2900"])
def test_the_page_says_what_the_command_says(capsys, tmp_path, lines):
    page = (LOG.parents[1] / "docs" / "forecast.md").read_text()
    status, out, _ = call(capsys, "forecast", until(tmp_path, lines), "--below", "0.1")
    assert status == 0
    assert f"head -{lines} " in page
    for line in out.splitlines():
        assert line in page


def test_json_has_the_intervals(capsys, tmp_path):
    """The loss comes to 0.1 at step 3,032."""
    status, out, _ = call(capsys, "forecast", until(tmp_path, 110), "--below", "0.1", "--json")
    (found,) = json.loads(out)["forecasts"]
    assert status == 0
    assert (found["run"], found["state"]) == ("so-far", "forecast")
    assert found["intervals"]["80%"][0] < 3032 < found["intervals"]["80%"][1]
    assert found["drop"]["signal"] == "loss"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--below", "0.1", "--above", "0.9"), "give one threshold"),
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
