"""`emergo forecast`."""

import json
from pathlib import Path

import pytest

from .command import call

LOG = Path(__file__).parents[2] / "examples" / "plateau.csv"


@pytest.fixture
def so_far(tmp_path):
    """The log of docs/forecast.md as it was at step 2,300."""
    path = tmp_path / "so-far.csv"
    path.write_text("".join(LOG.read_text().splitlines(keepends=True)[:94]))
    return str(path)


def test_the_page_says_what_the_command_says(capsys, so_far):
    page = (LOG.parents[1] / "docs" / "forecast.md").read_text()
    status, out, _ = call(capsys, "forecast", so_far, "--below", "0.1", "--probes")
    assert status == 0
    for line in out.splitlines():
        assert line in page
    assert "no signal" in call(capsys, "forecast", so_far, "--below", "0.1")[1]


def test_json_has_the_intervals(capsys, so_far):
    status, out, _ = call(capsys, "forecast", so_far, "--below", "0.1", "--probes", "--json")
    (found,) = json.loads(out)["forecasts"]
    assert status == 0
    assert (found["run"], found["state"], found["signal"]) == (
        "so-far",
        "forecast",
        "attention_0_0",
    )
    assert found["intervals"]["80%"][0] < 3032 < found["intervals"]["80%"][1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give one threshold: --below"),
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
