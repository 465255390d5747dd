"""Constants of a run: from its name, and from config files next to its log.

The pattern `d(?P<dim>\\d+)_s(?P<seed>\\d+)` finds dim and seed in `d8_s0.csv`.
Configs of Weights & Biases, Lightning, Hugging Face and plain scripts are read. Nested levels are
flattened, with dots between the names.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import read_regular
from ..core.json import check_plain
from ._json import flatten

NAMES = ("config.json", "config.yaml", "args.json", "hparams.yaml", "training_args.json")
MOST_BYTES = 2**20
MOST_ENTRIES = 1000
_LONGEST = 200  # characters; longer texts are not worth a column
# Characters of a path that are searched. Some patterns take time that grows fast with the length.
LONGEST = 1000
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "~": None,
    ".nan": float("nan"),
    ".inf": float("inf"),
    "-.inf": -float("inf"),
}


def read_configs(folder: Path, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Read numbers, texts and truth values of all configs in a folder.

    If several files have an entry, the first file in `NAMES` takes precedence. `say` receives a
    line about each file that cannot be read, because such a file may be something else.
    """
    found: dict[str, Any] = {}
    for path in (folder / name for name in NAMES):
        if not path.is_file():
            continue
        try:
            text = read_regular(os.path.realpath(path), MOST_BYTES).decode("utf-8-sig")
            content = _unwrapped(json.loads(text) if path.suffix == ".json" else parse_yaml(text))
            check_plain([content], numbers=False)
            flat = _columns(content)
            if len(flat) > MOST_ENTRIES:
                raise ValueError(f"it has {len(flat)} entries; at most {MOST_ENTRIES} are read")
        except (ValueError, OSError, RecursionError) as error:
            words = (str(error) or type(error).__name__).splitlines()[0]
            say(f"{path}: not read as a config ({words})")
            continue
        found = flat | found
    return found


def _unwrapped(content: Any) -> dict[str, Any]:
    """Remove the wrapping of Weights & Biases, which writes {name: {desc: ..., value: ...}}."""
    if not isinstance(content, dict):
        raise ValueError("expected names with values")
    entries = {key: v for key, v in content.items() if key not in ("_wandb", "wandb_version")}
    if all(
        isinstance(entry, dict) and {"value"} <= entry.keys() <= {"desc", "value"}
        for entry in entries.values()
    ):
        return {name: entry["value"] for name, entry in entries.items()}
    return entries


def _columns(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name.encode("utf-8", "replace").decode(): value
        for name, value in flatten(content).items()
        if _is_column(value)
    }


def _is_column(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST and value.isprintable()
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def parse_yaml(text: str) -> dict[str, Any]:
    """Parse the part of YAML that loggers write: `name: value` lines, indented in levels.

    Lists, multi-line texts, tags and anchors are left out, because they cannot be columns.
    """
    whole: dict[str, Any] = {}
    # The stack of open levels: their indents, and their tables. Lines below an entry with the
    # table None are left out.
    levels: list[tuple[int, dict[str, Any] | None]] = [(-1, whole)]
    for line in text.splitlines():
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if not bare or bare.startswith(("#", "---", "%")):
            continue
        while levels[-1][0] >= indent:
            levels.pop()
        table = levels[-1][1]
        name, colon, value = bare.partition(":")
        inner = None
        is_entry = colon and value[:1].isspace() | (value == "") and not f"{bare} ".startswith("- ")
        if table is not None and is_entry:
            name = name.strip().strip("\"'")
            value = value.strip()
            if value == "" or value.startswith("#"):
                table[name] = inner = {}
            elif value[0] not in "|>[{&*!":
                table[name] = _scalar(value)
        levels.append((indent, inner))
    return whole


def _scalar(word: str) -> Any:
    quote = word[0]
    if quote in "\"'":
        return word[1 : word.index(quote, 1)] if word.count(quote) > 1 else None
    word = word.partition(" #")[0].rstrip()
    return _WORDS[word.lower()] if word.lower() in _WORDS else number_or_text(word)


def compile_columns(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; raise an `InputError` if it is invalid or lacks a named group."""
    form = "write a regular expression with named groups, e.g. d(?P<dim>\\d+)_s(?P<seed>\\d+)"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"columns '{pattern[:100]}': {error}; {form}") from None
    if not compiled.groupindex:
        raise InputError(f"columns '{pattern[:100]}' has no named group; {form}")
    return compiled


def columns_of(pattern: re.Pattern[str], name: str, path: Path) -> dict[str, Any]:
    """Search the name of a run, then the last part of its path, the last two parts, and so on."""
    ends = ["/".join(path.parts[-n:]) for n in range(1, len(path.parts) + 1)]
    for text in (name, *ends):
        found = pattern.search(text[-LONGEST:])
        if found:
            groups = found.groupdict().items()
            return {group: number_or_text(text) for group, text in groups if text is not None}
    raise InputError(
        f"{path}: columns '{pattern.pattern[:100]}' is not found in the name of run '{name}' "
        f"or the path"
    )


def number_or_text(text: str) -> int | float | str:
    """Convert text that looks like a number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
