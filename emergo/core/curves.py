"""Names of curves and of the columns of their tables. Does not import JAX."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .errors import unknown

INDEX_SUFFIX = re.compile(r"(_\d{1,6})+$")
"""The index at the end of a column that holds one number of a curve, such as `attention_0_1`."""


def curve_columns(curves: Mapping[str, Any], leading: int = 1) -> Iterator[tuple[str, str, Any]]:
    """Yield the columns of curves: a name such as `attention_0_1`, its curve, and its index.

    **Arguments:**

    - `leading`: the number of axes before the index; 1 for curves with an axis of evaluations.
    """
    for name, values in curves.items():
        for index in np.ndindex(np.shape(values)[leading:]):
            yield "_".join([name, *map(str, index)]), name, (..., *index) if index else ...


def find_curve(curves: Mapping[str, Any], name: str, what: str = "curve", leading: int = 1) -> Any:
    """Return a curve by its name, or a column of a curve by the name of the column.

    **Arguments:**

    - `what`: the kind of name, for the error message.
    - `leading`: see `curve_columns`.
    """
    if name in curves:
        return curves[name]
    columns = {column: (curve, index) for column, curve, index in curve_columns(curves, leading)}
    if name not in columns:
        raise unknown(what, name, dict.fromkeys([*curves, *columns]))
    curve, index = columns[name]
    return curves[curve][index]
