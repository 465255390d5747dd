r"""Closed forms of the flow around the origin and of the plateau, derived in `docs/theory.md`.

$\kappa$ is the speed of the logit: 1 in the reduced flow, $1/B$ to leading order in the exact flow.
$Q = \sum_i \sigma_i^2 c_i^2 = p^2 + (1-p^2)/d$.
"""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from ..core.errors import unknown
from ._cells import Cell, Numbers
from ._reduced import directions, float64

Flow = Literal["reduced", "exact"]


def check_flow(flow: str, known: tuple[str, ...] = get_args(Flow)) -> None:
    if flow not in known:
        raise unknown("flow", flow, known)


def logit_speed(cell: Cell, flow: Flow, leading: bool = False) -> Any:
    r"""Return $\kappa$, the velocity of $\Delta a$ per unit of the gradient in $\Delta a$.

    It is 1 in the reduced flow (Eq. 14). In the model each of the B relevant logits receives 1/B of
    the gradient, and each other logit $-1/(T-B)$. So their difference moves at $1/B + 1/(T-B)$;
    `leading` drops the second term.
    """
    check_flow(flow)
    if flow == "reduced":
        return 1.0
    return 1 / cell.burst if leading else 1 / cell.burst + 1 / (cell.length - cell.burst)


def repeat_factor(repeat: Numbers, dim: Numbers) -> Float[np.ndarray, "..."]:
    r"""Return $f(p, d) = \sqrt{p^2 d + (1-p)^2}$ (Eq. 22).

    Cross-sample repetition divides the plateau by this factor.
    """
    p = np.asarray(repeat, np.float64)
    d = np.asarray(dim, np.float64)
    return np.asarray(np.sqrt(p**2 * d + (1 - p) ** 2))


def strength(repeat: Any, dim: Any, bias: bool = False) -> Any:
    r"""Return $Q = \sum_i \sigma_i^2 c_i^2 = p^2 + (1-p^2)/d$, the strength of attention's pull.

    A `bias` learns the mean of the repeated token. The repeated direction then counts with its
    variance, and $Q = (1-p)^2(p^2 + 2p/d + 1/d)$.
    """
    if bias:
        return (1 - repeat) ** 2 * (repeat**2 + (2 * repeat + 1) / dim)
    return repeat**2 + (1 - repeat**2) / dim


def leading_rate(cell: Cell, flow: Flow = "reduced") -> Any:
    r"""Return the growth rate at the origin to leading order, $\frac{B}{T}\sqrt{\kappa Q}$."""
    pull = strength(cell.repeat, cell.dim)
    return cell.burst / cell.length * (logit_speed(cell, flow, leading=True) * pull) ** 0.5


def predicted_plateau(cell: Cell, flow: Flow = "reduced") -> Any:
    r"""Return the closed form of the plateau, $\sqrt{\pi/2}\,/\,\lambda$.

    It holds for both kinds of repetition, to leading order in large $\sqrt d\,T/B$. With
    cross-sample repetition it is the time at which attention takes off. The test loss may fall
    later, when the directions that are not repeated are learned.
    """
    return (np.pi / 2) ** 0.5 / leading_rate(cell, flow)


def mills_ratio(x: Numbers) -> Float[np.ndarray, "..."]:
    r"""Return the Mills ratio $R(x) = e^{x^2/2}\int_x^\infty e^{-u^2/2}\,du$.

    It is $\sqrt{\pi/2}$ at 0 and about $1/x$ for large $x$.
    """
    from scipy.special import erfcx  # here, because it is slow to import

    return np.asarray((np.pi / 2) ** 0.5 * erfcx(np.asarray(x, np.float64) / 2**0.5))


