"""The index of figures is up to date, and is read without importing JAX or pandas."""

import json
import re
import subprocess
import sys

import pytest

from emergo.core.errors import InputError
from emergo.papers import FIGURES, find_figure, made_preset, read_index
from emergo.papers.build_index import build_index
from emergo.store import Store, StudyFolder
from emergo.study.results import write_result
from emergo.training import Result

# A small process measures the command: a child of pytest would inherit pytest's peak memory.
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = used.ru_utime + used.ru_stime
print(json.dumps([done.stdout, done.stderr, used.ru_maxrss / 1024, seconds]))
"""


def list_figures(*options):
    """Run `emergo figures`, check its cost and return its output."""
    command = [sys.executable, "-X", "importtime", "-m", "emergo", "figures", *options]
    measured = [sys.executable, "-c", MEASURE, *command]
    done = subprocess.run(measured, capture_output=True, text=True, check=True)
    out, imports, megabytes, seconds = json.loads(done.stdout)
    assert not re.findall(r"\| +(jax|pandas|matplotlib)$", imports, re.MULTILINE)
    assert megabytes < 200
    assert seconds < 1
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_index_is_up_to_date():
    """`python -m emergo.papers.build_index` writes it."""
    assert build_index() == list(read_index().values())


def test_figures_are_listed_without_importing_them(tmp_path):
    rows = json.loads(list_figures("--out", str(tmp_path), "--json"))["figures"]
    assert [row["id"] for row in rows] == list(FIGURES)
    [fig3] = [row for row in rows if row["id"] == "zucchet2025/fig3"]
    assert fig3["needed"] == fig3["seconds"] | {"paper": 0}
    assert all(row["made"] is None for row in rows)
    (tmp_path / "zucchet2025").mkdir()
    (tmp_path / "zucchet2025" / "fig3.json").write_text('{"preset": "smoke"}')
    lines = list_figures("--out", str(tmp_path)).splitlines()
    line = next(line for line in lines if "2025/fig3 " in line)
    assert line.split()[-4:] == ["min", "recorded", "made", "(smoke)"]


def test_finished_runs_of_the_folder_lower_the_cost(tmp_path):
    figure = find_figure("zucchet2025/fig3")
    runs = figure.runs("smoke")
    store = Store(StudyFolder(tmp_path).runs)
    for run in runs[: len(runs) // 2]:
        write_result(store, Result.untrained(run, "it is broken", "cpu"))
    entry = read_index()[figure.id]
    assert entry.seconds_needed("smoke", tmp_path) == figure.seconds["smoke"] / 2


def test_importing_a_figure_imports_no_other_module_of_figures():
    code = "import sys; from emergo.papers import find_figure; find_figure('zucchet2025/fig3');"
    code += "print(*[name for name in sys.modules if name.startswith('emergo.papers.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    others = {entry.module for entry in read_index().values()} - {"emergo.papers.zucchet2025.fig3"}
    assert "emergo.papers.zucchet2025.fig3" in loaded
    assert not loaded & others


def test_unknown_ids_suggest_similar_ones():
    with pytest.raises(InputError, match="did you mean zucchet2025/fig1"):
        find_figure("zuchet2025/fig1")
    with pytest.raises(InputError, match="did you mean zucchet2025/fig3 or yuksel2026/fig3"):
        find_figure("fig3")


def test_a_damaged_file_is_no_figure(tmp_path):
    assert made_preset("emergo/reduction", tmp_path) is None
    (tmp_path / "emergo").mkdir()
    (tmp_path / "emergo" / "reduction.json").write_text("[1, 2")
    assert made_preset("emergo/reduction", tmp_path) is None
