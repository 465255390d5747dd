"""The fields of a config by name: what a study file may say, and what its axes may vary."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InputError, unknown
from ..engine import Config, Optimizer
from ..models import Transformer
from ..tasks import Recall, SingleLocation

PARTS: dict[str, Any] = {"task": SingleLocation, "model": Transformer, "optimizer": Optimizer}
"""The parts of a config that are dataclasses of their own. The task may be another one, if its `kind` says so."""
TASKS = {"single_location": SingleLocation, "recall": Recall}
"""What a study file may call a task."""

STOP = ("steps", "threshold", "beyond")
"""The fields of a config that say when a run ends; a study file has them in `[stop]`."""


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


OWN = [name for name in _fields(Config) if name not in PARTS]
PLACES: dict[str, str] = {name: part for part, kind in PARTS.items() for name in _fields(kind)} | dict.fromkeys(OWN, "")
PLACES |= {name: "task" for kind in TASKS.values() for name in _fields(kind)}
"""Every field that an axis may vary, and the part of the config it belongs to."""


def wrong_key(where: str, given: str, known: Sequence[str], elsewhere: Sequence[str] = (), kind: str = "key") -> InputError:
    """For a key that does not exist in a table of a study file; names the nearest that do, here or in another table."""
    exact = [path for path in elsewhere if path.rpartition(".")[2] == given]
    near = exact or difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    if not near:
        last = {path.rpartition(".")[2]: path for path in elsewhere}
        near = [last[name] for name in difflib.get_close_matches(given, list(last), n=2, cutoff=0.6)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return InputError(f"{where} has no {kind} '{given}'; {hint}" if where else f"unknown key '{given}'; {hint}")


def file_paths() -> list[str]:
    """Every key of a config as a study file writes it."""
    paths = [f"base.{part}.{name}" if part else f"base.{name}" for name, part in PLACES.items() if name not in STOP]
    return paths + [f"stop.{name}" for name in STOP]


def config_from(base: Mapping[str, Any], stop: Mapping[str, Any], first: Mapping[str, Any]) -> Config:
    """A config from the tables `[base]` and `[stop]` of a study file; `first` has a value for every axis."""
    for name in stop:
        if name not in STOP:
            raise wrong_key("[stop]", name, STOP, file_paths())
    here = [name for name in (*PARTS, *OWN) if name not in STOP]
    parts: dict[str, Any] = {}
    for name, value in base.items():
        if name not in here:
            raise wrong_key("[base]", name, here, file_paths())
        if name in PARTS and not isinstance(value, Mapping):
            raise InputError(f"base.{name} must be a table, got {value!r}")
    for part, kind in PARTS.items():
        given = dict(base.get(part, {}))
        if part == "task" and "kind" in given:
            name = str(given.pop("kind"))
            if name not in TASKS:
                raise unknown("base.task.kind", name, TASKS)
            kind = TASKS[name]
        for name in first:
            if PLACES[name] == part and name not in _fields(kind):
                raise wrong_key(f"[base.{part}]", name, _fields(kind), kind="axis")
        for name in given:
            if name not in _fields(kind):
                raise wrong_key(f"[base.{part}]", name, _fields(kind), file_paths())
        given |= {name: value for name, value in first.items() if PLACES[name] == part}
        for field in dataclasses.fields(kind):
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if needed and field.name not in given:
                raise InputError(f"[base.{part}] needs {field.name}; give it there, or vary it in [grid]")
        parts[part] = _made(kind, given, f"base.{part}")
    own = {name: value for name, value in base.items() if name not in PARTS} | dict(stop)
    return _made(Config, parts | own | {n: v for n, v in first.items() if not PLACES[n]}, "base")


def _made(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**given)
    except InputError as error:
        raise InputError(f"[{where}] {error}") from None


def config_data(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables `[base]` and `[stop]` of a config, whole: later versions may have other defaults."""
    data = config.describe()
    return {k: v for k, v in data.items() if k not in STOP}, {k: data[k] for k in STOP}


def varied(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values of these fields, whichever part they belong to."""
    own: dict[str, Any] = {}
    for part in {PLACES[name] for name in values}:
        mine = {name: value for name, value in values.items() if PLACES[name] == part}
        own |= {part: dataclasses.replace(getattr(config, part), **mine)} if part else mine
    return dataclasses.replace(config, **own)
