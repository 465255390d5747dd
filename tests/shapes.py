"""The check of shapes and types at run time, which tests install: beartype's, with less work.

A function that is defined inside of another is decorated whenever that is called; here it is as its
last time, where its signature is the same. A bare `PyTree` is any object, so that it need not be
looked through, and nearly any is an `ArrayLike`, which takes long to find out.
"""

from collections.abc import Callable, Hashable, Iterable
from types import FunctionType, ModuleType
from typing import Any, get_args

import beartype
from jaxtyping import PyTree
from numpy.typing import ArrayLike

_CHECK = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_checks: dict[Hashable, Callable[..., Any]] = {}


def _is_anything(hint: Any) -> bool:
    return hint is PyTree or all(one in get_args(hint) for one in get_args(ArrayLike))


def _late(function: Callable[..., Any]) -> Callable[..., Any]:
    """A check that is made when it is first asked: most are not, by one process of a session."""
    check: Callable[..., Any] | None = None

    def late(*args: Any, **kwargs: Any) -> Any:
        nonlocal check
        if check is None:
            check = _CHECK(function)
        return check(*args, **kwargs)

    return late


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A check for a function that jaxtyping has made of a signature: it has no body."""
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
    except TypeError:  # a hint without a hash
        return _late(function)
    if known is None:
        known = _checks[key] = _late(function)
    return known


def leave_unshaped(modules: Iterable[ModuleType]) -> None:
    """Takes the check from functions of these modules whose signatures name no shape: binding
    arguments costs more than most of them do, and the other types are basedpyright's."""
    for module in modules:
        own = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__
        ]
        for holder in (module, *own):
            for member in list(vars(holder).values()):
                for function in (
                    member,
                    *(getattr(member, name, None) for name in ("__func__", "fget", "func")),
                ):
                    if (
                        isinstance(function, FunctionType)
                        and hasattr(function, "__wrapped__")
                        and not _names_a_shape(function)
                    ):
                        function.__dict__["__no_type_check__"] = True  # which jaxtyping looks for


def _names_a_shape(function: FunctionType) -> bool:
    return any(
        "jaxtyping" in repr(hint) or (isinstance(hint, str) and "[" in hint)
        for hint in function.__annotations__.values()
    )
