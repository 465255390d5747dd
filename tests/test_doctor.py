"""What the doctor says of a sound installation, and of broken ones."""

import importlib.metadata
import os
import types

import jax
import jax.numpy as jnp
import pytest

from emergo import _doctor
from emergo._cache import CacheState
from emergo._doctor import Finding, examine, lines, worst


def by_name(findings):
    return {(finding.topic, finding.name): finding for finding in findings}


@pytest.fixture(scope="module")
def found():
    """Of this installation, without the moment of training."""
    return by_name(examine(timing=False))


def test_this_installation_is_sound(found):
    assert {"system", "packages", "extras", "devices", "faults of JAX", "speed"} <= {topic for topic, _ in found}
    assert found["packages", "jax"] == Finding("packages", "jax", "ok", jax.__version__)
    assert found["extras", "view"].state == "ok"  # of the extras that tests need, one that is there for every Python
    assert found["faults of JAX", "fused reductions"].state == "ok"
    assert found["faults of JAX", "cuDNN attention"].state == "ok"
    faults = [finding for finding in found.values() if finding.state == "fault"]
    assert not faults


def test_an_extra_of_an_extra_is_looked_for(found):
    """`jax[cuda12]` is not there because jax is."""
    there = _doctor._version("jax-cuda12-plugin") != ""
    assert (found["extras", "cuda"].state == "ok") == there


def test_a_wrong_version_and_a_missing_package_are_faults(monkeypatch):
    versions = {"jaxlib": "0.10.2", "optax": ""}
    real = _doctor._version
    monkeypatch.setattr(_doctor, "_version", lambda name: versions.get(name, real(name)))
    found = by_name(_doctor._packages())
    assert found["packages", "jaxlib"].state == "fault"
    assert "!=0.10.2" in found["packages", "jaxlib"].advice
    assert found["packages", "optax"].detail == "nothing is installed"


def test_a_package_that_is_not_installed_is_said_to_be_used_from_a_folder(monkeypatch):
    def gone(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", gone)
    [finding] = _doctor._packages()
    assert finding.state == "missing"


def test_wrong_sums_are_a_fault(monkeypatch):
    """As of jaxlib 0.10.2: rows centred with other rows' means."""
    monkeypatch.setattr(jax, "jit", lambda f: lambda z: f(z)[::-1])
    [finding] = _doctor._reductions()
    assert finding.state == "fault"
    assert "39103" in finding.detail


@pytest.mark.parametrize(("broken", "state"), [(lambda length: length == 64, "ok"), (lambda length: length == 128, "fault")])
def test_the_kernel_of_a_gpu_is_tried_at_the_lengths_that_it_is_given(monkeypatch, broken, state):
    """With a kernel that stands for cuDNN's: gradients are NaN at some lengths. At 64 nobody uses it."""
    lengths = []

    def kernel(q, k, v, is_causal=False, implementation=None):
        lengths.append(q.shape[1])
        return v * jnp.where(broken(q.shape[1]), jnp.nan, 1.0)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    [finding] = _doctor._fused_attention()
    assert finding.state == state
    assert ("known fault" in finding.detail) == (state == "ok")
    assert set(lengths) == {64, 128, 256}, "others are filled up to a tile, as in training"


def test_what_cannot_be_looked_at_is_a_fault_and_the_rest_goes_on(monkeypatch):
    def broken():
        raise ImportError("no module named jaxlib")

    monkeypatch.setattr(_doctor, "_devices", broken)
    found = list(examine(timing=False))
    [trouble] = [finding for finding in found if finding.topic == "trouble"]
    assert "no module named jaxlib" in trouble.detail
    assert found[-1].name == "disk"
    assert worst(found) == "fault"


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path / ".emergo-1"))

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    [finding] = _doctor._disk(tmp_path)
    assert (finding.name, finding.state) == ("disk", "fault")
    assert finding.detail == f"{tmp_path}: cannot be written (Permission denied)"
    assert "--folder" in finding.advice


def test_settings_that_change_numbers_are_faults_and_of_speed_are_slow(monkeypatch):
    for name in ("JAX_ENABLE_X64", "XLA_FLAGS"):
        monkeypatch.setenv(name, "1")
    states = {finding.name: finding.state for finding in _doctor._flags()}
    assert (states["JAX_ENABLE_X64"], states["XLA_FLAGS"]) == ("fault", "slow")


@pytest.mark.parametrize(("load", "state"), [(0.1, "ok"), (50.0, "slow")])
def test_a_busy_machine_is_slow(monkeypatch, load, state):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    [finding] = _doctor._load()
    assert finding.state == state


def test_a_topic_is_named_once_and_advice_stands_below():
    findings = [Finding("speed", "disk", "slow", "90 ms", "use another"), Finding("speed", "load", "ok", "0.1")]
    text = "\n".join(words for _, words in lines(iter(findings))).splitlines()
    assert text[0] == "speed"
    assert text[1].split() == ["slow", "disk", "90", "ms"]
    assert text[2].split() == ["->", "use", "another"]
    assert text[3].split() == ["ok", "load", "0.1"]


def test_training_is_held_against_what_studies_are_planned_with(monkeypatch):
    """Without training: the clock says that 2,400 steps took an hour, after a first call of two."""
    ticks = iter([0.0, 7200.0, 7200.0, 10_800.0])
    monkeypatch.setattr(_doctor, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))  # other threads have their own
    monkeypatch.setattr("emergo.engine.train", lambda runs, n_parallel: None)
    training, compilation = _doctor._training()
    assert training.state == "slow"
    assert "1.5e+03 ms" in training.detail
    assert compilation.detail.startswith("3600.0 s for this program")


def test_where_programs_are_kept_and_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(_doctor, "cache_state", lambda: CacheState(tmp_path))
    (tmp_path / "program").write_bytes(bytes(2000))
    [finding] = _doctor._programs()
    assert (finding.state, str(tmp_path) in finding.detail) == ("ok", True)
    assert "2 kB" in finding.detail
    monkeypatch.setattr(_doctor, "cache_state", lambda: CacheState(None, "EMERGO_CACHE is 'off'"))
    monkeypatch.setenv("EMERGO_CACHE", "off")
    [finding] = _doctor._programs()
    assert (finding.state, finding.advice) == ("slow", "unset EMERGO_CACHE, or set it to a folder of yours")
