r"""The flow around the origin: its linearisation (Eqs. 5, 15 and A.4.2), growth rate and solution."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._cells import Cell, Numbers
from ._closed_form import Flow, leading_rate, logit_speed
from ._precision import float64
from ._reduced import directions


class Linearisation(NamedTuple):
    r"""$\dot y = \text{drift} + \text{matrix}\; y$ for $y = (\tilde w, w, \Delta a)$ near the origin."""

    drift: Float[np.ndarray, "*cells 3"]
    matrix: Float[np.ndarray, "*cells 3 3"]


def linearise(cell: Cell, flow: Flow = "reduced") -> Linearisation:
    """The velocity and its Jacobian at the origin, with all terms kept: the 3 by 3 system of A.4.2, for any burst and flow."""
    T, d, B, p = (np.asarray(a, np.float64) for a in cell)
    A = B / T
    with float64():
        sigma, target = (np.asarray(x) for x in directions(Cell(T, d, B, p), 2))
    pull = A[..., None] * sigma * target
    decay = (1 - A) ** 2 / (d * (T - B))
    matrix = np.zeros((*A.shape, 3, 3))
    for i in range(2):
        matrix[..., i, i] = -decay - A**2 * sigma[..., i]
        matrix[..., i, 2] = (1 - A) * pull[..., i]
        matrix[..., 2, i] = logit_speed(Cell(T, d, B, p), flow) * (1 - A) * pull[..., i]
    return Linearisation(np.concatenate([pull, np.zeros_like(pull[..., :1])], -1), matrix)


def growth_rate(cell: Cell, flow: Flow = "reduced") -> Float[np.ndarray, "*cells"]:
    r"""The largest eigenvalue of the linearisation at the origin. To leading order $\frac{B}{T}\sqrt{\kappa Q}$."""
    matrix = linearise(cell, flow).matrix.copy()
    # Scaling the logit by the root of its speed makes the matrix symmetric.
    across = np.sqrt(matrix[..., :2, 2] * matrix[..., 2, :2])
    matrix[..., :2, 2] = matrix[..., 2, :2] = across
    return np.asarray(np.linalg.eigvalsh(matrix)[..., -1])


class LinearSolution(NamedTuple):
    r"""The solution of Eq. 15 at the given times: $w = \sinh(\lambda t)$, $\Delta a = \cosh(\lambda t) - 1$."""

    weight: Float[np.ndarray, "*cells times"]
    logit: Float[np.ndarray, "*cells times"]
    loss: Float[np.ndarray, "*cells times"]


def linear_solution(cell: Cell, times: Numbers) -> LinearSolution:
    r"""The linearised reduced flow without cross-sample repetition (A.3.2). Loss: $\frac12(1 - \lambda\sinh 2\lambda t)$."""
    without = cell._replace(repeat=np.zeros_like(np.asarray(cell.repeat)))
    rate = np.asarray(leading_rate(without, "reduced"))[..., None]
    x = rate * np.asarray(times, np.float64)
    return LinearSolution(np.sinh(x), np.cosh(x) - 1, 0.5 * (1 - rate * np.sinh(2 * x)))
