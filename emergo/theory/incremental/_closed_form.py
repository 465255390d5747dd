r"""Closed forms of the stages: levels of the loss, growth rates, and the time of escape. Derived in
`docs/theory.md`.

Group j has $n_j$ positions of strength $m_j$, and $P_j = n_jm_j^2$; group 1 is the first to be
learned; $s_j$ is the attention on one position of group j. There are K heads and T positions.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ...core.errors import InputError
from ...tasks import Groups
from .._cells import Numbers
from ._flow import Flow, checked_target, target


def _powers(groups: Groups) -> Float[np.ndarray, " groups"]:
    r"""$P_j = \lVert\Delta_j\rVert^2$, which is $n_jm_j^2$ where weights are 1."""
    return np.sum(target(groups) ** 2, 1)


def plateaus(groups: Groups, heads: int) -> Float[np.ndarray, " levels"]:
    r"""The loss when none, one, two, ... groups are learned, as many as there are heads: half the
    sum of $P_j$ over the others. A head holds one rank, and the best ranks are the groups with the
    largest $P_j$ (Eckart and Young)."""
    delta = checked_target(groups, None, heads)
    if not groups.disjoint:
        raise InputError("plateaus are known for groups that share no position; these overlap")
    powers = np.sort(np.sum(delta**2, 1))[::-1]
    return 0.5 * np.array([powers[k:].sum() for k in range(min(heads, groups.count) + 1)])


def learning_order(groups: Groups) -> tuple[int, ...]:
    """The groups in the order in which they are learned: by $P_j$, the largest first, of equal ones
    the strongest."""
    powers = _powers(groups)
    ranking = groups.ranking
    return tuple(sorted(ranking, key=lambda j: (-round(powers[j], 12), ranking.index(j))))


def start_rates(
    groups: Groups, length: int, heads: int, flow: Flow = "logit", *, leading: bool = False
) -> tuple[Float[np.ndarray, " groups"], Float[np.ndarray, " groups"]]:
    r"""Growth rates of differences of heads and of what they have in common, at uniform attention
    and values 0: eigenvalues of the linearised flow, the largest first.

    With $\mu$ an eigenvalue of $\Delta(I - 11^\top/T)\Delta^\top$, differences of heads grow at
    $\lambda = \sqrt{c\mu}$ and what they have in common at the positive root of $\lambda^2 + \frac
    KT\lambda = c\mu$; $c$ is $1/T^2$ in the logit flow and $1/T$ in the preconditioned one.
    `leading` replaces $\mu$ by $P_j$, which drops terms of relative order $n_j/T$.
    """
    delta = checked_target(groups, length, heads, flow)
    centred = delta - delta.mean(1, keepdims=True)
    mu = _powers(groups) if leading else np.maximum(np.linalg.eigvalsh(centred @ centred.T), 0)
    mu = np.sort(mu)[::-1] / length ** (2 if flow == "logit" else 1)
    damping = heads / length
    return np.sqrt(mu), 0.5 * (np.sqrt(damping**2 + 4 * mu) - damping)


class Cooperation(NamedTuple):
    """The plateau after the first stage: all heads are on the first group, and their differences
    grow."""

    attention: Float[
        np.ndarray, "groups times"
    ]  # s_j, on one position of each group but the first, in the order of learning
    rate: Float[
        np.ndarray, " times"
    ]  # at which differences between heads grow: the largest of all groups together


def cooperation(
    groups: Groups, length: int, heads: int, times: Numbers, flow: Flow = "logit"
) -> Cooperation:
    r"""Attention left on the groups not yet learned and the growth of differences, long after the
    first stage.

    Leading order in small $s_j$. With $\gamma_j = n_1(P_1 - P_j)/K$ the preconditioned flow has
    $s_j = 1/(\gamma_jt)$ and rate $\max_j\sqrt{P_js_j}$. The logit flow has $s_j =
    \sqrt{n_1/(2T\gamma_jt)}$ and, since what one group gains is taken from the first, the root of
    the largest eigenvalue of $\mathrm{diag}(P_js_j^2) + ww^\top/n_1$ with $w_j = n_jm_js_j$.
    """
    checked_target(groups, length, heads, flow)
    if heads < 2:
        raise InputError("with one head there are no differences to grow; heads must be at least 2")
    if not groups.disjoint or groups.weights is not None:
        raise InputError(
            "growth on the plateau is derived for groups that share no position and have no weights"
        )
    if groups.count < 2:
        raise InputError("with one group there is no second stage; spans must have at least 2")
    order = list(learning_order(groups))
    sizes = np.array(groups.spans, float)[order]
    powers = _powers(groups)[order]
    first = sizes[0]
    gap = powers[0] - powers[1:]
    if not (gap > 1e-9 * powers[0]).all():
        raise InputError(
            "two groups are as strong as each other: there is no plateau with all heads on one "
            "of them"
        )
    decay = (first / heads * gap)[:, None]
    times = np.asarray(times, np.float64)
    strong = powers[1:]
    if flow == "preconditioned":
        left = 1 / (decay * times)
        return Cooperation(left, np.sqrt(np.max(strong[:, None] * left, 0)))
    left = np.sqrt(first / (2 * length * decay * times))
    # All entries fall alike with time, so that one matrix serves all times.
    share = np.sqrt(first / (2 * length * decay))[:, 0]
    w = np.sqrt(strong * sizes[1:]) * share
    top = np.linalg.eigvalsh(np.diag(strong * share**2) + np.outer(w, w) / first)[-1]
    return Cooperation(left, np.sqrt(top / times))


def escape_factor(groups: Groups, length: int, heads: int, flow: Flow = "logit") -> float:
    r"""C in the time of the second stage, $t \approx C \log^2(1/s)$ for a small initial scale $s$,
    to leading order. The growth rate on the plateau is $r/\sqrt t$ in both flows, so that $s$ grows
    to $s\,e^{2r\sqrt t}$ and $C = 1/(2r)^2$."""
    return float(1 / (2 * cooperation(groups, length, heads, [1.0], flow).rate[0]) ** 2)


def first_stage(groups: Groups, length: int, heads: int, flow: Flow = "logit") -> float:
    r"""The time at which all heads find the first group, to leading order in a large length. The
    initial scale is not in it. With $\mu = \sqrt{n_1}\,m_1$ it is $\pi\sqrt{T/2}\,/\mu$ in the
    preconditioned flow. In the logit flow it is $T\tau$, where $\tau$ is the
    [`emergo.theory.incremental.takeoff`][] with damping K; $K \ll \mu$ is the plateau of
    zucchet2025."""
    checked_target(groups, length, heads, flow)
    mu = float(np.sqrt(_powers(groups).max()))
    if flow == "preconditioned":
        return float(np.pi * np.sqrt(length / 2) / mu)
    return length * takeoff(mu, heads)


def takeoff(signal: float, damping: float) -> float:
    r"""The time at which $\dot x = \mu y - \kappa x$, $\dot y = \mu xy^2$ from $(0, 1)$ reaches
    infinity: $\mu$ the `signal`, $\kappa$ the `damping`. Between $\sqrt{\pi/2}/\mu$ (no damping)
    and, for much of it, $\kappa/2\mu^2$, which it exceeds."""
    from scipy.integrate import solve_ivp  # slow to import

    if not (signal > 0 and damping >= 0):
        raise InputError(
            f"signal must be positive and damping not negative, got {signal!r} and {damping!r}"
        )

    # In attention time, du = y dt, nothing diverges: x grows at most linearly and log y
    # quadratically.
    def field(_, state):
        x, log_y, _ = state
        return [signal - damping * x * np.exp(-log_y), signal * x, np.exp(-log_y)]

    # x falls to signal/damping at most, so that log y has passed 40 by the end, and the rest of the
    # time is below e^-40.
    end = 9 / signal + 40 * damping / signal**2
    return float(
        solve_ivp(field, (0, end), [0.0, 0.0, 0.0], "LSODA", rtol=1e-10, atol=1e-12).y[2, -1]
    )
