"""The reference: every public name, from its source and its docstring."""

import ast
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import emergo

FRONT = "emergo"
WIDTH = 92  # columns of code that fit next to the navigation at 1280 pixels
INTRODUCTION = """# Reference

`import emergo as em` gives the names that a notebook needs. Each is documented on the page of the
subpackage that it comes from. Subpackages are listed in the order of their dependencies.
"""
ORDER = [
    "tasks",
    "models",
    "theory",
    "theory.incremental",
    "measure",
    "training",
    "store",
    "study",
    "papers",
]


def subpackages() -> dict[str, ModuleType]:
    """Return the subpackages with public names, in the order of their dependencies."""
    found = sorted(module.name for module in pkgutil.iter_modules(emergo.__path__) if module.ispkg)
    names = ORDER + [name for name in found if name not in (*ORDER, "cli", "records")]
    modules = {name: importlib.import_module(f"emergo.{name}") for name in names}
    return {name: module for name, module in modules.items() if getattr(module, "__all__", ())}


@functools.cache
def homes() -> dict[str, str]:
    """Return the subpackage that documents each public name, by full name.

    `emergo.Study` and `emergo.study.Study` have the same home.
    """
    places: dict[str, str] = {}
    for name, module in subpackages().items():
        for public in module.__all__:
            places[f"emergo.{name}.{public}"] = name
    for public in emergo.__all__:
        if not public.startswith("__"):
            home = next(
                (name for name, module in subpackages().items() if public in module.__all__),
                "contract",
            )
            places[f"emergo.{public}"] = home
    return places


def label(full: str) -> str:
    """The anchor of a name: the same for `emergo.Study` and `emergo.study.Study`. Anchors do not
    tell capitals apart, but `Figure` and `figure` are two."""
    name = full.rpartition(".")[2]
    return f"api-{homes()[full]}-{'type-' if name[0].isupper() else ''}{name}".replace(".", "-")


def pages() -> dict[str, str]:
    """The pages of the reference by their names."""
    front = [name for name in emergo.__all__ if not name.startswith("__")]
    lines = [
        INTRODUCTION,
        "```{toctree}\n:hidden:",
        "contract",
        *(name.replace(".", "-") for name in subpackages()),
        "```",
        "",
    ]
    lines += ["| `em.` | |", "| --- | --- |"]
    lines += [
        f"| [`{name}`](#{label(f'emergo.{name}')}) | {summary(getattr(emergo, name))} |"
        for name in sorted(front)
    ]
    made = {"index": "\n".join(lines) + "\n"}
    own = [name for name in front if homes()[f"emergo.{name}"] == "contract"]
    made["contract"] = page(
        "contract", "The contract: what tasks, models and probes are written against.", emergo, own
    )
    for name, module in subpackages().items():
        made[name.replace(".", "-")] = page(
            name, inspect.getdoc(module) or "", module, list(module.__all__)
        )
    return made


def page(home: str, introduction: str, module: ModuleType, names: list[str]) -> str:
    title = "The contract" if home == "contract" else f"emergo.{home}"
    parts = [f"# {title}", markdown(introduction)]
    for name in sorted(names):
        front = name in emergo.__all__ and homes()[f"emergo.{name}"] == home
        shown = f"em.{name}" if front else f"emergo.{home}.{name}"
        full = f"emergo.{name}" if home == "contract" else f"emergo.{home}.{name}"
        parts += [
            f"({label(full)})=",
            f"## {name}",
            *entry(shown, name, getattr(module, name), module),
        ]
    return "\n\n".join(parts) + "\n"


