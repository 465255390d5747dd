"""Where the formulas of docs/theory.md hold: integrated over derived, beyond the tested sizes.

    python -m benchmarks.ranges

It takes about two minutes on one CPU core, most of them for the second stage.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.integrate import solve_ivp

from emergo import theory
from emergo.tasks import Groups
from emergo.theory import incremental

THRESHOLD = 0.2  # share of the initial loss at the end of a plateau
SCALES = np.array([1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
Row = tuple[str, float]


def plateaus() -> Iterator[Row]:
    for length, dim in ((1600, 4), (400, 64), (200, 256), (100, 1024), (50, 4096), (4, 16384)):
        yield f"plateau, T = {length}, d = {dim}", ratio(length, dim)
    for share in (64, 16, 4):
        for flow in ("reduced", "exact"):
            found = ratio(1024, 64, 1024 // share, flow)
            yield f"{flow} flow, T = 1024, d = 64, B = T/{share}", found


def ratio(length: int, dim: int, burst: int = 1, flow: theory.Flow = "reduced") -> float:
    cell = theory.cells(length, dim, burst)
    return float(theory.plateau(cell, flow).time / theory.predicted_plateau(cell, flow))


def biases() -> Iterator[Row]:
    for length in (16, 64, 256, 1024):
        for repeat in (0.5, 0.95):
            cell = theory.cells(length, 64, 1, repeat)
            derived = float(np.squeeze(theory.takeoff_time(cell, bias=True)))
            flow = theory.switched(cell, cell, math.inf, True, horizon=50 * derived)
            found = float(np.squeeze(flow.takeoff)) / derived
            yield f"take-off with a bias, T = {length}, d = 64, p = {repeat:g}", found


def starts() -> Iterator[Row]:
    for alignment in (-3.0, -2.0, -1.0, 4.0):
        for dim in (16, 64, 4096):
            found = from_start(1e5, dim, alignment)
            yield f"start at {alignment:g}, T = 100000, d = {dim}", found


def from_start(length: float, dim: int, alignment: float) -> float:
    """Integrate the reduced flow in attention time; the state is w, the logit and the time."""
    root = math.sqrt(dim)

    def attention(logit: float) -> float:
        return 1 / ((length - 1) * math.exp(-logit) + 1)

    def velocity(_: float, state: np.ndarray) -> list[float]:
        w, logit, _ = state
        a = attention(logit)
        error = (a * w - root) / dim
        noise = (1 - a) * w / dim / (length - 1)
        by_map = (1 - a) * noise + a * error
        by_attention = w * error - w * noise
        return [-by_map / a, -(1 - a) * by_attention, 1 / a]

    def loss(w: float, logit: float) -> float:
        a = attention(logit)
        return (1 - a) ** 2 * w**2 / dim / (length - 1) + (a * w - root) ** 2 / dim

    end = escape(velocity, lambda state: loss(*state[:2]), [alignment, 0.0, 0.0], 1e6)
    cell = theory.cells(int(length), dim)
    return float(end[1][2]) / float(theory.plateau_from(cell, alignment, 0.0))


def linear() -> Iterator[Row]:
    for length, dim in ((32, 16), (10**5, 4), (10**5, 64), (10**5, 1024), (10**7, 4)):
        yield f"linear attention, T = {length}, d = {dim}", of_linear(length, dim)


def of_linear(length: int, dim: int) -> float:
    root = math.sqrt(dim)

    def velocity(_: float, state: np.ndarray) -> list[float]:
        w, relevant, other = state[0], *(1 + state[1:]) / length
        error = (relevant * w - root) / dim
        by_map = w * (length - 1) * other**2 / dim + relevant * error
        return [-by_map, -w * error / length, -other * w**2 / dim / length]

    def loss(state: np.ndarray) -> float:
        w, relevant, other = state[0], *(1 + state[1:]) / length
        return w**2 * (length - 1) * other**2 / dim + (relevant * w - root) ** 2 / dim

    time, _ = escape(velocity, loss, [0.0, 0.0, 0.0], 100 * root * length)
    derived = theory.escape_time(theory.cells(length, dim), epsilon=2 * (1 - THRESHOLD**0.5))
    return time / float(derived)


def escape(
    velocity: Callable[[float, np.ndarray], list[float]],
    loss: Callable[[np.ndarray], float],
    start: list[float],
    until: float,
) -> tuple[float, np.ndarray]:
    """Return when the loss crosses the threshold, and the state there."""

    def left(_: float, state: np.ndarray) -> float:
        return loss(state) - THRESHOLD

    left.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    first = np.array(start)
    solution = solve_ivp(velocity, (0, until), first, "LSODA", events=left, rtol=1e-9, atol=1e-12)
    assert solution.t_events is not None
    assert solution.y_events is not None
    return float(solution.t_events[0][0]), solution.y_events[0][0]


def second_stages() -> Iterator[Row]:
    """Slopes of √t₂ by log(1/s) over the derived ones."""
    for importance, length, until in ((1.7, 3, 1500), (1.1, 3, 1500), (1.7, 20, 12_000)):
        groups = Groups((1, 1, 1), importance)
        times = np.linspace(0.05, until, 3000)
        for flow in ("logit", "preconditioned"):
            scales = np.repeat(SCALES, 2)
            seeds = np.tile([0, 1], len(SCALES))
            path = incremental.trajectory(groups, times, 3, length, flow, scale=scales, seed=seeds)
            second = incremental.stage_times(path, incremental.plateaus(groups, 3))[:, 1]
            slope = float(np.polyfit(-np.log(scales), np.sqrt(second), 1)[0])
            derived = math.sqrt(incremental.escape_factor(groups, length, 3, flow))
            yield f"second stage, m = {importance:g}, T = {length}, {flow} flow", slope / derived


if __name__ == "__main__":
    for find in (plateaus, biases, starts, linear, second_stages):
        for name, found in find():
            print(f"{found:7.3f}  {name}", flush=True)
