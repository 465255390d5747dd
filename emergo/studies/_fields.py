"""The fields of a config by name: what a study file may say, and what its axes may vary."""

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._errors import InputError, unknown
from ..engine import Config, Optimizer
from ..models import ChainTransformer, MinimalAttention, Transformer
from ..tasks import Groups, MarkovChain, Recall, SingleLocation

KINDS: dict[str, dict[str, Any]] = {
    "task": {"single_location": SingleLocation, "recall": Recall, "markov_chain": MarkovChain},
    "model": {"transformer": Transformer, "minimal_attention": MinimalAttention, "chain_transformer": ChainTransformer},
    "optimizer": {"": Optimizer},
}
"""The parts of a config that are dataclasses of their own, and what a study file may call their kinds; the first is the
default, but a Markov chain is learned by a minimal attention."""
INNER = {"groups": Groups}
"""Parts of a part."""

STOP = ("steps", "threshold", "beyond")
"""The fields of a config that say when a run ends; a study file has them in `[stop]`."""
FOLLOWED = ("length", "vocabulary")
"""Fields of a model of chains that its task decides; a study file does not say them again."""


def _fields(kind: Any) -> list[str]:
    followed = FOLLOWED if kind in (MinimalAttention, ChainTransformer) else ()
    return [field.name for field in dataclasses.fields(kind) if field.name not in followed]


def _places(part: str, kind: Any) -> dict[str, str]:
    """The fields of a part and of its own parts, and where they are."""
    found = {}
    for name in _fields(kind):
        found |= _places(f"{part}.{name}", INNER[name]) if name in INNER else {name: part}
    return found


OWN = [name for name in _fields(Config) if name not in KINDS]
PLACES: dict[str, str] = {
    name: place for part, kinds in KINDS.items() for kind in kinds.values() for name, place in _places(part, kind).items()
} | dict.fromkeys(OWN, "")
"""Every field of a config, and the part it belongs to."""
LISTS = ("spans", "weights", "windows")
"""Fields that hold several values; an axis has one a run."""
AXES = [name for name in PLACES if name not in LISTS]
"""Every field that an axis may vary."""
_COLUMNS = {"optimizer": "method"}
"""Columns of tables that are called otherwise than the field they show."""


def wrong_axis(where: str, given: str, known: Sequence[str]) -> InputError:
    """For an axis that does not exist."""
    if given in LISTS:
        table = ".".join(("base", *PLACES[given].split("."))) if PLACES[given] else "base"
        return InputError(f"{where} {given} is a list and cannot be an axis; give it in [{table}]")
    if _COLUMNS.get(given) in known:
        return InputError(f"{where} has no axis '{given}'; did you mean {_COLUMNS[given]}?")
    return wrong_key(where, given, [name for name in known if name not in LISTS], kind="axis")


def place_of(config: Config, part: str) -> Any:
    """The part of a config that `PLACES` names."""
    return functools.reduce(getattr, part.split("."), config) if part else config


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
    here = [name for name in (*KINDS, *OWN) if name not in STOP]
    for name in base:
        if name not in here:
            raise wrong_key("[base]", name, here, file_paths())
    tables = {part: _table(base.get(part, {}), f"base.{part}") for part in KINDS}
    kinds = _kinds_of(tables)
    _check_axes(first, kinds)
    parts = {"task": _part_from(kinds["task"], tables["task"], "task", first)}
    own = {name: value for name, value in base.items() if name not in KINDS} | dict(stop)
    follows = {}
    if isinstance(parts["task"], MarkovChain):
        own, follows = {"precision": "fp32"} | own, _followed(parts["task"])
    parts["model"] = _part_from(kinds["model"], tables["model"], "model", first, follows)
    parts["optimizer"] = _part_from(Optimizer, tables["optimizer"], "optimizer", first)
    return _made(Config, parts | own | {n: v for n, v in first.items() if not PLACES[n]}, "base")


