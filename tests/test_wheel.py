"""The package as it is installed, not as it lies in the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_built_wheel_works_away_from_the_checkout(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("emergo-*.whl")
    site = tmp_path / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--quiet", "--target", str(site), str(wheel)], check=True, capture_output=True
    )
    modules = {p.relative_to(ROOT / "emergo") for p in (ROOT / "emergo").rglob("*.py")}
    assert modules <= {p.relative_to(site / "emergo") for p in (site / "emergo").rglob("*")}
    assert (site / "emergo" / "py.typed").exists()
    command = "import emergo, emergo.cli; print(emergo.__file__); emergo.cli.main(['figures', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    assert str(site) in done.stdout
    assert "zucchet2025/fig1" in done.stdout
