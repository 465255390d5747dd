"""Objects from plain data, as study files and plans hold them: a table with a `type` becomes an object of that type.

A user's types are known once the module that defines them is imported. Reading a store never does that; running a study does,
for the `plugins` it names.
"""

import dataclasses
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError, unknown
from .._identity import type_name
from .._pytree import Pytree, fields
from ..engine import Config, Optimizer, Run
from ..models import Model
from ..tasks import Task

TRAINING = [field.name for field in fields(Config) if field.name not in ("task", "model", "optimizer")]
"""The fields of a config that are not parts: a study file has them in `[train]`."""


def _subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def known_types(kind: type = Pytree) -> dict[str, type]:
    """The types of a kind by their names in files; of two of one name the last one."""
    return {
        type_name(child): child for child in _subclasses(kind) if "<" not in child.__qualname__ and child.__name__[0] != "_"
    }


def find_type(name: Any, kind: type, where: str) -> type:
    """The type of this name."""
    known = known_types(kind)
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, str) and ":" in name:
        module = name.partition(":")[0]
        raise InputError(
            f"{where}: the type {name} is not known; name the file or module that defines it in `plugins` ({module})"
        )
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


def build(data: Any, kind: type, where: str, default: str | None = None) -> Any:
    """An object of a kind (`Task`, `Model`, ...) from a table; the inverse of `emergo._identity.canonical`."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where} must be a table, got {data!r}")
    given = {name: value for name, value in data.items() if name not in ("type", "version")}
    if kind is Optimizer:
        return _optimizer(given, where)
    cls = find_type(data.get("type", default), kind, where)
    version = getattr(cls, "version", 1)
    if data.get("version", version) != version:
        raise InputError(f"{where}: {type_name(cls)} has version {version} here, not {data['version']}")
    known = [field.name for field in fields(cls)]
    for name in given:
        if name not in known:
            raise wrong_key(where, name, known)
    for field in fields(cls):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in given:
            raise InputError(f"{where} needs {field.name}; give it there, or vary it in the grid")
    values = {}
    for field in fields(cls):
        if field.name in given:
            usual = type_name(type(field.default)) if isinstance(field.default, Pytree) else None
            values[field.name] = build_value(given[field.name], f"{where}.{field.name}", usual)
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def build_value(value: Any, where: str, default: str | None = None) -> Any:
    """The value of a field from plain data: tables become objects or functions, lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(build_value(item, where) for item in value)
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("type", default))
    if name in known_types() or set(value) - {"type", "version"}:
        return build(value, Pytree, where, default)
    return find_function(name, where)


def _optimizer(given: Mapping[str, Any], where: str) -> Optimizer:
    own = {"name": "adam", "learning_rate": 1e-4, "clip": None, "options": {}} | dict(given)
    name = own.pop("name")
    if isinstance(name, Mapping):
        name = str(name.get("type"))
    if isinstance(name, str) and ":" in name:
        name = find_function(name, where)
    rate = build_value(own.pop("learning_rate"), f"{where}.learning_rate")
    clip, options = own.pop("clip"), own.pop("options")
    try:
        return Optimizer(name, rate, clip, dict(options) | own)
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None


def wrong_key(where: str, given: str, known: Sequence[str]) -> InputError:
    """For a key that a table does not have; only keys of the same table are suggested."""
    near = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return InputError(f"{where} has no key '{given}'; {hint}")


def build_config(data: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> Config:
    """A config from plain data: as `Config.describe` gives it, or with the training's fields in a table of their own."""
    own = {name: value for name, value in data.items() if name not in ("task", "model", "optimizer")} | dict(training or {})
    where = "[train]" if training is not None else "config"
    for name in own:
        if name not in TRAINING:
            raise wrong_key(where, name, TRAINING)
    if own.get("threshold") == "none":
        own["threshold"] = None
    for name in ("interventions", "probes"):
        if name in own:
            if not isinstance(own[name], list | tuple):
                raise InputError(f"{where} {name} must be a list, got {own[name]!r}")
            own[name] = tuple(_named(item, f"{where} {name}") for item in own[name])
    parts = {
        "task": build(data.get("task", {}), Task, "[task]", "SingleLocation"),
        "model": build(data.get("model", {}), Model, "[model]", "Transformer"),
        "optimizer": build(data.get("optimizer", {}), Optimizer, "[optimizer]", "Optimizer"),
    }
    try:
        return Config(**parts, **own)
    except InputError as error:
        raise InputError(f"{where}: {error}" if training is not None else str(error)) from None


def _named(item: Any, where: str) -> Any:
    """An intervention or a probe: a table, or a function by its name."""
    return find_function(item, where) if isinstance(item, str) else build_value(item, where)


def build_run(data: Mapping[str, Any]) -> Run:
    """A run from plain data, as `Run.describe` gives it."""
    if not isinstance(data.get("config"), Mapping) or "seed" not in data:
        raise InputError(f"not the description of a run, which has a table `config` and a `seed`: {data!r}")
    return Run(build_config(data["config"]), data["seed"])


def load_plugins(plugins: Sequence[str], folder: Path | None = None) -> None:
    """Imports the modules that define a user's types: files (`tasks.py`, beside the study file) or modules by name."""
    for name in plugins:
        path = Path(name) if folder is None or Path(name).is_absolute() else folder / name
        if not name.endswith(".py"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise InputError(
                    f"plugin {name}: cannot be imported ({error}); give a .py file, or install the module"
                ) from None
            continue
        if not path.is_file():
            raise InputError(f"plugin {path}: no such file")
        _load_file(path.resolve())


def _load_file(path: Path) -> None:
    module = sys.modules.get(path.stem)
    if module is not None:
        if getattr(module, "__file__", None) and Path(str(module.__file__)).resolve() == path:
            return
        raise InputError(f"plugin {path}: a module called {path.stem} is there already; give the file another name")
    main = sys.modules.get("__main__")
    if main is not None and getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == path:
        return  # the script itself
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"plugin {path}: cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise InputError(f"plugin {path}: {type(error).__name__}: {error}") from error
