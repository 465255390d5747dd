"""Frozen dataclasses that are pytrees: the base of tasks, models, optimizers, schedules and
interventions.

A subclass of `Pytree` needs no decorator. Fields marked `per_run` are its leaves: numbers that may
differ between runs of one program, or schedules of such numbers. All other fields are static: only
runs with equal static fields share a program.
"""

import copy
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from .errors import InputError, naming, unknown

Tree = TypeVar("Tree", bound="Pytree")
Bound = float | None
fields: Callable[[Any], tuple[dataclasses.Field[Any], ...]] = dataclasses.fields


def per_run(default: Any = dataclasses.MISSING, *, low: Bound = None, high: Bound = None) -> Any:
    """Declare a field that may differ between runs of one program.

    Its value is a number from `low` to `high`, or a schedule of such numbers.

    >>> class Noise(em.Task):
    ...     level: float = em.per_run(0.5, low=0.0)
    >>> Noise(0.25)
    Noise(level=0.25)
    """
    return dataclasses.field(default=default, metadata={"per_run": True, "low": low, "high": high})


def option(
    default: Any = dataclasses.MISSING,
    *,
    low: Bound = None,
    high: Bound = None,
    padded: bool = False,
    at_start: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a static field with bounds.

    **Arguments:**

    - `padded`: tasks that differ in this size may share a program, which is compiled for the
      largest size. In the program, the field holds the largest size, and `self.real(name)` the size
      of the run.
    - `at_start`: only a model's `init` or a task's `truth` reads the field, so runs that differ in
      it share a program.
    - `convert`: a function from what the user passes to the value of the field, which must be
      hashable. It is also called with the default and with its own results.

    >>> class Pairs(em.Task):
    ...     count: int = em.option(4, low=1)
    >>> Pairs(2).count
    2
    """
    metadata = {"low": low, "high": high, "padded": padded, "at_start": at_start}
    metadata["convert"] = convert
    return dataclasses.field(default=default, metadata=metadata)


def _after_checks(own: Callable[[Any], None]) -> Callable[[Any], None]:
    """Make a `__post_init__` that checks the fields first. Traced numbers cannot be checked."""

    @functools.wraps(own)
    def checked(self: Any) -> None:
        if not any(isinstance(getattr(self, field.name), Tracer) for field in fields(self)):
            check_fields(self)
            own(self)

    return checked


@dataclass_transform(frozen_default=True, field_specifiers=(per_run, option, dataclasses.field))
class Pytree:
    """Base class whose subclasses are frozen dataclasses and pytrees, with checked fields."""

    # Part of a run's identity. Raise it if the same fields give other numbers, or if a default
    # changes.
    version: ClassVar[int] = 1
    # In a padded instance: the sizes of the run, by field. An attribute of the instance.
    _sizes: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in cls.__dict__:
            type.__setattr__(cls, "__post_init__", _after_checks(cls.__post_init__))
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        # Fields may also hold tracers and schedules; `check_fields` checks the input of users.
        typing.no_type_check(cls.__init__)
        jax.tree_util.register_pytree_with_keys(cls, _flatten, functools.partial(_unflatten, cls))

    @_after_checks
    def __post_init__(self) -> None:
        """Check the fields; a subclass may add checks."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in changed_fields(self).items())
        return f"{type(self).__name__}({shown})"

    def identifying(self) -> dict[str, Any]:
        """Return the fields that are part of the identity, by default the changed fields."""
        return changed_fields(self)

    def replace(self: Tree, **changes: Any) -> Tree:
        """Return a copy with other values; `part__field` names a field of a part."""
        sizes = {name: size for name, size in self._sizes.items() if name not in changes}
        return _with_attributes(replaced(self, changes), {}, sizes)

    def padded(self: Tree, sizes: Mapping[str, int]) -> Tree:
        """Return a copy for a program that is padded to larger sizes of these fields."""
        own = {name: getattr(self, name) for name in sizes}
        return _with_attributes(copy.copy(self), sizes, own)

    def real(self, name: str) -> Any:
        """Return the size of the run for a padded field: the field, or a number traced per run."""
        return self._sizes.get(name, getattr(self, name))


def _flatten(tree: Pytree) -> tuple[list[tuple[Any, Any]], Any]:
    """Split a pytree into children (per-run fields and nested pytrees) and static fields."""
    children = {}
    static = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        is_child = field.metadata.get("per_run") or isinstance(value, Pytree)
        (children if is_child else static)[field.name] = value
    aux = tuple(children), tuple(static.items())
    children["_sizes"] = dict(tree._sizes)
    return [(jax.tree_util.GetAttrKey(name), value) for name, value in children.items()], aux


def _unflatten(cls: type, aux: Any, children: Any) -> Any:
    names, static = aux
    *values, sizes = children
    attributes = dict(static) | dict(zip(names, values, strict=True))
    return _with_attributes(object.__new__(cls), attributes, sizes)


def _with_attributes(tree: Tree, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Tree:
    """Set fields without checks, and the sizes of the run, if any."""
    for name, value in ({**values, "_sizes": sizes} if sizes else values).items():
        object.__setattr__(tree, name, value)
    return tree


def leaf_fields(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `(path, value)` of all fields, including the fields of nested parts.

    The value of a per-run field is a number or a schedule; schedules are not entered.
    """
    for field in fields(part):
        value = getattr(part, field.name)
        path = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not field.metadata.get("per_run"):
            yield from leaf_fields(value, f"{path}.")
        else:
            yield path, value


def changed_fields(tree: Any) -> dict[str, Any]:
    """Return the fields that differ from their default, by name."""
    changed = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        if type(value) is not type(field.default) or value != field.default:
            changed[field.name] = value
    return changed


def replaced(tree: Any, changes: Mapping[str, Any]) -> Any:
    """Copy a frozen dataclass with other values; `part__field` names a field of a part."""
    known = [field.name for field in fields(tree) if field.init]
    by_part: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, _, rest = name.partition("__")
        if head not in known:
            raise unknown(f"field of {type(tree).__name__}", head, known)
        by_part.setdefault(head, {})[rest] = value
    values = {}
    for head, inner in by_part.items():
        part = inner.pop("", getattr(tree, head))
        if inner and not dataclasses.is_dataclass(part):
            raise InputError(f"{type(tree).__name__}.{head} has no fields to set")
        values[head] = replaced(part, inner) if inner else part
    return dataclasses.replace(tree, **values)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}  # annotations that only type checkers understand are not checked


def check_fields(tree: Any) -> None:
    """Check the fields of a frozen dataclass by their annotations and bounds.

    Numbers and lists are converted to a standard form, so that equal configs have equal hashes.
    """
    for field in fields(tree):
        value = getattr(tree, field.name)
        convert = field.metadata.get("convert")
        value = value if convert is None else convert(value)
        per_run = field.metadata.get("per_run")
        where = f"{type(tree).__name__}.{field.name}"
        hint = _hints(type(tree)).get(field.name, Any)
        if isinstance(value, Schedule) and per_run:
            if _bounds(field.metadata):
                with naming(f"{type(value).__name__}.extremes"):
                    extremes = value.extremes()
                for number in extremes:
                    _check_bounds(f"{where}: every value of {value!r}", number, field.metadata)
            continue
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = typing.get_args(hint) if is_union else (hint,)
        canonical = _canonical(where, value, kinds, field.metadata)
        if isinstance(tree, Pytree) and not per_run and not isinstance(canonical, Pytree):
            try:
                hash(canonical)
            except TypeError:
                raise InputError(
                    f"{where} must be hashable: numbers, texts, tuples or frozen dataclasses; got "
                    f"a {type(canonical).__name__}"
                ) from None
        object.__setattr__(tree, field.name, canonical)


def _canonical(where: str, value: Any, kinds: tuple[Any, ...], metadata: Mapping[str, Any]) -> Any:
    """Convert the value of a field to its standard form.

    **Arguments:**

    - `where`: the name of the field, for errors.
    - `kinds`: the types of its annotation, one or the members of a union.
    - `metadata`: the bounds of the field.
    """
    if isinstance(value, np.generic | jax.Array) and np.ndim(value) == 0:
        value = value.item()
    if isinstance(value, list) or type(value) is tuple:
        value = as_tuple(value, any(map(_holds_fractions, kinds)))
    if not any(_fits(value, kind) for kind in kinds):
        expected = [kind for kind in kinds if kind is not types.NoneType]
        words = [word for kind in expected if _is_literal(kind) for word in typing.get_args(kind)]
        named = isinstance(value, str) and words and {int, float}.isdisjoint(expected)
        if named or all(map(_is_literal, expected)):
            raise unknown(where, str(value), map(str, words))
        names = [_name(kind, metadata) for kind in expected if not _is_literal(kind)]
        raise InputError(
            f"{where} must be {' or '.join([*names, *map(repr, words)])}, got {value!r}"
        )
    if _is_number(value) and not {int, float}.isdisjoint(kinds):
        value = float(value) + 0.0 if float in kinds else value  # turns -0.0 into 0.0
        _check_bounds(where, value, metadata)
    return value


def _is_number(value: Any) -> typing.TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is Literal


def _fits(value: Any, kind: Any) -> bool:
    """Return True if a value has a type, without a look at the members of a tuple."""
    if kind is Any:
        return True
    if kind in (int, float):
        return _is_number(value) and isinstance(value, int | kind)
    if _is_literal(kind):
        return value in typing.get_args(kind)
    origin = typing.get_origin(kind) or kind
    return not isinstance(origin, type) or isinstance(value, origin)


def _name(kind: Any, metadata: Mapping[str, Any]) -> str:
    """Return what a value of a type is, for errors."""
    if kind in (int, float):
        return f"a {'whole ' if kind is int else ''}number{_bounds(metadata)}"
    kind = typing.get_origin(kind) or kind
    plain = {bool: "True or False", str: "a text", Callable: "a function"}
    name = getattr(kind, "__name__", str(kind))
    return plain.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _check_bounds(where: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if not isinstance(value, int | float):  # a traced number
        return
    low = metadata.get("low")
    high = metadata.get("high")
    inside = (low is None or value >= low) and (high is None or value <= high)
    storable = -(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value)
    if not (inside and storable):
        kind = "whole number" if isinstance(value, int) else "finite number"
        raise InputError(f"{where} must be a {kind}{_bounds(metadata)}, got {value!r}")


def _bounds(metadata: Mapping[str, Any]) -> str:
    low = metadata.get("low")
    high = metadata.get("high")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"


def as_tuple(value: Any, fractions: bool = False) -> Any:
    """Convert nested lists to tuples, and NumPy's numbers to Python's (floats if `fractions`)."""
    if isinstance(value, list) or type(value) is tuple:
        return tuple(as_tuple(item, fractions) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) + 0.0 if fractions and _is_number(value) else value


def _holds_fractions(kind: Any) -> bool:
    return kind is float or any(map(_holds_fractions, typing.get_args(kind)))


class Schedule(Pytree):
    """A number that changes during training; any `per_run` field may hold one.

    A subclass defines the number at each step. A schedule that reacts to measurements also has a
    state. All methods are traced, so write conditions with `jnp.where`.

    >>> class Halving(em.Schedule):
    ...     first: float = em.per_run()
    ...     every: int = em.per_run(low=1)
    ...     def value(self, step, state):
    ...         return self.first * 0.5 ** (step // self.every)
    ...     def extremes(self):
    ...         return (0.0, self.first)
    >>> em.SingleLocation(length=8, dim=4, repeat=Halving(0.4, 100)).repeat
    Halving(first=0.4, every=100)
    """

    def start(self) -> Any:
        """Return the state before the first step: a pytree of arrays."""
        return ()

    def update(self, state: Any, metrics: Mapping[str, Any]) -> Any:
        """Return the state after an evaluation of this run, which measured `metrics`."""
        return state

    def value(self, step: Any, state: Any) -> Any:
        """Return the number at a step."""
        raise NotImplementedError

    def extremes(self) -> tuple[float, ...]:
        """Return values between which the number stays, to be checked against a field's bounds."""
        raise NotImplementedError

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that `update` reads."""
        return ()
