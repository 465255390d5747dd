"""Frozen dataclasses that are pytrees: what tasks, models, optimizers, schedules and interventions
are made of.

A subclass of `Pytree` needs no decorator. Fields marked `per_run` are its leaves: numbers that may
differ between runs of one program, or schedules of such numbers. All other fields are static: they
decide which runs share a program.
"""

import contextlib
import copy
import dataclasses
import functools
import math
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from .errors import InputError, unknown

with contextlib.suppress(PackageNotFoundError):  # here, where JAX is imported first
    if version("jaxlib") == "0.10.2":
        _wrong = (
            "jaxlib 0.10.2 returns wrong numbers on the CPU for some fused reductions (jax "
            "issue 39103)"
        )
        warnings.warn(f"{_wrong}; install another version", RuntimeWarning, stacklevel=2)

Tree = TypeVar("Tree", bound="Pytree")
Bound = float | None


def per_run(default: Any = dataclasses.MISSING, *, low: Bound = None, high: Bound = None) -> Any:
    """A field whose value may differ between runs of one program: a number from `low` to `high`, or
    a schedule of one.

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
) -> Any:
    """A static field with bounds.

    **Arguments:**

    - `padded`: tasks that differ in it may share a program, which is made for the largest. The task
      sees that one as the field, and the run's own as `self.real(name)`.
    - `at_start`: only a model's `init` or a task's `truth` reads it, so that runs that differ in it
      share a program.

    >>> class Pairs(em.Task):
    ...     count: int = em.option(4, low=1)
    >>> Pairs(2).count
    2
    """
    metadata = {"low": low, "high": high, "padded": padded, "at_start": at_start}
    return dataclasses.field(default=default, metadata=metadata)


def _after_checks(own: Callable[[Any], None]) -> Callable[[Any], None]:
    """A `__post_init__` that checks the fields first; about traced numbers nothing can be said."""

    @functools.wraps(own)
    def checked(self: Any) -> None:
        if not any(isinstance(getattr(self, field.name), Tracer) for field in fields(self)):
            check_fields(self)
            own(self)

    return checked


@dataclass_transform(frozen_default=True, field_specifiers=(per_run, option, dataclasses.field))
class Pytree:
    """Base class: subclasses are frozen dataclasses and pytrees, and check their fields when they
    are made."""

    version: ClassVar[int] = 1
    """Raised by the author when the same fields mean other numbers, or when a default changes: part
    of a run's identity."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in cls.__dict__:
            type.__setattr__(cls, "__post_init__", _after_checks(cls.__post_init__))
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        typing.no_type_check(
            cls.__init__
        )  # fields hold tracers and schedules as well; `check_fields` checks what a user gives
        jax.tree_util.register_pytree_with_keys(cls, _flatten, functools.partial(_unflatten, cls))

    @_after_checks
    def __post_init__(self) -> None:
        """Checks of a subclass."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in changed_fields(self).items())
        return f"{type(self).__name__}({shown})"

    def identifying(self) -> dict[str, Any]:
        """The fields that are part of the identity, by name: those that differ from their
        default."""
        return changed_fields(self)

    def replace(self: Tree, **changes: Any) -> Tree:
        """A copy with other values of these fields; `part__field` reaches into a part."""
        sizes = {name: size for name, size in self._sizes.items() if name not in changes}
        return _with_attributes(replaced(self, changes), {}, sizes)

    _sizes: ClassVar[
        Mapping[str, Any]
    ] = {}  # of a padded instance, the run's own sizes (an attribute of the instance)

    def padded(self: Tree, sizes: Mapping[str, int]) -> Tree:
        """The same in a program made for larger sizes of the fields that may be padded."""
        return _with_attributes(
            copy.copy(self), sizes, {name: getattr(self, name) for name in sizes}
        )

    def real(self, name: str) -> Any:
        """The run's own value of a field that may be padded: the field itself, or a traced number
        in a program for several."""
        return self._sizes.get(name, getattr(self, name))


def fields(tree: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass, an instance of it or of `Pytree`."""
    return dataclasses.fields(tree)


