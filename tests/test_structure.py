"""The structure of the package: dependencies point one way, and only public names cross borders."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import emergo

PACKAGE = Path(emergo.__path__[0])
# Each subpackage may import only those before it (docs/how.md).
ORDER = [
    "core",
    "tasks",
    "models",
    "theory",
    "measure",
    "training",
    "store",
    "study",
    "papers",
    "logs",
    "forecasting",
    "torch",
    "view",
    "demo",
    "cli",
]
TOP = {"__init__", "__main__"}


def imports(path: Path) -> Iterator[list[str]]:
    """The parts of every name of the package that a module imports, without `emergo`."""
    parents = ["emergo", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")
        if isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) + 1 - node.level] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield [*module, alias.name]


def crossings() -> Iterator[tuple[Path, str, list[str]]]:
    """Every import from one subpackage of another: the file, its subpackage and the name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for root, *name in imports(path):
            if root == "emergo" and name and name[0] in ORDER and name[0] != here:
                yield path.relative_to(PACKAGE), here, name


def test_every_subpackage_has_a_place_in_the_order():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ORDER)
    assert len(list(crossings())) > 300  # else the tests below would pass on anything


def test_dependencies_point_one_way():
    wrong = [
        f"{path} imports {'.'.join(name)}"
        for path, here, name in crossings()
        if here not in TOP and ORDER.index(name[0]) > ORDER.index(here)
    ]
    assert not wrong


def test_only_public_names_cross_borders():
    wrong = [
        f"{path} imports {'.'.join(name)}"
        for path, _, name in crossings()
        if any(part.startswith("_") and part != "__version__" for part in name)
    ]
    assert not wrong


def test_training_store_and_study_name_no_task_and_no_model():
    """Docstring examples may name them."""
    names = "SingleLocation|Recall|MarkovChain|MarkovRegression|Transformer|ToyAttention"
    pattern = re.compile(rf"\b({names}|ChainTransformer|MinimalAttention)\b")
    found = []
    for folder in ("training", "store", "study"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                named = getattr(node, "id", None) or getattr(node, "attr", None)
                if isinstance(node, ast.alias):
                    named = node.name
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    named = node.value if len(node.value) < 30 else None
                if named and pattern.search(named):
                    found.append(f"{path.relative_to(PACKAGE)}: {named}")
    assert not found


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has imported after running this code."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_store_needs_no_jax():
    modules = [f"emergo.store.{path.stem}" for path in (PACKAGE / "store").glob("[!_]*.py")]
    assert modules
    names = loaded(f"import emergo.store, {', '.join(modules)}")
    assert "jax" not in names
    assert not {name for name in names if name.startswith(("emergo.training", "emergo.study"))}
