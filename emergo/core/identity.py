"""Names of types, and the plain data whose hash identifies a run.

A field that has its default value is left out. So a new field with a default leaves the identities
of earlier runs unchanged. In turn, if a default changes, or a field gets another meaning, raise the
`version` of the class. Types are part of the data, so that two classes with equal fields differ.
"""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError
from .pytree import Pytree, changed_fields


def type_name(kind: Any) -> str:
    """Return the name of a class or function in files: `Name` in emergo, else `module:Name`.

    A script's main module gets the name of its file, as if it had been imported.
    """
    name = getattr(kind, "__qualname__", "<object>")
    module = kind.__module__
    if module.partition(".")[0] == "emergo" and name[0] != "<":
        return name
    if "<" in name:
        raise InputError(
            f"{kind!r} cannot be found again by its name; define a function or class at the top "
            f"level of a module"
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    return f"{module}:{name}"


def canonical(value: Any) -> Any:
    """Convert a value to plain data, with types and versions, without fields at their defaults.

    Equal values give equal data.
    """
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
        return value + 0.0  # turns -0.0 into 0.0
    if callable(value):
        version = getattr(value, "version", 1)
        return {"type": type_name(value)} | ({} if version == 1 else {"version": version})
    raise InputError(
        f"{value!r} cannot be part of a run; use numbers, texts, tuples and dataclasses"
    )
