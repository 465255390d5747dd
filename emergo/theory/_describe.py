"""One cell in numbers: what `emergo theory` prints."""

from typing import Any, Literal

import numpy as np

from .._errors import InputError
from ._cells import cells
from ._closed_form import check_flow, escape_time, predicted_plateau
from ._flow import THRESHOLD, plateau
from ._full import full_plateau
from ._linear import growth_rate

_LARGEST_MODEL = 10_000_000


def describe_cell(
    length: int,
    dim: int,
    burst: int = 1,
    repeat: float = 0.0,
    flow: Literal["reduced", "exact", "full"] = "reduced",
    *,
    threshold: float = THRESHOLD,
    horizon: float | None = None,
) -> dict[str, Any]:
    """The plateau of one cell beside its growth rate and the two formulas.

    **Returns:**

    The cell, and `plateau` (flow time to `threshold` of the initial test loss), `censored`, `rate` (the largest eigenvalue
    of the linearisation at the origin), `predicted` (the closed form) and `escape_linear` (the paper's arcsinh formula at
    ε = 0.8). For the full model the last three are those of the exact flow, which it follows.
    """
    check_flow(flow, ("reduced", "exact", "full"))
    cell = cells(length, dim, burst, repeat)
    if flow == "full":
        if length + dim**2 > _LARGEST_MODEL:
            raise InputError(f"the full model has {length + dim**2} parameters, over {_LARGEST_MODEL}; use --flow exact")
        found, formula = full_plateau(cell, threshold=threshold, horizon=horizon), "exact"
    else:
        found, formula = plateau(cell, flow, threshold=threshold, horizon=horizon), flow
    return {
        "length": int(length),
        "dim": int(dim),
        "burst": int(burst),
        "repeat": float(repeat),
        "flow": flow,
        "threshold": float(threshold),
        "plateau": float(found.time),
        "censored": bool(found.censored),
        "rate": float(growth_rate(cell, formula)),
        "predicted": float(np.asarray(predicted_plateau(cell, formula))),
        "escape_linear": float(escape_time(cell, formula)),
    }
