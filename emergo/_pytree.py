"""Frozen dataclasses that are pytrees: what tasks, models, optimizers, schedules and interventions are made of.

A subclass of `Pytree` needs no decorator. Fields marked `per_run` are its leaves: numbers that may differ between runs of one
program, or schedules of such numbers. All other fields are static: they decide which runs share a program.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from ._errors import InputError, unknown

Tree = TypeVar("Tree", bound="Pytree")


def per_run(default: Any = dataclasses.MISSING, *, low: float | None = None, high: float | None = None) -> Any:
    """A field whose value may differ between runs of one program: a number, or a schedule of one.

    **Arguments:**

    - `default`: as of any field of a dataclass.
    - `low`, `high`: the least and the largest value that makes sense; others are refused.

    ```python
    >>> class Noise(em.Task):
    ...     level: float = em.per_run(0.5, low=0.0)
    >>> Noise(0.25)
    Noise(level=0.25)

    ```
    """
    return _field(default, per_run=True, low=low, high=high)


def option(
    default: Any = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    padded: bool = False,
    at_start: bool = False,
) -> Any:
    """A static field with bounds.

    **Arguments:**

    - `padded`: tasks that differ in it may share a program, which is made for the largest. The task sees that one as the
      field, and the run's own as `self.real(name)`.
    - `at_start`: only `init` reads it, so that models that differ in it share a program.

    ```python
    >>> class Pairs(em.Task):
    ...     count: int = em.option(4, low=1)
    >>> Pairs(2).count
    2

    ```
    """
    return _field(default, low=low, high=high, padded=padded, at_start=at_start)


def _field(default: Any, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(per_run, option, dataclasses.field))
class Pytree:
    """Base class: subclasses are frozen dataclasses and pytrees, and check their fields when they are made."""

    version: ClassVar[int] = 1
    """Raised by the author when the same fields mean other numbers, or when a default changes: part of a run's identity."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            type.__setattr__(cls, "__post_init__", _guarded(own))
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        typing.no_type_check(cls.__init__)  # fields hold tracers and schedules as well; `check_fields` checks what a user gives
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten)

    def __post_init__(self) -> None:
        if not _is_traced(self):
            check_fields(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in changed_fields(self).items())
        return f"{type(self).__name__}({shown})"

    def identifying(self) -> dict[str, Any]:
        """The fields that are part of the identity, by name: those that differ from their default."""
        return changed_fields(self)

    def replace(self: Tree, **changes: Any) -> Tree:
        """A copy with other values of these fields; `part__field` reaches into a part.

        ```python
        >>> em.SingleLocation(length=32, dim=8).replace(dim=16)
        SingleLocation(length=32, dim=16)

        ```
        """
        copy = replaced(self, changes)
        sizes = {name: size for name, size in self._sizes.items() if name not in changes}
        if sizes:
            object.__setattr__(copy, "_sizes", sizes)
        return copy

    _sizes: ClassVar[Mapping[str, Any]] = {}  # of a padded instance, the run's own sizes (an attribute of the instance)

    def padded(self: Tree, sizes: Mapping[str, int]) -> Tree:
        """The same in a program made for larger sizes of the fields that may be padded."""
        copy = object.__new__(type(self))
        for name, value in _values(self).items():
            object.__setattr__(copy, name, sizes.get(name, value))
        object.__setattr__(copy, "_sizes", {name: getattr(self, name) for name in sizes})
        return copy

    def real(self, name: str) -> Any:
        """The run's own value of a field that may be padded: the field itself, or a traced number in a program for several."""
        return self._sizes.get(name, getattr(self, name))


def _guarded(check: Any) -> Any:
    """A `__post_init__` that runs after the checks of fields, and not on traced numbers, about which nothing can be said."""

    @functools.wraps(check)
    def checked(self: Pytree) -> None:
        if not _is_traced(self):
            check_fields(self)
            check(self)

    return checked


