"""`emergo doctor`: check an installation.

The checks are independent of one another and import what they need, so that a broken installation
can be described too.
"""

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from ..core.terminal import memory, print_json, show

State = Literal["ok", "missing", "slow", "fault"]
STATES: tuple[State, ...] = ("ok", "missing", "slow", "fault")  # from best to worst
ROUNDING = 1e-4  # largest accepted error in fp32, relative to the largest number


class Finding(NamedTuple):
    """The result of one check. Optional parts are `missing`; a `fault` needs action."""

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Check the installation: packages, devices, numerical results and the cache of programs."""

    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        findings: list[Finding] = []
        for check in (_system, _packages, _devices, _cache, _numbers):
            for finding in _completed(check):
                findings.append(finding)
                if not self.json:
                    advice = f" -> {finding.advice}" if finding.advice else ""
                    show(f"{finding.state:8} {finding.name:18} {finding.detail}{advice}")
        worst = max((finding.state for finding in findings), key=STATES.index)
        if self.json:
            print_json({"schema": 2, "worst": worst, "findings": [f._asdict() for f in findings]})
        if worst == "fault":
            sys.exit(1)


def _completed(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an exception in it is a fault."""
    try:
        yield from check()
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield Finding(check.__name__.strip("_"), "fault", f"the check failed with {words}")


def _system() -> Iterator[Finding]:
    from .. import __file__, __version__

    yield Finding("emergo", "ok", f"{__version__} at {os.path.dirname(__file__)}")
    yield Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("platform", "ok", f"{platform.platform()}, {os.cpu_count()} cores")
    path = shutil.which("sbatch")
    yield Finding("Slurm", "ok" if path else "missing", path or "no sbatch; --on slurm needs it")


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the requirements of emergo and its extras."""
    version = importlib.metadata.version
    lacking = _lacking("emergo")
    detail = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy", "pandas"))
    if lacking:
        detail = f"lacks {', '.join(lacking)}"
    yield Finding(
        "packages", "fault" if lacking else "ok", detail, "pip install emergo" * bool(lacking)
    )
    for extra in importlib.metadata.metadata("emergo").get_all("Provides-Extra") or []:
        lacking = _lacking("emergo", extra)
        if lacking:
            advice = f"pip install 'emergo[{extra}]'"
            yield Finding(f"extra {extra}", "missing", f"lacks {', '.join(lacking)}", advice)
        else:
            yield Finding(f"extra {extra}", "ok", "installed")


def _lacking(package: str, extra: str = "") -> list[str]:
    """List the unmet requirements of a package, or the additional ones of an extra."""
    from packaging.requirements import Requirement

    lacking = []
    for requirement in map(Requirement, importlib.metadata.requires(package) or ()):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        of_extra = not always and marker is not None and marker.evaluate({"extra": extra})
        if not (of_extra if extra else always):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if version and requirement.specifier.contains(version, prereleases=True):
            inner = [_lacking(requirement.name, each) for each in requirement.extras]
            lacking += [name for names in inner for name in names]
        else:
            lacking.append(f"{requirement.name}{requirement.specifier}")
    return lacking


def _devices() -> Iterator[Finding]:
    import jax

    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        detail = device.device_kind + (f", {memory(limit)} for JAX" if limit else "")
        yield Finding(f"{device.platform} {device.id}", "ok", detail)
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        advice = "pip install 'emergo[cuda]', or unset JAX_PLATFORMS"
        yield Finding("NVIDIA GPU", "slow", "present, but JAX uses the CPU", advice)


def _cache() -> Iterator[Finding]:
    from ..core.cache import VARIABLE, cache_state

    state = cache_state()
    if state.off:
        detail = f"programs are compiled in every process, because {state.off}"
        yield Finding("cache", "slow", detail, f"unset {VARIABLE}, or name a private folder")
    else:
        yield Finding("cache", "ok", f"{memory(state.bytes)} of programs in {state.folder}")


def _numbers() -> Iterator[Finding]:
    """Compare an optimised forward pass, and its gradient, with the definition of the model."""
    import jax
    import jax.numpy as jnp

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

    def loss_and_gradient(forward: Callable[..., Any], *options: int) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(forward(params, inputs, Tap(task.spec), *options).value ** 2)

        with jax.default_matmul_precision("highest"):
            return jax.jit(jax.value_and_grad(loss))(params)

    plain = loss_and_gradient(model.apply)
    fast = loss_and_gradient(lambda *given: path.forward(model, *given), 0)
    largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(plain))
    errors = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), fast, plain)
    error = max(jax.tree.leaves(errors)) / largest
    detail = f"optimised and plain Transformer differ by {error:.0e} of the largest number"
    yield Finding("numbers", "ok" if error < ROUNDING else "fault", detail)
