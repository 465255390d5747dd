"""The difference between a preset and the paper's setting, in words."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..study import Study

COUNTED = {"n_test": "test sequences", "n_train": "training sequences"}
COUNTED |= {name: name for name in ("steps", "seeds", "layers", "heads", "points")}
"""Fields that are written as `2 layers`; others are written as `width 64`."""
Field = tuple[str, Any]


def study_fields(studies: Sequence[Study]) -> Iterator[Field]:
    """Yield all fields of all configs, and the largest number of seeds."""
    for study in studies:
        for config in study.configs:
            yield from fields(config)
    yield "seeds", max(len(study.seeds) for study in studies)


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
    """List the fields whose values differ, e.g. `width 64, batch 16, dim 8 or 16, 2 seeds`."""
    values = _by_name(here)
    theirs = _by_name(paper)
    changed = [name for name in values if name in theirs and set(values[name]) != set(theirs[name])]
    return ", ".join(_in_words(name, values[name]) for name in changed)


def _by_name(pairs: Iterable[Field]) -> dict[str, list[Any]]:
    """Return the different values of each field."""
    values: dict[str, list[Any]] = {}
    for name, value in dict.fromkeys(pairs):
        values.setdefault(name, []).append(value)
    return values


def _in_words(name: str, values: Sequence[Any]) -> str:
    numbers = all(isinstance(value, int | float) for value in values)
    *others, last = [_shown(value) for value in (sorted(values) if numbers else values)]
    listed = f"{', '.join(others)} or {last}" if others else last
    if name not in COUNTED:
        return f"{'optimizer' if name == 'name' else name.replace('_', ' ')} {listed}"
    counted = COUNTED[name].removesuffix("s") if listed == "1" else COUNTED[name]
    return f"{listed.replace('none', 'unlimited')} {counted}"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str("none" if value is None else value)
