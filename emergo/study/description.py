"""Objects from plain data, as in study files and plans: a table with a `type` becomes an object of
that type.

User types are found once the module that defines them is imported. Running a study imports the
`plugins` that it names; reading a store imports nothing.
"""

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError, check_table, unknown
from ..core.identity import canonical, type_name
from ..core.pytree import Pytree, fields
from ..models import Model, default_model
from ..store.folder import WHOLE
from ..tasks import Task, default_task
from ..training import Config, Optimizer, Run, Start, read_start

AXES = ("grid", "zip", "tune")  # the tables of a study file that hold what is varied
PARTS = ("task", "model", "optimizer")
# The fields of a config that are not parts: a study file has them in `[train]`.
TRAINING = [field.name for field in fields(Config) if field.name not in PARTS]
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PLUGIN = "name the file or module that defines it in `plugins`"
# The kinds of parts, and the types that study files need not name.
_DEFAULTS: dict[str, tuple[type, str]] = {
    "task": (Task, type_name(default_task())),
    "model": (Model, type_name(type(default_model()))),
}
_KINDS: dict[str, tuple[type, str | None]] = {**_DEFAULTS, "optimizer": (Optimizer, None)}


def known_types(kind: type = Pytree) -> dict[str, type]:
    """Return the subclasses of a kind by their names in files; of equal names the last one."""
    named = {}
    for child in kind.__subclasses__():
        if "<" not in child.__qualname__ and child.__name__[0] != "_":  # not local, not private
            named[type_name(child)] = child
        named |= known_types(child)
    return named


def find_type(name: Any, kind: type, where: str) -> type:
    """Return a subclass of a kind by its name; raise an `InputError` for an unknown name."""
    known = known_types(kind)
    if isinstance(name, str) and name in known:
        return known[name]
    if ":" in str(name):
        raise InputError(f"{where}: the type {name} is not known; {_PLUGIN}")
    raise unknown(f"type in {where}", str(name), known)


def find_function(name: str, where: str) -> Callable[..., Any]:
    """Return the function `module:name` of an imported module, or a function of emergo by its name
    alone."""
    head, _, path = name.rpartition(":")
    if head:
        modules = [head, "__main__"]
    else:
        modules = [module for module in list(sys.modules) if module.split(".")[0] == "emergo"]
    for module in modules:
        value: Any = sys.modules.get(module)
        for part in path.split("."):
            value = getattr(value, part, None)
        if callable(value) and hasattr(value, "__qualname__") and type_name(value) == name:
            return value
    raise InputError(f"{where}: there is no function {name}; {_PLUGIN}")


def check_keys(where: str, given: Any, known: Sequence[str]) -> None:
    """Raise an `InputError` for anything but a table with some of these keys."""
    check_table(where, given)
    for name in given:
        if name not in known:
            raise unknown(f"key of {where}", name, known)


def construct(cls: type, given: Any, where: str, hint: str = "") -> Any:
    """Build a dataclass from the values of its fields.

    **Arguments:**

    - `hint`: ends the error message for a missing field.
    """
    every = fields(cls)
    check_keys(where, given, [field.name for field in every])
    for field in every:
        has_default = not (field.default is dataclasses.MISSING is field.default_factory)
        if not has_default and field.name not in given:
            raise InputError(f"{where} needs {field.name}{hint}")
    try:
        return cls(**given)
    except InputError as error:
        message = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise InputError(message) from None


def build(data: Any, kind: type, where: str, default: str | None = None) -> Any:
    """Build an object of a kind (`Task`, `Model`, ...) from a table; the inverse of
    `emergo.core.identity.canonical`."""
    check_table(where, data)
    given = {name: value for name, value in data.items() if name not in ("type", "version")}
    if kind is Optimizer:
        return _optimizer(given, where)
    cls = find_type(data.get("type", default), kind, where)
    version = getattr(cls, "version", 1)
    if data.get("version", version) != version:
        raise InputError(
            f"{where}: {type_name(cls)} has version {version} here, not {data['version']}"
        )
    defaults = {field.name: field.default for field in fields(cls)}
    check_keys(where, given, list(defaults))
    values = {}
    for name, value in given.items():
        part = defaults[name]
        inner = type_name(type(part)) if isinstance(part, Pytree) else None
        values[name] = build_value(value, f"{where}.{name}", inner)
    return construct(cls, values, where, "; give it there, or vary it in the grid")


