"""`emergo doctor`: what is installed here, on which devices, whether known faults of JAX apply, and what is slow and why.

Each examination yields findings and needs nothing but itself, so that a broken installation is described too.
"""

import functools
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import __version__
from ._cache import MOST_BYTES, VARIABLE, cache_state
from ._errors import StorageError
from ._files import atomic_write
from ._terminal import memory

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "missing", "slow", "fault"]
SLOW_STEP = 3.0  # times what a step is planned with: that is right within a factor of three or so
SLOW_WRITE = 0.05  # seconds for one small file that has to reach the disk
WORD = {"ok": "ok", "missing": "not there", "slow": "slow", "fault": "FAULT"}


class Finding(NamedTuple):
    """One thing that was looked at. `missing` is about what is optional; a `fault` may give wrong numbers or stop a command."""

    topic: str
    name: str
    state: State
    detail: str
    advice: str = ""


def examine(folder: Path | str = ".", timing: bool = True) -> Iterator[Finding]:
    """All findings, one by one as they are made; `folder` is where files are tried, `timing` whether to train for a moment."""
    examinations: list[Callable[[], Iterator[Finding]]] = [_system, _packages, _devices, _reductions, _fused_attention]
    examinations += [_flags, _load, _programs, functools.partial(_disk, Path(folder)), *([_training] if timing else [])]
    for examination in examinations:
        try:
            yield from examination()
        except Exception as error:  # whatever is broken here is what is to be reported
            name = getattr(examination, "__name__", "disk").strip("_").replace("_", " ")
            words = " ".join(str(error).split())[:200]
            yield Finding("trouble", name, "fault", f"could not be looked at: {type(error).__name__}: {words}")


def worst(findings: list[Finding]) -> State:
    order: tuple[State, ...] = ("ok", "missing", "slow", "fault")
    return order[max((order.index(finding.state) for finding in findings), default=0)]


def _system() -> Iterator[Finding]:
    yield Finding("system", "emergo", "ok", f"{__version__} at {Path(__file__).parent}")
    yield Finding("system", "Python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("system", "platform", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")


def _packages() -> Iterator[Finding]:
    """What the metadata of the installed package asks for, and what is there."""
    try:
        extras = importlib.metadata.metadata("emergo").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        words = "used from a folder, not installed: its extras are not known"
        yield Finding("packages", "emergo", "missing", words, "pip install .")
        return
    for requirement in _requirements("emergo"):
        wanted, there = f"{requirement.name}{requirement.specifier}", _version(requirement.name)
        state, advice = ("fault", f"pip install '{wanted}'") if _lacking(requirement) else ("ok", "")
        yield Finding("packages", requirement.name, state, there or "nothing is installed", advice)
    for extra in extras:
        lacking = [each for requirement in _requirements("emergo", extra) for each in _lacking(requirement)]
        words = f"lacks {', '.join(lacking)}" if lacking else "all of it is installed"
        advice = f"pip install 'emergo[{extra}]'" if lacking else ""
        yield Finding("extras", extra, "missing" if lacking else "ok", words, advice)


def _requirements(package: str, extra: str = "") -> Iterator["Requirement"]:
    """What an installed package needs; `extra`: what that adds."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, importlib.metadata.requires(package) or ()):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always != bool(extra) and (always or (marker is not None and marker.evaluate({"extra": extra}))):
            yield requirement


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _lacking(requirement: "Requirement") -> list[str]:
    """What is not installed, or in a version that does not fit, of a requirement and the extras it asks for."""
    there = _version(requirement.name)
    if not there or not requirement.specifier.contains(there, prereleases=True):
        return [f"{requirement.name}{requirement.specifier}"]
    inner = [needed for extra in requirement.extras for needed in _requirements(requirement.name, extra)]
    return [each for needed in inner for each in _lacking(needed)]


def _devices() -> Iterator[Finding]:
    import jax

    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        words = f"{device.device_kind}{f', {memory(limit)} for JAX' if limit else ''}"
        yield Finding("devices", f"{device.platform} {device.id}", "ok", words)
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        advice = "pip install 'emergo[cuda]', or see whether JAX_PLATFORMS is set"
        yield Finding("devices", "NVIDIA GPU", "slow", "this machine seems to have one, but JAX uses the CPU", advice)


def _reductions() -> Iterator[Finding]:
    """jaxlib 0.10.2 (jax issue 39103): from 32,768 elements on, rows are centred with other rows' means."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    z = np.random.default_rng(0).normal(size=(20_000, 5)).astype(np.float32)
    share = np.array([0.1, 0.2, 0.3, 0.15, 0.25], np.float32)
    got = np.asarray(jax.jit(jax.vmap(lambda row: share * (row - jnp.sum(share * row))))(z))
    off = float(np.max(np.abs(got - share * (z - (z @ share)[:, None]))))
    if off < 1e-4:  # fp32 rounds these at 1e-7; the fault is of the order of 1
        yield Finding("faults of JAX", "fused reductions", "ok", f"right within {off:.0e} (jax issue 39103 does not apply)")
    else:
        words = f"wrong by {off:.2g}: every number trained here may be (jax issue 39103)"
        yield Finding("faults of JAX", "fused reductions", "fault", words, "install another version of jaxlib than 0.10.2")