def _table(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(f"{where} must be a table, got {given!r}")
    return dict(given)


def _kinds_of(tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What the parts are; takes `kind` out of their tables."""
    found: dict[str, Any] = {}
    for part, kinds in KINDS.items():
        name = next(iter(kinds))
        if part == "model" and found["task"] is MarkovChain:
            name = "minimal_attention"
        if len(kinds) > 1 and "kind" in tables[part]:
            name = str(tables[part].pop("kind"))
        if name not in kinds:
            raise unknown(f"base.{part}.kind", name, kinds)
        found[part] = kinds[name]
    if (found["task"] is MarkovChain) == (found["model"] is Transformer):
        raise InputError(
            "base.model.kind: minimal_attention and chain_transformer learn a markov_chain, transformer all other tasks"
        )
    return found


def _check_axes(names: Iterable[str], kinds: Mapping[str, Any]) -> None:
    """Axes must be fields of the task and the model that there are."""
    for part, kind in kinds.items():
        known = _places(part, kind)
        for name in names:
            if PLACES[name].split(".")[0] == part and name not in known:
                raise wrong_axis(f"[base.{part}]", name, list(known))


def _part_from(
    kind: Any, given: Mapping[str, Any], part: str, first: Mapping[str, Any], follows: Mapping[str, Any] | None = None
) -> Any:
    """A part of a config from its table, the first values of the axes and what follows from other parts."""
    where, known = f"base.{part}", _fields(kind)
    for name in given:
        if name in FOLLOWED and name in (follows or ()):
            raise InputError(f"[{where}] {name} follows from the task; leave it out")
        if name not in known:
            raise wrong_key(f"[{where}]", name, known, [path for path in file_paths() if path.rpartition(".")[0] != where])
    made = {name: tupled(value) for name, value in given.items()}
    made |= {name: value for name, value in first.items() if PLACES[name] == part}
    for name, inner in INNER.items():
        if name in known:
            made[name] = _part_from(inner, _table(given.get(name, {}), f"{where}.{name}"), f"{part}.{name}", first)
    for field in dataclasses.fields(kind):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name in known and field.name not in made:
            raise InputError(f"[{where}] needs {field.name}; give it there, or vary it in [grid]")
    return _made(kind, made | dict(follows or {}), where)


def tupled(value: Any) -> Any:
    """Lists of plain data as the tuples that configs hold."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value


def _followed(task: MarkovChain) -> dict[str, int]:
    """What the model of a chain takes from it: it reads all but the last token."""
    return {"length": task.length - 1, "vocabulary": task.vocabulary}


def _made(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**given)
    except InputError as error:
        raise InputError(f"[{where}] {error}") from None


def config_data(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables `[base]` and `[stop]` of a config, whole: later versions may have other defaults. None is left out."""
    data = config.describe()
    if isinstance(config.task, MarkovChain):
        data["model"] = {name: value for name, value in data["model"].items() if name not in FOLLOWED}
    data = _given(data)
    return {k: v for k, v in data.items() if k not in STOP}, {k: data[k] for k in STOP}


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _given(v) if isinstance(v, Mapping) else v for k, v in data.items() if v is not None}


def varied(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values of these fields, whichever part they belong to."""
    _check_axes(values, {"task": type(config.task), "model": type(config.model)})
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        changes.setdefault(PLACES[name], {})[name] = value
    for part in sorted(changes, key=len, reverse=True):  # parts of parts first
        if part:
            outer, _, name = part.rpartition(".")
            made = dataclasses.replace(place_of(config, part), **changes.pop(part))
            changes.setdefault(outer, {})[name] = made
    own = changes.get("", {})
    task, model = own.get("task", config.task), own.get("model", config.model)
    if isinstance(task, MarkovChain):
        own["model"] = dataclasses.replace(model, **_followed(task))
    return dataclasses.replace(config, **own)
