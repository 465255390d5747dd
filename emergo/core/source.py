"""Digests of the source code of a user's classes and functions.

The identity of a run does not cover code, so that a comment or a faster implementation does not
train runs again. A digest of the code is kept with each run instead, and a study warns when it
returns runs that other code has trained.

A digest covers statements without comments, docstrings and formatting, and the functions, classes
and plain constants of the same module that the code names.
"""

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from .errors import InputError
from .identity import type_name

_PLAIN = (bool, int, float, str, tuple, frozenset, type(None))


@functools.cache
def source_digests(subject: Any) -> tuple[tuple[str, str], ...]:
    """Return the digest of each part of a class or function, by names such as `mine:Task.batch`.

    Classes also have the parts of their bases. Code of installed packages and code of unknown
    source, such as an interactive session, is left out.
    """
    named = []
    for kind in subject.__mro__ if isinstance(subject, type) else [subject]:
        try:
            name = type_name(kind)
            nodes = list(_parts(kind)) if _of_user(kind) else []
        except (InputError, OSError, TypeError, SyntaxError, AttributeError):
            continue
        for part, text in nodes:
            full = f"{name}.{part}" if part else name
            named.append((full, hashlib.sha256(text.encode()).hexdigest()[:12]))
    return tuple(named)


def _of_user(subject: Any) -> bool:
    root = subject.__module__.partition(".")[0]
    if root in ("emergo", "builtins", *sys.stdlib_module_names - {"__main__"}):
        return False
    return "site-packages" not in inspect.getfile(subject)


def _parts(subject: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each member of a class, or of a function as a whole."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(subject))).body
    used = _used(subject, {subject})
    if not isinstance(node, ast.ClassDef):
        yield "", _code(node) + used
        return
    for member in node.body:
        name = getattr(member, "name", "")
        if not name and not isinstance(member, ast.Expr):
            targets = member.targets if isinstance(member, ast.Assign) else [member]
            name = ast.unparse(getattr(targets[0], "target", targets[0]))
        if name:
            yield name, _code(member) + _used(vars(subject).get(name), {subject})


def _code(node: ast.AST) -> str:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner, False):
            inner.body = inner.body[1:] or [ast.Pass()]
    return ast.unparse(node)


def _used(member: Any, seen: set[Any]) -> str:
    """Return the code of what a function names in its own module, and of what that names."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    function = inspect.unwrap(member) if callable(member) else None
    if not isinstance(function, FunctionType):
        return ""
    parts = []
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, _PLAIN):
            parts.append(f"{name}={value!r}" if name in function.__globals__ else "")
        elif getattr(value, "__module__", None) == function.__module__ and value not in seen:
            seen.add(value)
            parts += [text for _, text in _parts(value)]
    return "\n".join(["", *parts])


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
