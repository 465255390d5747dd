"""Curves with as many points as a plot can show."""

import numpy as np
from jaxtyping import Float


def thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], points: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """At most `points` of a curve: its first and last evaluation, and the smallest and largest value of every bucket between,
    so that no peak and no drop is lost. Half of the buckets are even in the evaluations and half in their logarithm, since the
    page shows both. Evaluations that are not finite are left out."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        x, y = x[finite], y[finite]
    if len(x) <= points:
        return x, y
    inner, half = len(x) - 2, max(1, (points - 2) // 4)
    edges = np.concatenate([np.linspace(0, inner, half, endpoint=False), np.geomspace(1, inner, half, endpoint=False)])
    starts = np.unique(edges.astype(int))
    values, sizes = y[1:-1], np.diff(np.append(starts, inner))
    bucket = np.repeat(np.arange(len(starts)), sizes)
    kept = [np.array([0, len(x) - 1])]
    for extreme in (np.minimum, np.maximum):
        places = np.flatnonzero(values == extreme.reduceat(values, starts)[bucket])
        kept.append(1 + places[np.unique(bucket[places], return_index=True)[1]])
    chosen = np.unique(np.concatenate(kept))
    return x[chosen], y[chosen]


def pack(curves: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Curves as the page reads them: how many there are, their lengths (32-bit), then all x and all y (32-bit floats)."""
    lengths = [len(x) for x, _ in curves]
    head = np.array([len(curves), *lengths], "<u4").tobytes()
    return head + b"".join(np.asarray(part, "<f4").tobytes() for i in (0, 1) for part in (curve[i] for curve in curves))