def plateau_from(
    cell: Cell, alignment: Numbers, logit: Numbers = 0.0, flow: Flow = "reduced"
) -> Float[np.ndarray, "*cells"]:
    r"""Return the plateau from a start other than the origin, $e^{-\Delta a_0} R(x_0)/\lambda$.

    $R$ is the Mills ratio. The order is that of [`emergo.theory.predicted_plateau`][]. Without
    repetition it is $\sqrt d\,T\,e^{-\Delta a_0} R(x_0)$.

    **Arguments:**

    - `cell`, `flow`: the sizes, and the reduced or exact flow.
    - `alignment`: the projection of the initial W on W*, divided by the norm of W*, which is
      $\sqrt d$. $x_0$ is $\sqrt{\kappa/(dQ)}$ times the alignment, which equals it without
      repetition.
    - `logit`: $\Delta a_0$, the initial logit of the relevant tokens minus that of the others.
    """
    rate = leading_rate(cell, flow)
    root = rate * cell.length / cell.burst  # sqrt(kappa Q)
    speed = logit_speed(cell, flow, leading=True)
    x = np.asarray(alignment, np.float64) * speed / (np.sqrt(cell.dim) * root)
    return np.asarray(mills_ratio(x) * np.exp(-np.asarray(logit, np.float64)) / rate)


def escape_time(
    cell: Cell, flow: Flow = "reduced", epsilon: float = 0.8
) -> Float[np.ndarray, "*cells"]:
    r"""Return the paper's escape time (A.3.2).

    At this time the *linearised* flow has lost a share `epsilon` of its training loss. It is
    $\operatorname{arcsinh}(\varepsilon\kappa/\lambda)/2\lambda$; for the reduced flow without
    cross-sample repetition $\frac{\sqrt d\,T}{2B}\operatorname{arcsinh}\frac{\varepsilon\sqrt
    d\,T}{B}$.
    """
    rate = np.asarray(leading_rate(cell, flow))
    speed = logit_speed(cell, flow, leading=True)
    return np.asarray(np.arcsinh(epsilon * speed / rate) / (2 * rate))


def growth_rate(cell: Cell, flow: Flow = "reduced") -> Float[np.ndarray, "*cells"]:
    r"""Return the largest eigenvalue of the flow linearised at the origin.

    This is the 3 by 3 system of A.4.2 for any burst and flow, with all terms. To leading order the
    rate is $\frac{B}{T}\sqrt{\kappa Q}$.
    """
    cell = Cell(*(np.asarray(a, np.float64) for a in cell))
    T, d, B, _ = cell
    A = B / T
    with float64():
        sigma, target = (np.asarray(x) for x in directions(cell, 2))
    decay = (1 - A) ** 2 / (d * (T - B))
    matrix = np.zeros((*A.shape, 3, 3))
    for i in range(2):
        matrix[..., i, i] = -decay - A**2 * sigma[..., i]
        pull = A * sigma[..., i] * target[..., i]
        # Scaling the logit by the square root of its speed makes the matrix symmetric.
        product = (1 - A) * pull * (logit_speed(cell, flow) * (1 - A) * pull)
        matrix[..., i, 2] = matrix[..., 2, i] = np.sqrt(product)
    return np.asarray(np.linalg.eigvalsh(matrix)[..., -1])


class LinearSolution(NamedTuple):
    r"""The solution of Eq. 15: $w = \sinh(\lambda t)$, $\Delta a = \cosh(\lambda t) - 1$."""

    weight: Float[np.ndarray, "*cells times"]
    logit: Float[np.ndarray, "*cells times"]
    loss: Float[np.ndarray, "*cells times"]


def linear_solution(cell: Cell, times: Numbers) -> LinearSolution:
    r"""Return the linearised reduced flow without cross-sample repetition (A.3.2).

    Its loss is $\frac12(1 - \lambda\sinh 2\lambda t)$.
    """
    unrepeated = cell._replace(repeat=np.zeros_like(np.asarray(cell.repeat)))
    rate = np.asarray(leading_rate(unrepeated))[..., None]
    x = rate * np.asarray(times, np.float64)
    return LinearSolution(np.sinh(x), np.cosh(x) - 1, 0.5 * (1 - rate * np.sinh(2 * x)))
