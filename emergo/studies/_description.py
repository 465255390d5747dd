"""Objects from plain data, as study files and plans hold them: a table with a `type` becomes an object of that type.

A user's types are known once the module that defines them is imported. Reading a store never does that; running a study does,
for the `plugins` it names.
"""

import dataclasses
import difflib
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError, check_table, unknown
from .._identity import type_name
from .._pytree import Pytree, fields
from ..engine import Config, Optimizer, Run
from ..models import Model
from ..tasks import Task

AXES = ("grid", "zip", "tune")  # the tables of a study file that say what is varied
PARTS = ("task", "model", "optimizer")
TRAINING = [field.name for field in fields(Config) if field.name not in PARTS]
"""The fields of a config that are not parts: a study file has them in `[train]`."""
_USUAL: dict[str, tuple[type, str]] = {"task": (Task, "SingleLocation"), "model": (Model, "Transformer")}
"""The kinds of parts, and the types that need not be named."""


def _subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def known_types(kind: type = Pytree) -> dict[str, type]:
    """The types of a kind by their names in files; of two of one name the last one."""
    named = (child for child in _subclasses(kind) if "<" not in child.__qualname__ and child.__name__[0] != "_")
    return {type_name(child): child for child in named}


def find_type(name: Any, kind: type, where: str) -> type:
    known = known_types(kind)
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, str) and ":" in name:
        plugin = f"name the file or module that defines it in `plugins` ({name.partition(':')[0]})"
        raise InputError(f"{where}: the type {name} is not known; {plugin}")
    raise unknown(f"type in {where}", str(name), known)


def find_function(name: str, where: str) -> Callable[..., Any]:
    """The function `module:name` of a module that is imported, or one of ours by its name alone."""
    head, _, path = name.rpartition(":")
    modules = [head, "__main__"] if head else [module for module in list(sys.modules) if module.split(".")[0] == "emergo"]
    for module in modules:
        value: Any = sys.modules.get(module)
        for part in path.split("."):
            value = getattr(value, part, None)
        if callable(value) and hasattr(value, "__qualname__") and type_name(value) == name:
            return value
    raise InputError(f"{where}: there is no function {name}; name the file or module that defines it in `plugins`")


def wrong_key(where: str, given: str, known: Sequence[str]) -> InputError:
    """For a key that a table does not have; only keys of the same table are suggested."""
    near = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return InputError(f"{where} has no key '{given}'; {hint}")


def check_keys(where: str, given: Any, known: Sequence[str]) -> None:
    """An `InputError` for what is not a table with some of these keys."""
    check_table(where, given)
    for name in given:
        if name not in known:
            raise wrong_key(where, name, known)


def construct(cls: type, given: Any, where: str, hint: str = "") -> Any:
    """An object of a dataclass from the values of its fields; `hint` tells where else one that is missing may be given."""
    every = fields(cls)
    check_keys(where, given, [field.name for field in every])
    for field in every:
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in given:
            raise InputError(f"{where} needs {field.name}{hint}")
    try:
        return cls(**given)
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def build(data: Any, kind: type, where: str, default: str | None = None) -> Any:
    """An object of a kind (`Task`, `Model`, ...) from a table; the inverse of `emergo._identity.canonical`."""
    check_table(where, data)
    given = {name: value for name, value in data.items() if name not in ("type", "version")}
    if kind is Optimizer:
        return _optimizer(given, where)
    cls = find_type(data.get("type", default), kind, where)
    version = getattr(cls, "version", 1)
    if data.get("version", version) != version:
        raise InputError(f"{where}: {type_name(cls)} has version {version} here, not {data['version']}")
    check_keys(where, given, [field.name for field in fields(cls)])
    usual = {field.name: type_name(type(field.default)) for field in fields(cls) if isinstance(field.default, Pytree)}
    values = {name: build_value(value, f"{where}.{name}", usual.get(name)) for name, value in given.items()}
    return construct(cls, values, where, "; give it there, or vary it in the grid")


