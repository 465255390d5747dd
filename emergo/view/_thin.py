"""Thin curves to as many points as a plot can show."""

import numpy as np
from jaxtyping import Float


def thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], points: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return at most `points` points of a curve, without losing a peak or a drop.

    The evaluations between the first and the last are divided into buckets. The smallest and the
    largest value of each bucket are kept, together with the two ends. Half of the bucket edges are
    even in the index and half in its logarithm, because the page shows both kinds of axes.
    Non-finite points are left out.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        x = x[finite]
        y = y[finite]
    if len(x) <= points:
        return x, y
    inner = len(x) - 2
    half = max(1, (points - 2) // 4)
    linear = np.linspace(0, inner, half, endpoint=False)
    logarithmic = np.geomspace(1, inner, half, endpoint=False)
    starts = np.unique(np.concatenate([linear, logarithmic]).astype(int))
    values = y[1:-1]
    bucket = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, inner)))
    kept = [np.array([0, len(x) - 1])]
    for extreme in (np.minimum, np.maximum):
        # The positions of each bucket's extreme value; `unique` keeps the first of equal ones.
        places = np.flatnonzero(values == extreme.reduceat(values, starts)[bucket])
        kept.append(1 + places[np.unique(bucket[places], return_index=True)[1]])
    chosen = np.unique(np.concatenate(kept))
    return x[chosen], y[chosen]


def pack(curves: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Pack curves for the page: their number and lengths (32-bit), then all x, then all y."""
    head = np.array([len(curves), *(len(x) for x, _ in curves)], "<u4")
    parts = [np.asarray(curve[i], "<f4") for i in (0, 1) for curve in curves]
    return b"".join(part.tobytes() for part in (head, *parts))