def _fused_attention() -> Iterator[Finding]:
    """cuDNN's attention: NaN gradients where it fills up a tile of 128 positions itself and all scores are below -88."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        yield Finding("faults of JAX", "cuDNN attention", "ok", "does not apply: no GPU, the plain form is used")
        return
    from .models._attention import attend_all, causal

    def finite(length: int, attend: Callable[..., Any]) -> bool:
        q = jnp.full((1, length, 1, 64), 10.0, jnp.bfloat16)
        gradients = jax.grad(lambda q, k, v: attend(q, k, v).astype(jnp.float32).sum(), argnums=(0, 1, 2))(q, -q / 8, q)
        return all(bool(jnp.isfinite(gradient).all()) for gradient in gradients)

    def ours(q: Any, k: Any, v: Any) -> Any:
        return attend_all("softmax", q, k, v, None, causal(q.shape[1]), fused=True)

    def bare(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    broken = [length for length in (65, 100, 128, 256) if not finite(length, ours)]
    known = "has the known fault" if not finite(64, bare) else "does not have the known fault"
    words = f"at length 64 and scores of -100 the bare kernel {known}; it is never given such lengths"
    if broken:
        advice = "train in fp32 or tf32, which do not use it"
        yield Finding("faults of JAX", "cuDNN attention", "fault", f"gradients at lengths {broken} are not finite", advice)
    else:
        yield Finding("faults of JAX", "cuDNN attention", "ok", words)


def _flags() -> Iterator[Finding]:
    """Settings in the environment that change numbers or speed."""
    changing = {"JAX_ENABLE_X64": "numbers", "JAX_DEFAULT_PRNG_IMPL": "numbers"}
    changing |= dict.fromkeys(("JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "XLA_FLAGS"), "speed")
    present = {name: what for name, what in changing.items() if os.environ.get(name)}
    for name, what in present.items():
        state: State = "slow" if what == "speed" else "fault"
        yield Finding("environment", name, state, f"is {os.environ[name]!r} and may change {what}", f"unset {name}")
    if not present:
        yield Finding("environment", "variables", "ok", "none that changes numbers or speed is set")


def _load() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    words = f"{allowed} of {cores} cores may be used, load {load:.1f}"
    busy = load > max(1.0, allowed / 2)
    yield Finding("speed", "processors", "slow" if busy else "ok", words, "other work takes a share of them" if busy else "")


def _disk(folder: Path) -> Iterator[Finding]:
    """A finished run is three flushes; a folder on a slow network file system makes short runs wait for it."""
    try:
        seconds = _seconds_to_write(folder)
    except (OSError, StorageError) as error:
        failed = f"{folder.resolve()}: cannot be written ({error.strerror})" if isinstance(error, OSError) else str(error)
        yield Finding("speed", "disk", "fault", failed, "name a folder of yours with --folder")
        return
    slow = seconds > SLOW_WRITE
    advice = "keep studies of many short runs on a local disk" if slow else ""
    words = f"{1000 * seconds:.1f} ms to bring a small file to the disk in {folder.resolve()}"
    yield Finding("speed", "disk", "slow" if slow else "ok", words, advice)


def _seconds_to_write(folder: Path) -> float:
    """What one small file takes until it is on the disk."""
    with tempfile.TemporaryDirectory(prefix=".emergo-", dir=folder) as stage:
        begun = time.monotonic()
        for n in range(5):
            atomic_write(Path(stage) / f"{n}", "x")
        return (time.monotonic() - begun) / 5


def _programs() -> Iterator[Finding]:
    """Whether what is compiled is kept for the next process."""
    state = cache_state()
    if state.off:
        advice = f"unset {VARIABLE}, or set it to a folder of yours" if VARIABLE in os.environ else ""
        yield Finding("speed", "programs", "slow", f"are compiled anew in every process: {state.off}", advice)
    else:
        bound = "as JAX is set up" if state.by_jax else f"of at most {memory(MOST_BYTES)}; {VARIABLE}=off keeps none"
        yield Finding("speed", "programs", "ok", f"are kept in {state.folder}: {memory(state.bytes)}, {bound}")


def _training() -> Iterator[Finding]:
    """A moment of training, compiled and then timed, against what studies are planned with."""
    import jax

    from .engine import Config, Optimizer, Run, plan_group, train
    from .models import Transformer
    from .tasks import SingleLocation

    task = SingleLocation(length=32, dim=8, position="random", indicator=True)
    config = Config(task, Transformer(layers=1, heads=1, width=64), Optimizer("adam"), steps=300, threshold=None)
    runs, seconds, steps = [Run(config, seed) for seed in range(8)], [], 300 * 8
    for _ in range(2):  # the second time the program is there
        begun = time.monotonic()
        train(runs, n_parallel=8)
        seconds.append(time.monotonic() - begun)
    step, planned = seconds[1] / steps, plan_group(runs, jax.default_backend()).step_seconds
    words = f"a step of a small Transformer takes {1e3 * step:.3g} ms among 8 runs; planned with {1e3 * planned:.3g} ms"
    slow = step > SLOW_STEP * planned
    advice = "" if not slow else "expect more than --dry-run says; close other work, or see the devices above"
    if slow and jax.default_backend() != "cpu":
        advice = "a small model leaves a GPU idle: train more runs at once (seeds, grid), or expect this"
    yield Finding("speed", "training", "slow" if slow else "ok", words, advice)
    yield Finding("speed", "compilation", "ok", f"{max(seconds[0] - seconds[1], 0):.1f} s for this program, read or compiled")


def report(findings: list[Finding]) -> dict[str, Any]:
    """Findings as plain data."""
    return {"schema": 1, "version": __version__, "worst": worst(findings), "findings": [f._asdict() for f in findings]}


def lines(findings: Iterator[Finding]) -> Iterator[tuple[Finding, str]]:
    """Each finding with what to print of it: a heading where a topic begins, one line, and the advice below."""
    topic = ""
    for finding in findings:
        head = f"{finding.topic}\n" if finding.topic != topic else ""
        topic = finding.topic
        advice = f"\n  {'':9} {'':18} -> {finding.advice}" if finding.advice else ""
        yield finding, f"{head}  {WORD[finding.state]:9} {finding.name:18} {finding.detail}{advice}"
