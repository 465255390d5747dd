"""Run-time checks of shapes and types in tests: beartype's checks, with less overhead.

An inner function is decorated again in every call of the outer function. We reuse its check if the
signature is the same. Any object is a bare `PyTree`, and nearly any is an `ArrayLike`, so these two
hints are not checked.
"""

from collections.abc import Callable, Hashable, Iterable
from types import FunctionType, ModuleType
from typing import Any, get_args

import beartype
from jaxtyping import PyTree
from numpy.typing import ArrayLike

_CHECK = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_checks: dict[Hashable, Callable[..., Any]] = {}
# The members of NumPy's union. From Python 3.12 on it is an alias with a name of its own.
_ARRAY_LIKE = get_args(ArrayLike) or (ArrayLike,)


def _is_anything(hint: Any) -> bool:
    members = get_args(hint) or (hint,)
    return hint is PyTree or all(one in members for one in _ARRAY_LIKE)


def _late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check that is compiled at its first call; most are never called."""
    check: Callable[..., Any] | None = None

    def late(*args: Any, **kwargs: Any) -> Any:
        nonlocal check
        if check is None:
            check = _CHECK(function)
        return check(*args, **kwargs)

    return late


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check for a function that jaxtyping made from a signature, without a body."""
    hints = {
        name: Any if _is_anything(hint) else hint for name, hint in function.__annotations__.items()
    }
    function.__annotations__ = hints
    if function.__defaults__ or function.__kwdefaults__:
        return _late(function)
    key = (
        function.__module__,
        function.__qualname__,
        function.__code__.co_varnames,
        *hints.items(),
    )
    try:
        known = _checks.get(key)
    except TypeError:  # a hint that cannot be hashed
        return _late(function)
    if known is None:
        known = _checks[key] = _late(function)
    return known


def leave_unshaped(modules: Iterable[ModuleType]) -> None:
    """Remove the check from functions of these modules without a shape in their signature.

    Binding the arguments costs more than most of these functions, and basedpyright checks the other
    types.
    """
    for module in modules:
        members = list(vars(module).values())
        for member in list(members):
            if isinstance(member, type) and member.__module__ == module.__name__:
                members += vars(member).values()
        for member in members:
            inner = (getattr(member, name, None) for name in ("__func__", "fget", "func"))
            for function in (member, *inner):
                if not isinstance(function, FunctionType) or not hasattr(function, "__wrapped__"):
                    continue
                if not _names_a_shape(function):
                    function.__dict__["__no_type_check__"] = True  # an attribute of jaxtyping


def _names_a_shape(function: FunctionType) -> bool:
    return any(
        "jaxtyping" in repr(hint) or (isinstance(hint, str) and "[" in hint)
        for hint in function.__annotations__.values()
    )
