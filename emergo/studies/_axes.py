"""The fields of a config by name: what a study may vary, and what tables show of it."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from .._errors import InputError, unknown
from .._pytree import fields
from ..engine import Config, Optimizer


def _leaves(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of all fields, those of nested parts included; a schedule is a value."""
    for field in fields(part):
        value, path = getattr(part, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not field.metadata.get("per_run"):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def field_paths(config: Config) -> dict[str, list[str]]:
    """Every field of a config by its name, with the paths to it, several where several parts have it: `dim` is `task.dim`,
    `importance` is `task.groups.importance`."""
    paths: dict[str, list[str]] = {}
    for path in (*dict(_leaves(config)), *(f"optimizer.{name}" for name, _ in config.optimizer.options)):
        if path not in ("optimizer.options", "interventions", "probes"):
            paths.setdefault(path.rpartition(".")[2], []).append(path)
    return paths


def resolve_axis(config: Config, name: str, where: str = "the grid") -> str:
    """The path of an axis: a name, or a path such as `model.width` where several parts have the name. Options of an optimizer
    are named with it, as `optimizer.b2`."""
    paths = field_paths(config)
    if any(name in candidates for candidates in paths.values()):
        return name
    if name.startswith("optimizer."):
        option = name.partition(".")[2]
        config.optimizer.replace(options={option: 0} | dict(config.optimizer.options))  # refuses one that there is not
        return name
    if name not in paths:
        raise unknown(f"axis of {where}", name, paths)
    if len(paths[name]) > 1:
        raise InputError(f"{name} is a field of several parts; write {' or '.join(paths[name])}")
    return paths[name][0]


def axis_value(config: Config, path: str) -> Any:
    *parts, name = path.split(".")
    part = functools.reduce(getattr, parts, config)
    return dict(part.options)[name] if isinstance(part, Optimizer) and not hasattr(part, name) else getattr(part, name)


def with_axes(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values at these paths."""
    nested, options = {}, dict(config.optimizer.options)
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head == "optimizer" and name and not hasattr(config.optimizer, name):
            nested["optimizer__options"] = options = options | {name: value}
        else:
            nested[path.replace(".", "__")] = value
    return config.replace(**nested)


def config_columns(config: Config) -> dict[str, Any]:
    """The fields of a config as cells of a table; what holds several values, and schedules, as text."""
    columns: dict[str, Any] = {}
    for part in (config.task, config.model):
        columns = columns | {path.rpartition(".")[2]: value for path, value in _leaves(part)} | columns
    columns |= {"optimizer": config.optimizer.label, "learning_rate": config.optimizer.learning_rate}
    columns |= dict(config.optimizer.options)
    columns |= {name: getattr(config, name) for name in ("batch", "precision", "threshold")}
    later = {name: getattr(config, name) for name in ("n_train", "overtrain", "interventions")}
    columns |= {name: value for name, value in later.items() if value}
    return {name: str(list(v)) if isinstance(v, tuple) else plain(v) for name, v in columns.items()}


def plain(value: Any) -> Any:
    """A value that a cell of a table can hold, as it is; others as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
