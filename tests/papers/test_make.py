"""Figures made by the functions behind the commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emergo.papers import make_figures, print_figure

FIG3 = "zucchet2025/fig3"
pytestmark = pytest.mark.slow


def test_an_incomplete_figure_is_reported_and_continued_by_the_next_call(tmp_path, capsys):
    options = {"fresh": True, "on_made": print_figure}
    [report] = make_figures([FIG3], "smoke", tmp_path, seconds=1e-3, **options)
    count = report["finished"]
    assert report == {"figure": FIG3, "preset": "smoke", "runs": 16, "finished": count}
    assert count < 16
    assert capsys.readouterr().out == (
        f"{FIG3}: the time is over, {count} of 16 runs are there; the same command goes on\n"
    )
    [report] = make_figures([FIG3], "smoke", tmp_path, **options)
    assert all(os.path.exists(file) for file in report["files"])
    assert "smoke preset, so no verdict" in capsys.readouterr().out


@pytest.mark.usefixtures("unchecked")
def test_the_packages_of_the_command_line_are_not_needed(tmp_path):
    """A GPU machine may lack them."""
    for name in ("tyro", "vl_convert", "submitit"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    code = f"from emergo.papers import make_figures; make_figures(['{FIG3}'], 'paper', 'out')"
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ) | path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / f"{FIG3}.svg").exists()
