"""Settings shared by all tests and by the examples in the package's docstrings."""

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import matplotlib as mpl
import pytest

import emergo
import tests.shapes

# Check array shapes at run time, in every module whose signatures name shapes. basedpyright checks
# all other types. Checking starts with the first test: importing modules would only slow down.
PACKAGE = Path(emergo.__path__[0])
SHAPED = [path for path in PACKAGE.rglob("*.py") if "jaxtyping" in path.read_text()]
MODULES = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in SHAPED]
jaxtyping.install_import_hook(MODULES, "tests.shapes.checked")
jaxtyping.config.update("jaxtyping_disable", True)

mpl.use("Agg")
# Commands fold their output to the width in COLUMNS, which pytest-xdist sets in its processes.
os.environ.pop("COLUMNS", None)
# A shell ignores SIGINT in background jobs, which would break the tests that interrupt training.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Modules and traced programs leave little garbage, so collecting it often wastes time.
gc.set_threshold(20_000, 20, 20)

# No deadline, because the first example compiles. Derandomized, so that failures repeat.
hypothesis.settings.register_profile("emergo", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("emergo")

# Most test time is compilation of programs that run briefly, so XLA optimises very little.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
CACHE = "JAX_COMPILATION_CACHE_DIR"
# Settings for commands that tests start. They share one compilation cache, and their NumPy and
# PyTorch threads must not spin on the cores that other tests use.
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
# Before a program is trained, its optimised forward pass is compared with `apply`, which takes
# longer than the short trainings of tests. So tests train with `apply`, unless they use
# `fast_paths`.
FAST = "EMERGO_FAST"
MOST_MEMORY = 2 * 2**30
CREATED = pytest.StashKey[Path]()
HAS_TORCH = importlib.util.find_spec("torch") is not None
NEED_TORCH = ["tests/torch/*.py", "emergo/torch/*.py", "*/models/*torch_modules.py"]
# These have no examples, and the libraries that they import take seconds in every process.
SLOW_IMPORTS = ["emergo/torch/_huggingface.py", "emergo/torch/_lightning.py"]
collect_ignore_glob = SLOW_IMPORTS if HAS_TORCH else NEED_TORCH


def pytest_report_header() -> list[str]:
    return [] if HAS_TORCH else ["torch is not installed: skipping the tests of emergo.torch"]


def pytest_configure(config: pytest.Config) -> None:
    if FLAGS not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    if CACHE not in os.environ:
        config.stash[CREATED] = Path(tempfile.mkdtemp(prefix="emergo-programs-"))
        os.environ |= SETTINGS | {CACHE: str(config.stash[CREATED])}
    os.environ[FAST] = "off"
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    # pytest's own processes rarely compile a program twice, and writing to the cache takes time.
    jax.config.update("jax_enable_compilation_cache", False)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CREATED in config.stash:
        shutil.rmtree(config.stash[CREATED], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="run only the first test of every file that is not slow",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    first: dict[Path, pytest.Item] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            first.setdefault(item.path, item)
    chosen = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, and start checking shapes."""
    gc.collect()
    gc.freeze()
    tests.shapes.leave_unshaped(sys.modules[name] for name in MODULES if name in sys.modules)
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free compiled programs at the end of a file if the process has become large."""
    if nextitem is not None and nextitem.path != item.path and memory_in_use() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()


def memory_in_use() -> int:
    """Return the resident memory of this process in bytes; 0 where /proc does not exist."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        return 0
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True, scope="session")
def names_of_examples(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["em"] = emergo


@pytest.fixture(scope="module")
def fast_paths() -> Iterator[None]:
    """Use the optimised forward passes, as for a user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(FAST, raising=False)
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off shape checks, so that wrong input meets the package's own checks, as for a user."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
