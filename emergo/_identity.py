"""Names of types, and the plain data that the identity of a run is a hash of.

The rule, for whoever adds a field: **a field that has its default is left out**. So a new field with a default leaves the
identities of earlier runs as they are. In turn a default that changes, or a field that comes to mean something else, asks for a
higher `version` of its class. Types are part of it, so that two classes with equal fields are two things.
"""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import InputError
from ._pytree import Pytree, changed_fields


def type_name(kind: Any) -> str:
    """The name of a class or function in files: `Name` for ours, `module:Name` for others'.

    A script's own module is named after its file, as if it had been imported.
    """
    name = getattr(kind, "__qualname__", None)
    if name is None:
        raise InputError(f"{kind!r} has no name to be found again by; define a function or class at the top level of a module")
    module = kind.__module__
    if module == "emergo" or module.startswith("emergo."):
        return name
    if "<" in name:
        raise InputError(f"{module}:{name} cannot be found again by its name; define it at the top level of a module")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    return f"{module}:{name}"


def canonical(value: Any) -> Any:
    """Plain data that is equal for equal values: fields with their defaults are left out, types and versions are named."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named: dict[str, Any] = {"type": type_name(type(value))}
        version = getattr(value, "version", 1)
        if version != 1:
            named["version"] = version
        fields = value.identifying() if isinstance(value, Pytree) else changed_fields(value)
        return named | {name: canonical(field) for name, field in fields.items()}
    if isinstance(value, tuple | list):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): canonical(item) for name, item in value.items()}
    if isinstance(value, np.generic):
        return canonical(value.item())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value + 0.0  # -0.0 is 0.0
    if callable(value):
        version = getattr(value, "version", 1)
        return {"type": type_name(value)} | ({} if version == 1 else {"version": version})
    raise InputError(f"{value!r} cannot be part of a run; use numbers, texts, tuples and dataclasses")