def _flatten(tree: Pytree) -> tuple[list[tuple[Any, Any]], Any]:
    """Children are per-run fields, and fields that are pytrees themselves; the others are
    static."""
    children = {}
    static = []
    for field in fields(tree):
        value = getattr(tree, field.name)
        if field.metadata.get("per_run") or isinstance(value, Pytree):
            children[field.name] = value
        else:
            static.append((field.name, value))
    named = (children | {"_sizes": dict(tree._sizes)}).items()
    return [(jax.tree_util.GetAttrKey(name), value) for name, value in named], (
        tuple(children),
        tuple(static),
    )


def _unflatten(cls: type, aux: Any, children: Any) -> Any:
    names, static = aux
    *values, sizes = children
    return _with_attributes(
        object.__new__(cls), dict(static) | dict(zip(names, values, strict=True)), sizes
    )


def _with_attributes(tree: Tree, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Tree:
    """Sets fields without checks, and the run's own sizes where there are any."""
    for name, value in ({**values, "_sizes": sizes} if sizes else values).items():
        object.__setattr__(tree, name, value)
    return tree


def leaf_fields(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `(path, value)` of all fields, including those of nested parts.

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
    """The fields that differ from their default, by name."""
    values = {field: getattr(tree, field.name) for field in fields(tree)}
    return {
        f.name: value
        for f, value in values.items()
        if type(value) is not type(f.default) or value != f.default
    }


def replaced(tree: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a frozen dataclass with other values of these fields; `part__field` reaches into a
    part."""
    known = [field.name for field in fields(tree) if field.init]
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
            raise InputError(
                f"{type(tree).__name__}.{head} has no fields of its own, so that {name} cannot "
                f"be set"
            )
    flat |= {head: replaced(getattr(tree, head), inner) for head, inner in nested.items()}
    return dataclasses.replace(tree, **flat)


# Checks of fields by their annotations.


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (
        NameError,
        TypeError,
        AttributeError,
    ):  # annotations that only a type checker understands are not checked
        return {}


def check_fields(tree: Any) -> None:
    """Checks the fields of a frozen dataclass by their annotations and bounds, and gives numbers
    and lists one form."""
    for field in fields(tree):
        value = getattr(tree, field.name)
        per_run = field.metadata.get("per_run")
        where = f"{type(tree).__name__}.{field.name}"
        hint = _hints(type(tree)).get(field.name, Any)
        if isinstance(value, Schedule) and per_run:
            _check_schedule(where, value, field.metadata)
            continue
        kinds = (
            typing.get_args(hint)
            if typing.get_origin(hint) in (typing.Union, types.UnionType)
            else (hint,)
        )
        canonical = _canonical(where, value, kinds, field.metadata)
        if isinstance(tree, Pytree) and not per_run and not isinstance(canonical, Pytree):
            try:
                hash(canonical)
            except TypeError:
                hashable = "hashable: numbers, texts, tuples or frozen dataclasses"
                raise InputError(
                    f"{where} must be {hashable}; got a {type(canonical).__name__}"
                ) from None
        object.__setattr__(tree, field.name, canonical)


def _check_schedule(where: str, schedule: "Schedule", metadata: Mapping[str, Any]) -> None:
    try:
        extremes = schedule.extremes() if _bounds(metadata) else ()
    except NotImplementedError:
        raise InputError(
            f"{type(schedule).__name__}.extremes is missing: {where} has bounds to be checked "
            f"against"
        ) from None
    for number in extremes:
        _check_bounds(f"{where}: every value of {schedule!r}", number, metadata)


def _canonical(where: str, value: Any, kinds: tuple[Any, ...], metadata: Mapping[str, Any]) -> Any:
    """The one form of a value that a field of these kinds may hold."""
    if value is None and types.NoneType in kinds:
        return None
    if (
        isinstance(value, np.generic | jax.Array)
        and np.ndim(value) == 0
        and not isinstance(value, Tracer)
    ):
        value = value.item()
    if isinstance(value, list) or type(value) is tuple:
        value = as_tuple(value, any(map(_holds_fractions, kinds)))
    (first, *others) = (kind for kind in kinds if kind is not types.NoneType)
    if not others and typing.get_origin(first) is Literal and value not in typing.get_args(first):
        raise unknown(where, str(value), map(str, typing.get_args(first)))
    fits = (
        _is_number(value)
        if float in kinds
        else isinstance(value, int) and not isinstance(value, bool)
    )
    if (float in kinds or int in kinds) and not (
        fits or any(_is_other(value, kind) for kind in kinds)
    ):
        kind = "number" if float in kinds else "whole number"
        words = "".join(
            f" or {word!r}"
            for k in kinds
            if typing.get_origin(k) is Literal
            for word in typing.get_args(k)
        )
        raise InputError(f"{where} must be a {kind}{_bounds(metadata)}{words}, got {value!r}")
    for plain, words in ((bool, "True or False"), (str, "a text")):
        if kinds == (plain,) and not isinstance(value, plain):
            raise InputError(f"{where} must be {words}, got {value!r}")
    if _is_number(value) and (float in kinds or int in kinds):
        value = float(value) + 0.0 if float in kinds else value  # -0.0 is 0.0
        _check_bounds(where, value, metadata)
    return value


def _is_number(value: Any) -> typing.TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_other(value: Any, kind: Any) -> bool:
    """Whether a value is something other than a number that a field may hold, such as a word or a
    tuple."""
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        return value in typing.get_args(kind)
    return (
        isinstance(origin, type) and origin not in (int, float, bool) and isinstance(value, origin)
    )


def _check_bounds(where: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low = metadata.get("low")
    high = metadata.get("high")
    if not isinstance(value, int | float):  # traced: nothing can be said about it
        return
    too_large = isinstance(value, int) and not -(2**63) <= value < 2**63
    if (
        too_large
        or not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        kind = "whole number" if isinstance(value, int) else "finite number"
        raise InputError(f"{where} must be a {kind}{_bounds(metadata)}, got {value!r}")


def _bounds(metadata: Mapping[str, Any]) -> str:
    low = metadata.get("low")
    high = metadata.get("high")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return (
        f" of at least {low}"
        if low is not None
        else f" of at most {high}"
        if high is not None
        else ""
    )


def as_tuple(value: Any, fractions: bool = False) -> Any:
    """Lists, at any depth, as tuples, and their numbers in one form: those of Python, all of them
    `float` for `fractions`."""
    if isinstance(value, list) or type(value) is tuple:
        return tuple(as_tuple(item, fractions) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) + 0.0 if fractions and _is_number(value) else value


def _holds_fractions(kind: Any) -> bool:
    return kind is float or any(map(_holds_fractions, typing.get_args(kind)))


class Schedule(Pytree):
    """A number that changes while a run trains; any `per_run` field may hold one. A subclass says
    what the number is at a step; one that reacts to what is measured also has a state. All of it is
    traced, so that choices are written with `jnp.where`.

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
        """The state before the first step: arrays, or nothing."""
        return ()

    def update(self, state: Any, metrics: Mapping[str, Any]) -> Any:
        """The state after an evaluation of this run. `metrics` holds what was measured in it."""
        return state

    def value(self, step: Any, state: Any) -> Any:
        """The number at a step."""
        raise NotImplementedError

    def extremes(self) -> tuple[float, ...]:
        """Values between which the number stays, to be checked against the bounds of the field that
        holds the schedule."""
        raise NotImplementedError

    def metrics(self) -> tuple[str, ...]:
        """The metrics that `update` reads."""
        return ()
