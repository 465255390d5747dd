"""`emergo train --task text` and `emergo sample`."""

import json

import pytest

from tests.texts import TEXT

from .command import call

TINY = ["--length=16", "--layers=1", "--heads=1", "--width=8", "--batch=4", "--steps=20"]


@pytest.mark.slow
def test_text_is_trained_and_sampled(capsys, tmp_path):
    source = tmp_path / "text.txt"
    source.write_text(TEXT)
    out = str(tmp_path / "runs")
    train = ["train", "--task", "text", "--source", str(source), *TINY, "--n-test=4", "--seeds=2"]
    status, _, err = call(capsys, *train, "--keep", "--out", out, "--json")
    assert status == 0, err

    def sample(*options):
        status, text, err = call(capsys, "sample", out, "--tokens=30", *options)
        assert status == 0, err
        return text

    _, _, err = call(capsys, "sample", out, "--tokens=1", "--prompt", "")
    assert err == "emergo: run 0 of 2: seed 0, step 20; --index chooses\n"
    text = sample("--prompt", "Ada counts")
    assert text.startswith("Ada counts")
    assert len(text) > 30
    other = json.loads(sample("--prompt", "Ada counts", "--step", "0", "--json"))
    assert (other["prompt"], other["step"]) == ("Ada counts", 0)
    assert other["text"] not in text
    status, _, err = call(capsys, "sample", out, "--tokens", "0")
    assert status == 2
    assert "at least 1 token" in err


def test_a_source_that_is_not_there_is_one_line(capsys, tmp_path):
    missing = tmp_path / "missing.txt"
    status, _, err = call(capsys, "train", "--task", "text", "--source", str(missing))
    assert status == 2
    assert err.count("\n") == 1
    assert f"Text.source {missing}: cannot be read (No such file or directory)" in err
