"""`emergo doctor`: findings about this installation, and about broken ones."""

import importlib.metadata
import json

import jax
import pytest

from .command import call

pytestmark = pytest.mark.usefixtures("fast_paths")


def findings(capsys):
    """Return the exit status and the findings by name."""
    status, out, _ = call(capsys, "doctor", "--json")
    report = json.loads(out)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert report["worst"] in {finding["state"] for finding in found.values()}
    return status, found


def test_this_installation_works(capsys):
    status, found = findings(capsys)
    assert status == 0
    assert {"emergo", "Python", "packages", "cpu 0", "cache", "numbers"} <= set(found)
    assert f"jax {jax.__version__}" in found["packages"]["detail"]
    assert found["numbers"]["state"] == "ok"
    assert found["extra view"]["state"] == "ok"  # the tests of the explorer need it
    assert found["cache"]["state"] == "slow"  # tests disable it, see conftest.py
    assert "JAX_ENABLE_COMPILATION_CACHE is off" in found["cache"]["detail"]


def test_without_json_every_finding_is_a_line(capsys):
    status, out, _ = call(capsys, "doctor")
    assert status == 0
    states = [line.split()[0] for line in out.splitlines()]
    assert {*states} <= {"ok", "slow", "optional"}

    assert {*states[states.index("optional") :]} == {"optional"}
    assert "optimised and plain Transformer differ by" in out


@pytest.mark.parametrize(
    ("packages", "names", "state", "status"),
    [
        # jaxlib 0.10.2 returns wrong numbers.
        ({"jaxlib": "0.10.2", "optax": None}, ["packages"] * 2, "fault", 1),
        # The second one is an extra of a requirement.
        (
            {"starlette": None, "jax-cuda12-plugin": None},
            ["extra view", "extra cuda"],
            "missing",
            0,
        ),
    ],
)
def test_unmet_requirements_are_reported(capsys, monkeypatch, packages, names, state, status):
    real = importlib.metadata.version

    def installed(asked):
        version = packages[asked] if asked in packages else real(asked)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    actual, found = findings(capsys)
    assert actual == status
    for package, name in zip(packages, names, strict=True):
        assert found[name]["state"] == state
        assert package in found[name]["detail"]
        assert "pip install" in found[name]["detail"]


def test_a_failed_check_is_a_fault_and_the_others_go_on(capsys, monkeypatch):
    def broken():
        raise RuntimeError("no backend\nfor this machine")

    monkeypatch.setattr(jax, "devices", broken)
    status, found = findings(capsys)
    assert status == 1
    assert found["devices"]["detail"] == (
        "the check failed with RuntimeError: no backend for this machine"
    )
    assert found["cache"]["state"] in ("ok", "slow")
