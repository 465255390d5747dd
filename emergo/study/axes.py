"""Axes of a study: fields of a config by name, and whole parts by label."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError, unknown
from ..core.json import as_cell
from ..core.pytree import leaf_fields
from ..store.folder import WHOLE
from ..training import Config, Intervention, Optimizer, as_start


@dataclasses.dataclass(frozen=True)
class Choice:
    """A value of an axis over whole parts, with the label that tables and plots show."""

    label: str
    part: Any

    def __repr__(self) -> str:
        return self.label


def choices(name: str, values: Any, where: str) -> tuple[Choice, ...]:
    """Return the choices of an axis over whole parts.

    **Arguments:**

    - `values`: parts by label, or a list of parts, which are labelled by their text.
    - `where`: the axis, for error messages.
    """
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence):
        raise InputError(f"{where} must be a table of parts by label, got {values!r}")
    if not isinstance(values, Mapping):
        values = {one.label if isinstance(one, Choice) else _text(one): one for one in values}
    if not values:
        raise InputError(f"{where} needs at least one value")
    return tuple(
        part if isinstance(part, Choice) else Choice(str(label), _part(name, part))
        for label, part in values.items()
    )


def _part(name: str, part: Any) -> Any:
    if name == "interventions":
        return (part,) if isinstance(part, Intervention) else tuple(part or ())
    return as_start(part) if name == "start" and part is not None else part


def _text(part: Any) -> str:
    return "none" if part is None or part == () else str(part)


def field_paths(config: Config) -> dict[str, list[str]]:
    """Return the paths of each field name of a config.

    `dim` has the path `task.dim`, and `importance` the path `task.groups.importance`. A name that
    occurs in several parts has several paths.
    """
    paths: dict[str, list[str]] = {}
    more = [f"optimizer.{name}" for name in config.optimizer.given]
    for i, intervention in enumerate(config.interventions):
        more += [f"interventions.{i}.{path}" for path, _ in leaf_fields(intervention)]
    hidden = (*WHOLE, "optimizer.options", "optimizer.numbers", "probes")
    for path in (*dict(leaf_fields(config)), *more):
        if path not in hidden and not path.startswith("start."):
            paths.setdefault(path.rpartition(".")[2], []).append(path)
    return paths


def resolve_axis(config: Config, name: str, where: str = "the grid") -> str:
    """Return the path of an axis.

    **Arguments:**

    - `name`: the name of a field; a path such as `model.width` if several parts have the field; or
      an option of the optimizer such as `optimizer.b2`; a field of an intervention such as
      `interventions.0.until`; or a whole part, one of `WHOLE`.
    - `where`: the table of the axis, for error messages.
    """
    paths = field_paths(config)
    if name in WHOLE or any(name in candidates for candidates in paths.values()):
        return name
    option = name.removeprefix("optimizer.")
    if name not in paths and (option != name or option in config.optimizer.known_options):
        # Raises an error for an option that the optimizer does not have.
        config.optimizer.replace(options={option: 0} | config.optimizer.given)
        return f"optimizer.{option}"
    if name not in paths:
        raise unknown(f"axis of {where}", name, [*paths, *config.optimizer.known_options, *WHOLE])
    if len(paths[name]) > 1:
        raise InputError(f"{name} is a field of several parts; write {' or '.join(paths[name])}")
    return paths[name][0]


def axis_value(config: Config, path: str) -> Any:
    """Return the value at a path."""
    *parts, name = path.split(".")
    part: Any = config
    for field in parts:
        part = part[int(field)] if field.isdigit() else getattr(part, field)
    if isinstance(part, Optimizer) and not hasattr(part, name):
        return part.given[name]
    return getattr(part, name)


def cell_value(config: Config, axis: str) -> Any:
    """Return what a table shows of a config for an axis of another study; None without the field.

    Options of the optimizer that were not given have their default.
    """
    if axis in WHOLE:
        part = config.columns().get(axis, getattr(config, axis))
        return part if isinstance(part, str) else _text(part)
    try:
        path = resolve_axis(config, axis)
        return as_cell(axis_value(config, path))
    except InputError:
        return None
    except KeyError:
        return config.optimizer.number(axis.rpartition(".")[2])


def with_axes(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with other values at these paths. Fields are set in the new parts."""
    plain = {path: v.part if isinstance(v, Choice) else v for path, v in values.items()}
    changes: dict[str, Any] = {}
    optimizer = plain.get("optimizer", config.optimizer)
    options = {}
    interventions = list(plain.pop("interventions", config.interventions))
    for path, value in plain.items():
        head, _, name = path.partition(".")
        if head == "optimizer" and name and not hasattr(optimizer, name):
            options[name] = value
        elif head == "interventions":
            place, _, field = name.partition(".")
            if int(place) >= len(interventions):
                raise InputError(f"there is no {path}: {len(interventions)} interventions")
            changed = interventions[int(place)].replace(**{field.replace(".", "__"): value})
            interventions[int(place)] = changed
        else:
            changes[path.replace(".", "__")] = value
    if options:
        changes["optimizer__options"] = optimizer.given | options
    if tuple(interventions) != config.interventions:
        changes["interventions"] = tuple(interventions)
    return config.replace(**changes)
