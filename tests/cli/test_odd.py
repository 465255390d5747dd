"""Fuzz test of the command line, see odd.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_odd_input_is_refused_in_one_line_or_accepted():
    """Use a separate process: in this one, beartype checks types before emergo checks its input."""
    command = [sys.executable, "-m", "tests.cli.odd", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    counts = re.fullmatch(r"(\d+) refused, (\d+) accepted, 0 wrong", done.stdout.strip())
    assert counts is not None, done.stdout
    refused, accepted = map(int, counts.groups())
    assert refused + accepted >= 229
    assert accepted < 30  # otherwise the input is not odd enough
