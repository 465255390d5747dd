"""Settings that all tests share, also the examples in the docstrings of the package."""

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import matplotlib as mpl
import pytest
from jax._src.interpreters import mlir

import emergo
import tests.shapes  # noqa: F401  # jaxtyping asks for it by name

# Shapes are checked at run time, from the first test on, in every module that names some; the other types are basedpyright's.
FOLDER = Path(emergo.__path__[0])
SHAPED = [path.relative_to(FOLDER.parent) for path in FOLDER.rglob("*.py") if "jaxtyping" in path.read_text()]
jaxtyping.install_import_hook([".".join(path.with_suffix("").parts) for path in SHAPED], "tests.shapes.checked")
jaxtyping.config.update("jaxtyping_disable", True)
mpl.use("Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background of a shell ignores
# Compilation makes the first example slow; runs must not depend on the clock or on chance.
hypothesis.settings.register_profile("emergo", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("emergo")

# Most of the time of a test goes into compiling programs that run for a moment. XLA leaves out what makes them fast, not what
# makes them right; and what one process of a session has compiled, the others (pytest's workers and what tests start) need not
# compile again.
_contexts, _make_context = threading.local(), mlir.make_ir_context


def _context() -> object:
    """Not public: every lowering makes a context of MLIR, 3 ms, and keeps it, 1.5 MB; here one serves all of a thread."""
    if not hasattr(_contexts, "own"):
        _contexts.own = _make_context()
    return _contexts.own


mlir.make_ir_context = _context
gc.set_threshold(20_000, 20, 20)  # modules and traced programs leave little garbage
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
CACHE = "JAX_COMPILATION_CACHE_DIR"
CREATED = pytest.StashKey[Path]()
HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["tests/torch/*.py", "emergo/torch/*.py"]


def pytest_report_header() -> list[str]:
    return [] if HAS_TORCH else ["torch is not installed: the tests of emergo.torch are left out"]


def pytest_configure(config: pytest.Config) -> None:
    if FLAGS not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    if CACHE not in os.environ:
        config.stash[CREATED] = Path(tempfile.mkdtemp(prefix="emergo-programs-"))
        settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}  # no word of every loading
        settings |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads of NumPy and PyTorch wait in a loop
        os.environ |= settings | {CACHE: str(config.stash[CREATED])}
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CREATED in config.stash:
        shutil.rmtree(config.stash[CREATED], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the first test of every file that is not slow")
    parser.addoption("--slow-third", type=int, choices=range(3), help="of the slow tests only this third")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    third = config.getoption("--slow-third")
    if third is not None:  # by the hash of their names, so that a test stays in its third
        others = [item for item in items if item.get_closest_marker("slow") and zlib.crc32(item.nodeid.encode()) % 3 != third]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if not config.getoption("--quick"):
        return
    first: dict[Path, pytest.Item] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            first.setdefault(item.path, item)
    chosen = list(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_collection_finish() -> None:
    """What was imported stays: it is not looked through again for garbage."""
    gc.collect()
    gc.freeze()
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="session")
def names_of_examples(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["em"] = emergo


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the type checks that tests run under, as for a user: what is wrong then meets the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
