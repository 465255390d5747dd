"""Config files beside a log, of Weights & Biases, Lightning, Hugging Face or anybody's script, as one level of constants."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..._files import read_regular
from ..._json import check_plain
from ._columns import number_or_text

NAMES = ("config.json", "config.yaml", "args.json", "hparams.yaml", "training_args.json")
MOST_BYTES, MOST_ENTRIES = 2**20, 1000  # of a config
_LONGEST = 200  # characters of a text that is worth a column
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
    """Numbers, texts and truth values of all configs in a folder, with dots between the levels; of a name in several files the
    first counts. `say` gets a line about a file that cannot be read: it may be something else."""
    found: dict[str, Any] = {}
    for name in NAMES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            text = read_regular(os.path.realpath(path), MOST_BYTES).decode("utf-8-sig")
            content = _unwrapped(json.loads(text) if path.suffix == ".json" else parse_yaml(text))
            check_plain([content], numbers=False)
            flat = dict(_flat(content))
            if len(flat) > MOST_ENTRIES:
                raise ValueError(f"it has {len(flat)} entries; at most {MOST_ENTRIES} are read")
        except (ValueError, OSError, RecursionError) as error:
            words = (str(error) or type(error).__name__).splitlines()[0]
            say(f"{path}: not read as a config ({words})")
            continue
        found = flat | found
    return found


def _unwrapped(content: Any) -> dict[str, Any]:
    """A config without the notes of Weights & Biases, which writes {name: {desc: ..., value: ...}}."""
    if not isinstance(content, dict):
        raise ValueError("expected names with values")
    own = {name: entry for name, entry in content.items() if name not in ("_wandb", "wandb_version")}
    if own and all(isinstance(entry, dict) and "value" in entry and set(entry) <= {"desc", "value"} for entry in own.values()):
        return {name: entry["value"] for name, entry in own.items()}
    return own


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All numbers, short texts and truth values, by their path."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif _is_column(value):
            yield f"{prefix}{name}".encode("utf-8", "replace").decode(), value


def _is_column(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST and value.isprintable()
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def parse_yaml(text: str) -> dict[str, Any]:
    """Names with values, and levels of them, of a YAML file as loggers write it: one `name: value` per line, deeper levels
    indented. Lists, texts over several lines, tags and anchors are left out: they are no columns."""
    whole: dict[str, Any] = {}
    levels: list[tuple[int, dict[str, Any] | None]] = [(-1, whole)]  # what is indented deeper goes there; None: it is left out
    for line in text.splitlines():
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if not bare or bare.startswith(("#", "---", "%")):
            continue
        while levels[-1][0] >= indent:
            levels.pop()
        table = levels[-1][1]
        name, colon, value = bare.partition(":")
        if table is None or bare.startswith("- ") or bare == "-" or not colon or value[:1] not in ("", " ", "\t"):
            levels.append((indent, None))
            continue
        name, value = name.strip().strip("\"'"), value.strip()
        if value == "" or value.startswith("#"):
            table[name] = inner = {}
            levels.append((indent, inner))
        else:
            levels.append((indent, None))
            if value[0] not in "|>[{&*!":
                table[name] = _scalar(value)
    return whole


def _scalar(word: str) -> Any:
    if word[0] in "\"'":
        return word[1 : word.index(word[0], 1)] if word.count(word[0]) > 1 else None
    word = word.partition(" #")[0].rstrip()
    return _WORDS[word.lower()] if word.lower() in _WORDS else number_or_text(word)
