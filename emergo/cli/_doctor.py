"""`emergo doctor`: check an installation.

The checks are independent of one another and import what they need, so that a broken installation
can be described too. A check yields findings: a name, a state, and a detail with advice if needed.
Optional parts are `missing`; a `fault` needs action.
"""

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..core.terminal import memory, print_json, show

STATES = ("ok", "missing", "slow", "fault")  # from best to worst
ROUNDING = 1e-4  # largest accepted error in fp32, relative to the largest number
Findings = Iterator[tuple[str, str, str]]


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Check the installation: packages, devices, numerical results and the cache of programs."""

    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        findings = []
        for check in (_system, _packages, _devices, _cache, _numbers):
            for name, state, detail in _completed(check):
                findings.append({"name": name, "state": state, "detail": detail})
                if not self.json and state != "missing":
                    show(f"{state:8} {name:18} {detail}")
        if not self.json:
            for finding in findings:
                if finding["state"] == "missing":
                    show(f"optional {finding['name']:18} not installed: {finding['detail']}")
        worst = max((finding["state"] for finding in findings), key=STATES.index)
        if self.json:
            print_json({"schema": 3, "worst": worst, "findings": findings})
        if worst == "fault":
            sys.exit(1)


def _completed(check: Callable[[], Findings]) -> Findings:
    """Yield the findings of a check; an exception in it is a fault."""
    try:
        yield from check()
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield check.__name__.strip("_"), "fault", f"the check failed with {words}"


def _system() -> Findings:
    from .. import __file__, __version__

    yield "emergo", "ok", f"{__version__} at {os.path.dirname(__file__)}"
    yield "Python", "ok", f"{platform.python_version()} at {sys.executable}"
    yield "platform", "ok", f"{platform.platform()}, {os.cpu_count()} cores"
    path = shutil.which("sbatch")
    yield "Slurm", "ok" if path else "missing", path or "no sbatch; --on slurm needs it"


def _packages() -> Findings:
    """Compare the installed packages with the requirements of emergo and its extras."""
    version = importlib.metadata.version
    installed = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy", "pandas")]
    for extra in ("", *(importlib.metadata.metadata("emergo").get_all("Provides-Extra") or ())):
        name = f"extra {extra}" if extra else "packages"
        lacking = _lacking("emergo", extra)
        if lacking:
            state = "missing" if extra else "fault"
            package = f"'emergo[{extra}]'" if extra else "emergo"
            yield name, state, f"lacks {', '.join(lacking)} -> pip install {package}"
        else:
            yield name, "ok", "installed" if extra else ", ".join(installed)


def _lacking(package: str, extra: str) -> list[str]:
    """List the unmet requirements of a package, or the additional ones of an extra."""
    from packaging.requirements import Requirement

    lacking = []
    for requirement in map(Requirement, importlib.metadata.requires(package) or ()):
        marker = requirement.marker
        extras = [one for one in ("", extra) if not marker or marker.evaluate({"extra": one})]
        if extras[:1] != [extra]:
            continue
        try:
            version = importlib.metadata.version(requirement.name)
            unmet = not requirement.specifier.contains(version, prereleases=True)
        except importlib.metadata.PackageNotFoundError:
            unmet = True
        if unmet:
            lacking.append(f"{requirement.name}{requirement.specifier}")
        else:
            for inner in requirement.extras:
                lacking += _lacking(requirement.name, inner)
    return lacking


def _devices() -> Findings:
    import jax

    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        detail = device.device_kind + (f", {memory(limit)} for JAX" if limit else "")
        yield f"{device.platform} {device.id}", "ok", detail
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        advice = "pip install 'emergo[cuda]', or unset JAX_PLATFORMS"
        yield "NVIDIA GPU", "slow", f"present, but JAX uses the CPU -> {advice}"


def _cache() -> Findings:
    from ..core.cache import VARIABLE, cache_state

    state = cache_state()
    if state.off:
        advice = f"unset {VARIABLE}, or name a private folder"
        yield "cache", "slow", f"every process compiles, because {state.off} -> {advice}"
    else:
        yield "cache", "ok", f"{memory(state.bytes)} of programs in {state.folder}"


def _numbers() -> Findings:
    """Compare an optimised forward pass, and its gradient, with the definition of the model."""
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    from ..core.contract import Tap
    from ..models import Transformer
    from ..models.fast import find_path
    from ..tasks import SingleLocation

    task = SingleLocation(length=32, dim=8)
    model = Transformer(layers=2, heads=2, width=32)
    path = find_path(model, task.spec)
    if path is None:  # EMERGO_FAST=off
        return
    key = jax.random.key(0)
    params = model.init(key, task.spec)
    inputs = task.batch(key, 64, task.truth(key)).inputs

    def loss_and_gradient(forward: Callable[..., Any]) -> jax.Array:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(forward(params).value ** 2)

        with jax.default_matmul_precision("highest"):
            return ravel_pytree(jax.jit(jax.value_and_grad(loss))(params))[0]

    tap = Tap(task.spec)
    plain = loss_and_gradient(lambda params: model.apply(params, inputs, tap))
    fast = loss_and_gradient(lambda params: path.forward(model, params, inputs, tap, 0))
    error = float(jnp.max(jnp.abs(fast - plain)) / jnp.max(jnp.abs(plain)))
    detail = f"optimised and plain Transformer differ by {error:.0e} of the largest number"
    yield "numbers", "ok" if error < ROUNDING else "fault", detail
