"""The package as it is installed, not as it lies in the checkout."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import emergo

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_built_wheel_works_away_from_the_checkout(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("emergo-*.whl")
    assert wheel.stat().st_size < 20e6
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)  # as an installer does
    kinds = ("py", "html", "js", "css", "svg")
    files = {
        p.relative_to(ROOT / "emergo")
        for kind in kinds
        for p in (ROOT / "emergo").rglob(f"*.{kind}")
    }
    assert files <= {p.relative_to(site / "emergo") for p in (site / "emergo").rglob("*")}
    assert (site / "emergo" / "py.typed").exists()
    command = (
        "import emergo, emergo.cli; from emergo.papers import find_figure; from emergo.store "
        "import read_records; "
        "assert find_figure('zucchet2025/fig3').runs('paper')[0].identity in read_records(); "
        "print(emergo.__file__); "
        "emergo.cli.main(['theory', '--length', '8', '--dim', '4', '--json'])"
    )
    run = [sys.executable, "-c", command]
    done = subprocess.run(
        run, cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    assert str(site) in done.stdout
    assert "escape_linear" in done.stdout


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    changes = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited is not None
    assert changes is not None
    assert cited[1] == changes[1] == emergo.__version__