def build_value(value: Any, where: str, default: str | None = None) -> Any:
    """The value of a field from plain data: tables become objects or functions, lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(build_value(item, where) for item in value)
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("type", default))
    if name in known_types() or set(value) - {"type", "version"}:
        return build(value, Pytree, where, default)
    try:
        return find_function(name, where)
    except InputError:
        if ":" not in name and difflib.get_close_matches(name, known_types()):
            raise unknown(f"type in {where}", name, known_types()) from None
        raise


def _optimizer(given: Mapping[str, Any], where: str) -> Optimizer:
    own = {"name": "adam", "learning_rate": 1e-4, "clip": None, "options": {}} | dict(given)
    name, rate, clip, options = (own.pop(key) for key in ("name", "learning_rate", "clip", "options"))
    name = str(name.get("type")) if isinstance(name, Mapping) else name
    if isinstance(name, str) and ":" in name:
        name = find_function(name, where)
    rate = build_value(rate, f"{where}.learning_rate")
    try:
        return Optimizer(name, rate, clip, dict(options) | own)
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None


def _threshold(given: Any, where: str) -> Any:
    """A threshold as a config has it: files write none, which TOML does not have, as a text."""
    if isinstance(given, str) and given not in ("task", "none"):
        raise InputError(f"{where} threshold must be a number, 'task' or 'none', got {given!r}")
    return None if given == "none" else given


def build_config(data: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> Config:
    """A config from plain data: as `Config.describe` gives it, or with the training's fields in a table of their own."""
    own = {name: value for name, value in data.items() if name not in PARTS} | dict(training or {})
    where = "config" if training is None else "[train]"
    check_keys(where, own, TRAINING)
    own |= {"threshold": _threshold(own["threshold"], where)} if "threshold" in own else {}
    for name in [name for name in ("interventions", "probes") if name in own]:
        given, at = own[name], f"{where} {name}"
        if not isinstance(given, list | tuple):
            raise InputError(f"{at} must be a list, got {given!r}")
        own[name] = tuple(find_function(item, at) if isinstance(item, str) else build_value(item, at) for item in given)
    parts = {part: build(data.get(part, {}), kind, f"[{part}]", usual) for part, (kind, usual) in _USUAL.items()}
    parts["optimizer"] = build(data.get("optimizer", {}), Optimizer, "[optimizer]")
    return construct(Config, parts | own, where)


def build_base(data: Mapping[str, Any], more: Sequence[str]) -> tuple[Config, dict[str, dict[str, Any]]]:
    """The config of a study and its axes from the content of a study file, which may have the keys `more` as well. Where a part
    needs a field that only an axis gives, it is the axis's first value."""
    check_keys("the study", {name: data[name] for name in data if name != "since"}, [*PARTS, "train", *more])
    tables = {name: data.get(name, {}) for name in (*PARTS, "train", *AXES)}
    for name, table in tables.items():
        check_table(f"[{name}]", table)
    axes = {t: {k: build_value(v, f"[{t}] {k}") for k, v in _by_path(tables[t]).items()} for t in AXES}
    types = {part: find_type(tables[part].get("type", usual), kind, f"[{part}]") for part, (kind, usual) in _USUAL.items()}
    known = {field.name for cls in (*types.values(), Optimizer, Config) for field in fields(cls)}
    for part, cls in types.items():
        needed = [field.name for field in fields(cls) if field.default is dataclasses.MISSING]
        missing = [name for name in needed if name not in tables[part]]
        first = {name: value for name in missing for value in _first_value(axes, (f"{part}.{name}", name))}
        _check_spelling(axes, known, [name for name in missing if name not in first])
        tables[part] = first | tables[part]
    return build_config({part: tables[part] for part in PARTS}, tables["train"]), axes


def _first_value(axes: Mapping[str, Mapping[str, Any]], paths: Sequence[str]) -> Iterator[Any]:
    """The first value of each axis with one of these paths."""
    for table, path in itertools.product(axes, paths):
        if path in axes[table]:
            check_values(f"[{table}] {path}", axes[table][path])
            yield axes[table][path][0]


def check_values(where: str, values: Any) -> None:
    """An `InputError` for what is no list of values of an axis."""
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise InputError(f"{where} must be a list of values, got {values!r}; a single value belongs to the base")
    if not values:
        raise InputError(f"{where} needs at least one value")


def _check_spelling(axes: Mapping[str, Mapping[str, Any]], known: Collection[str], missing: Sequence[str]) -> None:
    """An `InputError` for an axis that is no field, but nearly one that is needed and not given."""
    for table, names in axes.items():
        for name in names:
            if name.rpartition(".")[2] not in known and difflib.get_close_matches(name, missing):
                raise unknown(f"axis of [{table}]", name, missing)


def _by_path(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of axes by their paths: in TOML, `model.width = [8, 16]` is a table within a table."""
    paths: dict[str, Any] = {}
    for name, value in table.items():
        paths |= _by_path(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return paths


def build_run(data: Mapping[str, Any]) -> Run:
    """A run from plain data, as `Run.describe` gives it."""
    if not isinstance(data.get("config"), Mapping) or "seed" not in data:
        raise InputError(f"not the description of a run, which has a table `config` and a `seed`: {data!r}")
    return Run(build_config(data["config"]), data["seed"])


def load_plugins(plugins: Sequence[str]) -> None:
    """Imports the modules that define a user's types: files or modules by name."""
    for name in plugins:
        if name.endswith(".py"):
            _load_file(Path(name).resolve())
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            advice = "give a .py file, or install the module"
            raise InputError(f"plugin {name}: cannot be imported ({error}); {advice}") from None


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"plugin {path}: no such file")
    module = sys.modules.get(path.stem)
    for loaded in (module, sys.modules.get("__main__")):  # imported before, or the script itself
        file = getattr(loaded, "__file__", None)
        if file and Path(file).resolve() == path:
            return
    if module is not None:
        raise InputError(f"plugin {path}: a module called {path.stem} is there already; give the file another name")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"plugin {path}: cannot be loaded as a Python file")
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise InputError(f"plugin {path}: {type(error).__name__}: {error}") from error
