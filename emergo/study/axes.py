"""Fields of a config by name, which a study varies."""

import functools
from collections.abc import Mapping
from typing import Any

from ..core.errors import InputError, unknown
from ..core.pytree import leaf_fields
from ..training import Config, Optimizer


def field_paths(config: Config) -> dict[str, list[str]]:
    """Return the paths of each field name of a config.

    `dim` has the path `task.dim`, and `importance` the path `task.groups.importance`. A name that
    occurs in several parts has several paths.
    """
    paths: dict[str, list[str]] = {}
    options = [f"optimizer.{name}" for name, _ in config.optimizer.options]
    for path in (*dict(leaf_fields(config)), *options):
        if path not in ("optimizer.options", "interventions", "probes"):
            paths.setdefault(path.rpartition(".")[2], []).append(path)
    return paths


def resolve_axis(config: Config, name: str, where: str = "the grid") -> str:
    """Return the path of an axis.

    **Arguments:**

    - `name`: the name of a field; a path such as `model.width` if several parts have the field; or
      an option of the optimizer such as `optimizer.b2`.
    - `where`: the table of the axis, for error messages.
    """
    paths = field_paths(config)
    if any(name in candidates for candidates in paths.values()):
        return name
    if name.startswith("optimizer."):
        option = name.partition(".")[2]
        # Raises an error for an option that the optimizer does not have.
        config.optimizer.replace(options={option: 0} | dict(config.optimizer.options))
        return name
    if name not in paths:
        raise unknown(f"axis of {where}", name, paths)
    if len(paths[name]) > 1:
        raise InputError(f"{name} is a field of several parts; write {' or '.join(paths[name])}")
    return paths[name][0]


def axis_value(config: Config, path: str) -> Any:
    """Return the value at a path."""
    *parts, name = path.split(".")
    part: Any = functools.reduce(getattr, parts, config)
    if isinstance(part, Optimizer) and not hasattr(part, name):
        return dict(part.options)[name]
    return getattr(part, name)


def with_axes(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with other values at these paths."""
    changes: dict[str, Any] = {}
    options = dict(config.optimizer.options)
    for path, value in values.items():
        head, _, name = path.partition(".")
        if head == "optimizer" and name and not hasattr(config.optimizer, name):
            options[name] = value
            changes["optimizer__options"] = options
        else:
            changes[path.replace(".", "__")] = value
    return config.replace(**changes)