def fields(tree: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass, an instance of it or of `Pytree`."""
    return dataclasses.fields(tree)


def _values(tree: Any) -> dict[str, Any]:
    return {field.name: getattr(tree, field.name) for field in fields(tree)}


def _is_traced(tree: Any) -> bool:
    return any(isinstance(value, Tracer) for value in _values(tree).values())


def _split(tree: Pytree) -> tuple[list[str], tuple[tuple[str, Any], ...]]:
    """Names of the children: per-run fields, and fields that are pytrees themselves; and the static fields."""
    children, static = [], []
    for field in fields(tree):
        value = getattr(tree, field.name)
        if field.metadata.get("per_run") or isinstance(value, Pytree):
            children.append(field.name)
        else:
            static.append((field.name, value))
    return children, tuple(static)


def _flatten_with_keys(tree: Pytree) -> tuple[list[tuple[Any, Any]], Any]:
    names, static = _split(tree)
    keys = [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names]
    return [*keys, (jax.tree_util.GetAttrKey("_sizes"), dict(tree._sizes))], (tuple(names), static)


def _flatten(tree: Pytree) -> tuple[list[Any], Any]:
    names, static = _split(tree)
    return [*(getattr(tree, name) for name in names), dict(tree._sizes)], (tuple(names), static)


def _unflatten(cls: type, aux: Any, children: Any) -> Any:
    names, static = aux
    tree = object.__new__(cls)
    *values, sizes = children
    for name, value in (*static, *zip(names, values, strict=True)):
        object.__setattr__(tree, name, value)
    if sizes:
        object.__setattr__(tree, "_sizes", sizes)
    return tree


def changed_fields(tree: Any) -> dict[str, Any]:
    """The fields that differ from their default, by name."""
    return {
        field.name: getattr(tree, field.name)
        for field in dataclasses.fields(tree)
        if field.default is dataclasses.MISSING or not _same(getattr(tree, field.name), field.default)
    }


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def replaced(tree: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a frozen dataclass with other values of these fields; `part__field` reaches into a part."""
    known = [field.name for field in dataclasses.fields(tree) if field.init]
    flat: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, dunder, rest = name.partition("__")
        if head not in known:
            raise unknown(f"field of {type(tree).__name__}", head, known)
        if not dunder:
            flat[name] = value
        elif dataclasses.is_dataclass(getattr(tree, head)):
            nested.setdefault(head, {})[rest] = value
        else:
            raise InputError(f"{type(tree).__name__}.{head} has no fields of its own, so that {name} cannot be set")
    flat |= {head: replaced(getattr(tree, head), inner) for head, inner in nested.items()}
    return dataclasses.replace(tree, **flat)


# Checks of fields by their annotations.


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # annotations that only a type checker understands are not checked
        return {}


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def check_fields(tree: Any) -> None:
    """Checks the fields of a frozen dataclass by their annotations and bounds, and gives numbers and lists one form.

    Raises an `InputError` that names the class and the field, and says what would be right.
    """
    hints = _hints(type(tree))
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name)
        if isinstance(value, Schedule) and field.metadata.get("per_run"):
            if _bounds(field.metadata):
                _check_extremes(f"{type(tree).__name__}.{field.name}", value, field.metadata)
            continue
        where = f"{type(tree).__name__}.{field.name}"
        canonical = _canonical(where, value, _members(hints.get(field.name, Any)), field.metadata)
        if isinstance(tree, Pytree) and not field.metadata.get("per_run") and not isinstance(canonical, Pytree):
            _check_hashable(where, canonical)
        if canonical is not value:
            object.__setattr__(tree, field.name, canonical)


def _check_extremes(where: str, schedule: "Schedule", metadata: Mapping[str, Any]) -> None:
    try:
        extremes = schedule.extremes()
    except NotImplementedError:
        raise InputError(f"{type(schedule).__name__}.extremes is missing: {where} has bounds to be checked against") from None
    for number in extremes:
        _check_bounds(f"{where}: every value of {schedule!r}", number, metadata)


