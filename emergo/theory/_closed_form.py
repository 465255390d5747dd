r"""Formulas for the plateau: the paper's, from the linearised flow, and ours, which has no logarithm.

All are derived in `docs/theory.md`. With $\kappa$ the speed of the logit (1 in the reduced flow, $1/B$ to leading order in the
exact one) and $Q = \sum_i \sigma_i^2 c_i^2 = p^2 + (1-p^2)/d$, the growth rate at the origin is
$\lambda = \frac{B}{T}\sqrt{\kappa Q}$ to leading order, and

| | plateau |
| --- | --- |
| linearised (A.3.2) | $\operatorname{arcsinh}(\varepsilon\kappa/\lambda) / 2\lambda$ |
| ours | $\sqrt{\pi/2} / \lambda$ |
"""

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._errors import unknown
from ._cells import Cell, Numbers

Flow = Literal["reduced", "exact"]


def check_flow(flow: str, known: tuple[str, ...] = get_args(Flow)) -> None:
    if flow not in known:
        raise unknown("flow", flow, known)


def logit_speed(cell: Cell, flow: Flow, leading: bool = False) -> Any:
    r"""$\kappa$: how fast $\Delta a$ moves per unit of the gradient of the loss in $\Delta a$.

    1 in the reduced flow (Eq. 14). In the model each of the B relevant logits receives 1/B of that gradient and each of
    the others $-1/(T-B)$ of it, so their difference moves at $1/B + 1/(T-B)$; `leading` drops the second term.
    """
    check_flow(flow)
    if flow == "reduced":
        return 1.0
    return 1 / cell.burst if leading else 1 / cell.burst + 1 / (cell.length - cell.burst)


def repeat_factor(repeat: Numbers, dim: Numbers) -> Float[np.ndarray, "..."]:
    r"""$f(p, d) = \sqrt{p^2 d + (1-p)^2}$ (Eq. 22): what cross-sample repetition divides the plateau by."""
    p, d = np.asarray(repeat, np.float64), np.asarray(dim, np.float64)
    return np.asarray(np.sqrt(p**2 * d + (1 - p) ** 2))


def leading_rate(cell: Cell, flow: Flow = "reduced") -> Any:
    r"""$\lambda = \frac{B}{T}\sqrt{\kappa Q}$: the growth rate at the origin to leading order. $Q = p^2 + (1-p^2)/d$."""
    strength = cell.repeat**2 + (1 - cell.repeat**2) / cell.dim
    return cell.burst / cell.length * (logit_speed(cell, flow, leading=True) * strength) ** 0.5


def predicted_plateau(cell: Cell, flow: Flow = "reduced") -> Any:
    r"""The closed form of the plateau, $\sqrt{\pi/2}\,/\,\lambda$, for both kinds of repetition at once.

    While $A \ll 1$ the flow has an invariant, $\Delta a = \kappa Q s^2/2$ in attention time $s$; then
    $t = \frac{T}{B}\int_0^s e^{-\kappa Q u^2/2}\,\mathrm du$, which is finite as $s \to \infty$. Leading order in large
    $\sqrt d\,T/B$. With cross-sample repetition it is the time at which attention takes off; the test loss may lag behind
    it while the directions that are not repeated are learned.
    """
    return (np.pi / 2) ** 0.5 / leading_rate(cell, flow)


def escape_time(cell: Cell, flow: Flow = "reduced", epsilon: float = 0.8) -> Float[np.ndarray, "*cells"]:
    r"""The paper's escape time (A.3.2): when the *linearised* flow has lost a share `epsilon` of its training loss.

    $\frac{1}{2\lambda}\operatorname{arcsinh}(\varepsilon\kappa/\lambda)$, exact in the arcsinh. For the reduced flow without
    cross-sample repetition this is $\frac{\sqrt d\,T}{2B}\operatorname{arcsinh}\frac{\varepsilon\sqrt d\,T}{B}$.
    """
    rate, speed = np.asarray(leading_rate(cell, flow)), logit_speed(cell, flow, leading=True)
    return np.asarray(np.arcsinh(epsilon * speed / rate) / (2 * rate))
