"""Time plateaus of many cells in one compiled call, against a loop over SciPy's solver.

    python -m benchmarks.flows

Both solve the same equations at the same tolerance.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy.integrate import solve_ivp

from emergo import theory
from emergo.theory import ATOL, RTOL


def scipy_plateau(
    length: float, dim: float, burst: float, repeat: float, rtol: float = RTOL, atol: float = ATOL
) -> float:
    """One cell of the reduced flow the plain way: Eqs. 18-21 in NumPy scalars, SciPy's RK45, an
    event at the threshold. Written on its own, so that it is also an oracle for
    [`emergo.theory.plateau`][]."""
    rare = (1 - repeat) / dim
    common = repeat + rare
    root = np.sqrt(dim - 1)
    noise = 1 / (dim * (length - burst))

    def attention(logit):
        return burst / ((length - burst) * np.exp(-logit) + burst)

    def velocity(_, y):
        w1, w2, logit = y
        A = attention(logit)
        e1 = common * (A * w1 - 1)
        e2 = rare * (A * w2 - root)
        decay = noise * (1 - A) ** 2
        pull = -noise * (1 - A) * (w1**2 + w2**2) + w1 * e1 + w2 * e2
        return [-decay * w1 - A * e1, -decay * w2 - A * e2, -A * (1 - A) * pull]

    def threshold(_, y):
        w1, w2, logit = y
        A = attention(logit)
        left = (
            noise * (1 - A) ** 2 * (w1**2 + w2**2)
            + ((A * w1 - 1) ** 2 + (A * w2 - root) ** 2) / dim
        )
        return left - theory.THRESHOLD

    setattr(threshold, "terminal", True)  # noqa: B010 - how SciPy is told to stop there
    horizon = 100 * float(theory.predicted_plateau(theory.cells(length, dim, burst, repeat)) + dim)
    solution = solve_ivp(
        velocity, (0, horizon), [0, 0, 0], method="RK45", rtol=rtol, atol=atol, events=threshold
    )
    assert solution.t_events is not None
    return float(solution.t_events[0][0]) if len(solution.t_events[0]) else float("nan")


def random_cells(count: int, seed: int = 0) -> theory.Cell:
    """Cells spread evenly over the logarithms of length (64 to 8192) and dim (4 to 1024), burst 1
    to 16, repeat 0 to 0.5."""
    rng = np.random.default_rng(seed)
    length = np.round(np.exp(rng.uniform(np.log(64), np.log(8192), count)))
    dim = np.round(np.exp(rng.uniform(np.log(4), np.log(1024), count)))
    return theory.cells(length, dim, 2.0 ** rng.integers(0, 5, count), rng.uniform(0, 0.5, count))


def median_seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """How long a call takes until its arrays are there: the median of some calls."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def bench_flows(count: int = 1000, repeats: int = 5) -> dict[str, Any]:
    """Times `count` cells both ways in one run: seconds of both (ours: the median of `repeats` warm
    calls; SciPy: one pass), their ratio, our compilation time and the largest relative difference
    of the plateaus."""
    cell = random_cells(count)
    theirs = []
    first, *warm = (median_seconds(lambda: theory.plateau(cell).time) for _ in range(1 + repeats))
    scipy = median_seconds(
        lambda: theirs.extend(scipy_plateau(*map(float, c)) for c in zip(*cell, strict=True))
    )
    ours = statistics.median(warm)
    difference = float(np.max(np.abs(theory.plateau(cell).time / theirs - 1)))
    report = {"name": "flows", "cells": count, "rtol": RTOL, "atol": ATOL, "seconds": ours}
    report |= {
        "seconds_spread": [min(warm), max(warm)],
        "compile_seconds": first - ours,
        "scipy_seconds": scipy,
    }
    return report | {"ratio": scipy / ours, "largest_relative_difference": difference}


if __name__ == "__main__":
    print(bench_flows())
