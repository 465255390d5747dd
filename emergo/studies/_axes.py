"""The fields of a config by name: what a study may vary."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InputError, unknown
from .._identity import canonical
from .._pytree import fields
from ..engine import Config, Optimizer

_PARTS = ("task", "model", "optimizer")


def field_paths(config: Config) -> dict[str, list[str]]:
    """Every field of a config by its name, with the paths to it: `dim` is `task.dim`, `importance` is `task.groups.importance`.

    A name that several parts have is listed with several paths.
    """
    paths: dict[str, list[str]] = {}

    def walk(part: Any, prefix: str) -> None:
        for field in fields(part):
            value, path = getattr(part, field.name), f"{prefix}{field.name}"
            if dataclasses.is_dataclass(value) and not field.metadata.get("per_run"):
                walk(value, f"{path}.")
            elif path not in ("optimizer.options", "interventions", "probes"):
                paths.setdefault(field.name, []).append(path)

    walk(config, "")
    for name, _ in config.optimizer.options:
        paths.setdefault(name, []).append(f"optimizer.{name}")
    return paths


def resolve_axis(config: Config, name: str, where: str = "the grid") -> str:
    """The path of an axis: a name, or a path such as `model.width` where several parts have the name.

    Options of an optimizer are named with it, as `optimizer.b2`.
    """
    paths = field_paths(config)
    if any(name in candidates for candidates in paths.values()):
        return name
    head, _, rest = name.partition(".")
    if head == "optimizer" and rest:
        config.optimizer.replace(options=dict(config.optimizer.options) | {rest: _any_value(config.optimizer, rest)})
        return name
    if name not in paths:
        raise unknown(f"axis of {where}", name, paths)
    if len(paths[name]) > 1:
        raise InputError(f"{name} is a field of several parts; write {' or '.join(paths[name])}")
    return paths[name][0]


def _any_value(optimizer: Optimizer, option: str) -> Any:
    """Some value of an option, to see whether there is such an option."""
    return dict(optimizer.options).get(option, 0)


def axis_value(config: Config, path: str) -> Any:
    """The value of a field of a config."""
    *parts, name = path.split(".")
    part = functools.reduce(getattr, parts, config)
    return dict(part.options)[name] if isinstance(part, Optimizer) and not hasattr(part, name) else getattr(part, name)


def with_axes(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values at these paths."""
    nested: dict[str, Any] = {}
    options = dict(config.optimizer.options)
    known = [field.name for field in fields(config.optimizer)]
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head == "optimizer" and name and name not in known:
            nested["optimizer__options"] = options = options | {name: value}
        else:
            nested[path.replace(".", "__")] = value
    return config.replace(**nested)


def check_values(where: str, name: str, values: Any) -> tuple[Any, ...]:
    """The values of an axis as a tuple, each something that a run can be identified by."""
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise InputError(f"{where} {name} must be a list of values, got {values!r}; a single value belongs to the base")
    if not values:
        raise InputError(f"{where} {name} needs at least one value")
    for value in values:
        canonical(value)
    return tuple(values)


def config_columns(config: Config) -> dict[str, Any]:
    """The fields of a config as cells of a table; what holds several values, and schedules, as text."""
    columns: dict[str, Any] = {}
    for part in (config.task, config.model):
        for name, value in _flat(part).items():
            columns.setdefault(name, value)
    columns |= {"optimizer": config.optimizer.label, "learning_rate": _cell(config.optimizer.learning_rate)}
    columns |= {name: _cell(value) for name, value in config.optimizer.options}
    columns |= {name: _cell(getattr(config, name)) for name in ("batch", "precision", "threshold")}
    later = {name: getattr(config, name) for name in ("n_train", "overtrain", "interventions")}
    return columns | {name: _cell(value) for name, value in later.items() if value}


def _flat(part: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        nested = dataclasses.is_dataclass(value) and not field.metadata.get("per_run")
        columns |= _flat(value) if nested else {field.name: _cell(value)}
    return columns


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return str(list(value))
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
