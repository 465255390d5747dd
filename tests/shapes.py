"""The check of shapes and types at run time, which tests install: beartype's, with less work.

A function that is defined inside of another is decorated whenever that is called; here it is as its last time, where its
signature is the same. And a bare `PyTree` is any object, so that it need not be looked through.
"""

from collections.abc import Callable, Hashable
from typing import Any

import beartype
from jaxtyping import PyTree

_CHECK = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_checks: dict[Hashable, Callable[..., Any]] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A check for a function that jaxtyping has made of a signature: it has no body."""
    hints = {name: Any if hint is PyTree else hint for name, hint in function.__annotations__.items()}
    function.__annotations__ = hints
    if function.__defaults__ or function.__kwdefaults__:
        return _CHECK(function)
    key = (function.__module__, function.__qualname__, function.__code__.co_varnames, *hints.items())
    try:
        known = _checks.get(key)
    except TypeError:  # a hint without a hash
        return _CHECK(function)
    if known is None:
        known = _checks[key] = _CHECK(function)
    return known