def build_value(value: Any, where: str, default: str | None = None) -> Any:
    """Build the value of a field: tables become objects or functions, lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(build_value(item, where) for item in value)
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("type", default))
    if name in known_types() or set(value) - {"type", "version"}:
        return build(value, Pytree, where, default)
    return find_function(name, where)


def _optimizer(given: Mapping[str, Any], where: str) -> Optimizer:
    values = dict(given)
    name = values.get("name")
    if isinstance(name, Mapping):
        name = str(name.get("type"))
    if ":" in str(name):
        values["name"] = find_function(str(name), where)
    try:
        options = dict(values.pop("options", ()))
        for option, value in (options | values).items():
            if option != "name":
                values[option] = build_value(value, f"{where}.{option}")
        return Optimizer(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None


def build_config(data: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> Config:
    """Build a config from plain data.

    **Arguments:**

    - `data`: as `Config.describe` returns it.
    - `training`: the fields other than task, model and optimizer, from another table.
    """
    own = {name: value for name, value in data.items() if name not in PARTS} | dict(training or {})
    where = "config" if training is None else "[train]"
    check_keys(where, own, TRAINING)
    threshold = own.get("threshold")
    if isinstance(threshold, str) and threshold not in ("task", "none"):
        raise InputError(f"{where} threshold must be a number, 'task' or 'none', got {threshold!r}")
    if threshold == "none":  # TOML cannot write null
        own["threshold"] = None
    for name in ("interventions", "probes", "stop", "start"):
        if name in own:
            own[name] = build_part(name, own[name], f"{where} {name}")
    parts = {part: build_part(part, data.get(part, {}), f"[{part}]") for part in PARTS}
    return construct(Config, parts | own, where)


def build_part(name: str, data: Any, where: str) -> Any:
    """Build a part of a config from plain data."""
    if data == "none":
        return None
    if name in ("interventions", "probes"):
        return _build_list(data, where)
    if name == "start":
        return _build_start(data, where)
    if name == "stop":
        return build_value(data, where)
    kind, default = _KINDS[name]
    return build(data, kind, where, default)


def _build_start(data: Any, where: str) -> Start:
    """Build a start from a description, or from a file of parameters."""
    if isinstance(data, str):
        return read_start(data)
    check_table(where, data)
    if "file" in data:
        check_keys(where, data, ["file", "resume"])
        return read_start(data["file"], bool(data.get("resume")))
    return build_value(data, where, "Start")


def describe_config(config: Config) -> dict[str, Any]:
    """Return a config as plain data; the inverse of `build_config`.

    Probes are included: they are not part of the identity, but other processes have to measure them
    too.
    """
    probes = {"probes": canonical(config.probes)} if config.probes else {}
    return config.describe() | probes


def _build_list(given: Any, where: str) -> tuple[Any, ...]:
    """Build a list of objects and functions."""
    if not isinstance(given, list | tuple):
        raise InputError(f"{where} must be a list, got {given!r}")
    return tuple(
        find_function(item, where) if isinstance(item, str) else build_value(item, where)
        for item in given
    )


def build_base(
    data: Mapping[str, Any], more: Sequence[str]
) -> tuple[Config, dict[str, dict[str, Any]]]:
    """Build the config of a study, and its axes, from the content of a study file.

    If only an axis gives a field that a part needs, the config gets its first value.

    **Arguments:**

    - `more`: other keys that the file may have.
    """
    given = {name: data[name] for name in data if name != "since"}
    check_keys("the study", given, [*PARTS, "train", *more])
    tables = {name: data.get(name, {}) for name in (*PARTS, "train", *AXES)}
    for name, table in tables.items():
        check_table(f"[{name}]", table)
    axes = {
        table: {
            path: _build_axis(path, values, f"[{table}] {path}")
            for path, values in _by_path(tables[table]).items()
        }
        for table in AXES
    }
    for part in PARTS:
        described = [tables[table][part] for table in AXES if part in axes[table]]
        if described and not tables[part]:
            tables[part] = next(iter(described[0].values()))
    varied = axes["grid"] | axes["zip"] | axes["tune"]
    for part, (kind, default) in _DEFAULTS.items():
        cls = find_type(tables[part].get("type", default), kind, f"[{part}]")
        for field in fields(cls):
            values = varied.get(f"{part}.{field.name}", varied.get(field.name, ()))
            if field.default is dataclasses.MISSING and values:
                first = values[0] if isinstance(values, tuple) else values
                tables[part] = {field.name: first} | tables[part]
    return build_config({part: tables[part] for part in PARTS}, tables["train"]), axes


def _build_axis(path: str, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        return build_value(values, where)
    return {label: build_part(path, part, f"{where}.{label}") for label, part in values.items()}


def _has_labels(name: str, table: Mapping[str, Any]) -> bool:
    """Return True for parts by label, False for a table of paths such as `{width = [8, 16]}`."""
    if name == "interventions":
        return not all(key.isdigit() for key in table)
    return name in ("stop", "start") or all(
        isinstance(part, Mapping) and not {"type", "name"}.isdisjoint(part)
        for part in table.values()
    )


def check_values(where: str, values: Any) -> None:
    """Raise an `InputError` for anything but a list of values of an axis."""
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise InputError(
            f"{where} must be a list of values, got {values!r}; a single value belongs to the base"
        )
    if not values:
        raise InputError(f"{where} needs at least one value")


def _by_path(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a table of axes: TOML reads `model.width = [8, 16]` as a table in a table."""
    paths: dict[str, Any] = {}
    for name, value in table.items():
        labelled = not prefix and name in WHOLE
        if isinstance(value, Mapping) and not (labelled and _has_labels(name, value)):
            paths |= _by_path(value, f"{prefix}{name}.")
        else:
            paths[f"{prefix}{name}"] = value
    return paths


def build_run(data: Mapping[str, Any]) -> Run:
    """Build a run from plain data, as `Run.describe` returns it."""
    if not isinstance(data.get("config"), Mapping) or "seed" not in data:
        raise InputError(
            f"not the description of a run, which has a table `config` and a `seed`: {data!r}"
        )
    return Run(build_config(data["config"]), data["seed"])


def load_plugins(plugins: Sequence[str]) -> None:
    """Import the modules that define a user's types: paths of `.py` files, or module names."""
    for name in plugins:
        if not (name.endswith(".py") or _MODULE.fullmatch(name)):
            raise InputError(
                f"plugins: {name!r:.80} is neither a .py file nor the name of a module such as "
                f"mine.tasks"
            )
        try:
            if name.endswith(".py"):
                _load_file(Path(name).resolve())
            else:
                module = importlib.import_module(name)
                for more in getattr(module, "plugins", ()):  # packages that import parts lazily
                    importlib.import_module(more)
        except Exception as error:
            raise InputError(f"plugin {name}: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError("no such file")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main and Path(main).resolve() == path:  # the script itself
        return
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(path.stem)
    finally:
        sys.path.remove(str(path.parent))
    if Path(module.__file__ or "").resolve() != path:
        raise ImportError(
            f"a module called {path.stem} is there already; give the file another name"
        )
