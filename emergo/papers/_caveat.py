"""The difference between a preset and the paper's setting, in words."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from ..study import Study

NAMES = {"n_test": "test sequences", "n_train": "training sequences", "name": "optimizer"}
"""The words for fields whose names need context."""
Field = tuple[str, Any]


def study_fields(studies: Iterable[Study]) -> Iterator[Field]:
    """Yield all fields of all configs, and the numbers of seeds."""
    for study in studies:
        for config in study.configs:
            yield from fields(config)
        yield "seeds", len(study.seeds)


def fields(item: Any, name: str = "") -> Iterator[Field]:
    """Yield all fields of a dataclass and of nested dataclasses, with the names of their types."""
    if dataclasses.is_dataclass(item):
        yield name, type(item).__name__
        for field in dataclasses.fields(item):
            yield from fields(getattr(item, field.name), field.name)
    elif isinstance(item, tuple) and any(dataclasses.is_dataclass(part) for part in item):
        for part in item:
            yield from fields(part, name)
    elif item != ():
        yield name, item


def difference(here: Iterable[Field], paper: Iterable[Field]) -> str:
    """List the fields whose values differ, e.g. `width 64, batch 16, dim 8 or 16, seeds 2`."""
    values = _by_name(here)
    theirs = _by_name(paper)
    words = []
    for name in values:
        if values[name] != theirs.get(name, values[name]):
            numbers = sorted(values[name], key=lambda value: (isinstance(value, str), value or 0))
            shown = " or ".join(_shown(value) for value in numbers)
            words.append(f"{NAMES.get(name, name.replace('_', ' '))} {shown}")
    return ", ".join(words)


def _by_name(pairs: Iterable[Field]) -> dict[str, set[Any]]:
    """Return the different values of each field."""
    values: dict[str, set[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, set()).add(value)
    return values


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str("none" if value is None else value)