def _check_hashable(where: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        kind = type(value).__name__
        raise InputError(f"{where} must be hashable: numbers, texts, tuples or frozen dataclasses; got a {kind}") from None


def _canonical(where: str, value: Any, kinds: tuple[Any, ...], metadata: Mapping[str, Any]) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    if isinstance(value, np.generic | jax.Array) and np.ndim(value) == 0 and not isinstance(value, Tracer):
        value = value.item()
    if isinstance(value, list) or type(value) is tuple:
        value = as_tuple(value, any(map(_holds_fractions, kinds)))
    for kind in kinds:
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind) and len(kinds) == 1:
            raise unknown(where, str(value), map(str, typing.get_args(kind)))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if float in kinds and not (number or _fits_other(value, kinds)):
        raise InputError(f"{where} must be a number{_bounds(metadata)}, got {value!r}")
    if int in kinds and float not in kinds and not (number and isinstance(value, int)) and not _fits_other(value, kinds):
        raise InputError(f"{where} must be a whole number{_bounds(metadata)}, got {value!r}")
    if kinds == (bool,) and not isinstance(value, bool):
        raise InputError(f"{where} must be True or False, got {value!r}")
    if kinds == (str,) and not isinstance(value, str):
        raise InputError(f"{where} must be a text, got {value!r}")
    if number and (float in kinds or int in kinds):
        _check_bounds(where, value, metadata)
        return float(typing.cast(float, value)) + 0.0 if float in kinds else value  # -0.0 is 0.0
    return value


def _fits_other(value: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a value is one of the other things that a field may hold, such as a word or a tuple."""
    for kind in kinds:
        origin = typing.get_origin(kind) or kind
        if origin is Literal and value in typing.get_args(kind):
            return True
        if isinstance(origin, type) and origin not in (int, float, bool) and isinstance(value, origin):
            return True
    return False


def _check_bounds(where: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low, high = metadata.get("low"), metadata.get("high")
    if isinstance(value, bool | int | float) and not (
        math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high)
    ):
        kind = "whole number" if isinstance(value, int) else "finite number"
        raise InputError(f"{where} must be a {kind}{_bounds(metadata)}, got {value!r}")


def _bounds(metadata: Mapping[str, Any]) -> str:
    low, high = metadata.get("low"), metadata.get("high")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""


def as_tuple(value: Any, fractions: bool = False) -> Any:
    """Lists, at any depth, as tuples, and their numbers in one form: those of Python, all of them `float` for `fractions`."""
    if isinstance(value, list) or type(value) is tuple:
        return tuple(as_tuple(item, fractions) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) + 0.0 if fractions and isinstance(value, int | float) and not isinstance(value, bool) else value


def _holds_fractions(kind: Any) -> bool:
    return kind is float or any(map(_holds_fractions, typing.get_args(kind)))


class Schedule(Pytree):
    """A number that changes while a run trains; any `per_run` field may hold one. `emergo.engine` has ours.

    A subclass says what the number is at a step; one that reacts to what is measured also has a state. All of it is traced, so
    that choices are written with `jnp.where`.

    ```python
    >>> class Halving(em.Schedule):
    ...     first: float = em.per_run()
    ...     every: int = em.per_run(low=1)
    ...     def value(self, step, state):
    ...         return self.first * 0.5 ** (step // self.every)
    ...     def extremes(self):
    ...         return (0.0, self.first)
    >>> em.SingleLocation(length=8, dim=4, repeat=Halving(0.4, 100)).repeat
    Halving(first=0.4, every=100)

    ```
    """

    def start(self) -> Any:
        """The state before the first step: arrays, or nothing."""
        return ()

    def update(self, state: Any, metrics: Mapping[str, Any]) -> Any:
        """The state after an evaluation of this run. `metrics` holds what was measured in it."""
        return state

    def value(self, step: Any, state: Any) -> Any:
        """The number at a step."""
        raise NotImplementedError

    def extremes(self) -> tuple[float, ...]:
        """Values between which the number stays, to be checked against the bounds of the field that holds the schedule."""
        raise NotImplementedError

    def metrics(self) -> tuple[str, ...]:
        """The metrics that `update` reads."""
        return ()