def entry(shown: str, name: str, thing: Any, module: ModuleType) -> Iterator[str]:
    """A public name: how it is written down in the source, its docstring, and the public methods of
    a class."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        words = value_docstring(name, module)
        yield f"`{shown}`" + (f": {words}" if words else f" is `{shorten(repr(thing))}`.")
        return
    node = definition(thing)
    yield f"```python\n{written(node, shown, thing)}\n```" if node is not None else f"`{shown}`"
    words = thing.__doc__ or ""
    yield markdown(
        "" if words.startswith(f"{name}(") else words
    )  # a dataclass without a docstring gets its signature
    if not isinstance(node, ast.ClassDef):
        return
    for method in node.body:
        words = ast.get_docstring(method) if isinstance(method, ast.FunctionDef) else None
        if isinstance(method, ast.FunctionDef) and words and not method.name.startswith("_"):
            kinds = [ast.unparse(decorator) for decorator in method.decorator_list]
            prefix = "".join(
                f"@{kind}\n"
                for kind in kinds
                if kind in ("property", "classmethod", "staticmethod")
            )
            code = f"{prefix}{signature(method, method.name)}"
            yield f"### {name}.{method.name}\n\n```python\n{code}\n```\n\n{markdown(words)}"


def definition(thing: Any) -> ast.ClassDef | ast.FunctionDef | None:
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except (OSError, TypeError):
        return None
    return node if isinstance(node, ast.ClassDef | ast.FunctionDef) else None


def written(node: ast.ClassDef | ast.FunctionDef, shown: str, thing: Any) -> str:
    """The signature of a function; of a class with fields these, of another that of its
    `__init__`."""
    if isinstance(node, ast.FunctionDef):
        return signature(node, shown)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return signature(method, shown)
    lines = textwrap.dedent(inspect.getsource(thing)).splitlines()
    fields = [
        field
        for field in node.body
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_")
    ]
    bases = f"({', '.join(ast.unparse(base) for base in node.bases)})" if node.bases else ""
    shown_fields = [
        line for field in fields for line in lines[field.lineno - 1 : field.end_lineno]
    ]  # with their comments
    fitted = [part for line in shown_fields for part in with_comment_above(line)]
    return "\n".join([f"class {shown}{bases}", *fitted])


def with_comment_above(line: str) -> list[str]:
    """Return a line of code; a line that is too wide in two parts, its comment first."""
    code, mark, comment = line.partition("  # ")
    if len(line) <= WIDTH or not mark:
        return [line]
    indent = code[: len(code) - len(code.lstrip())]
    return [f"{indent}# {comment}", code]


def signature(node: ast.FunctionDef, shown: str) -> str:
    """A signature as it is in the source, on one line or with one argument per line."""
    text = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
    returns = (
        f" -> {ast.unparse(node.returns)}"
        if node.returns is not None and node.name != "__init__"
        else ""
    )
    line = f"{shown}({text}){returns}"
    if len(line) <= WIDTH:
        return line
    inner = ",\n    ".join(split_arguments(text))
    return f"{shown}(\n    {inner},\n){returns}"


def split_arguments(text: str) -> list[str]:
    """The arguments of a signature, split at the commas that are not inside brackets or quotes."""
    parts = [""]
    depth = 0
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def value_docstring(name: str, module: ModuleType) -> str:
    """The text below an assignment in the module that makes it."""
    inner = [
        found.name
        for found in pkgutil.iter_modules(module.__path__)
        if not found.ispkg and found.name != "__main__"
    ]
    for source in (
        module,
        *(importlib.import_module(f"{module.__name__}.{each}") for each in inner),
    ):
        body = ast.parse(inspect.getsource(source)).body
        for node, after in itertools.pairwise(body):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            words = (
                after.value.value
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                else None
            )
            if named and isinstance(words, str):
                return markdown(words)
    return ""


def shorten(text: str, most: int = 120) -> str:
    text = " ".join(text.split()).replace("`", "'")
    return text if len(text) <= most else f"{text[:most]} …"


def summary(thing: Any) -> str:
    """The first sentence of a docstring."""
    first = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s", first)[0].rstrip(":")
    return links(sentence).replace("|", "\\|")


def markdown(text: str) -> str:
    """A docstring as a page has it: links lead to their entries, and examples stand in blocks."""
    return links(fenced(inspect.cleandoc(text)))


def fenced(text: str) -> str:
    """Puts examples that stand without a fence into one."""
    lines = text.splitlines()
    result = []
    inside = False
    example = False
    for line in lines:
        starts = line.lstrip().startswith(">>>")
        if line.lstrip().startswith("```"):
            inside = not inside
        if not inside and starts and not example:
            result.append("```pycon")
            example = True
        if example and not line.strip():
            result.append("```")
            example = False
        result.append(line)
    return "\n".join([*result, *(["```"] if example else [])])


def links(text: str) -> str:
    """Links such as [`emergo.papers.figure`][]; what is not public stays code."""

    def link(match: re.Match[str]) -> str:
        return f"[`{match[1]}`](#{label(match[1])})" if match[1] in homes() else f"`{match[1]}`"

    return re.sub(r"\[`([\w.]+)`\]\[\]", link, text)
