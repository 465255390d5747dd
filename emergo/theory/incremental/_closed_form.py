r"""Closed forms of the stages: levels of the loss, growth rates and escape times.

Derived in `docs/theory.md`.

Group j has $n_j$ positions of strength $m_j$, and $P_j = n_jm_j^2$; group 1 is the first to be
learned; $s_j$ is the attention on one position of group j. K is the number of heads, T the length.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ...core.errors import InputError
from ...tasks import Groups
from .._cells import Numbers
from ._flow import Flow, checked_target, target


def _powers(groups: Groups) -> Float[np.ndarray, " groups"]:
    r"""Return $P_j = \lVert\Delta_j\rVert^2$, which is $n_jm_j^2$ for weights of 1."""
    return np.sum(target(groups) ** 2, 1)


def plateaus(groups: Groups, heads: int) -> Float[np.ndarray, " levels"]:
    r"""Return the loss after 0, 1, 2, ... groups are learned, at most one group per head.

    It is half the sum of $P_j$ over the other groups. A head can represent one rank, and the groups
    with the largest $P_j$ are the best ranks (Eckart and Young).
    """
    delta = checked_target(groups, None, heads)
    if not groups.disjoint:
        raise InputError("plateaus are known for groups that share no position; these overlap")
    powers = np.sort(np.sum(delta**2, 1))[::-1]
    return 0.5 * np.array([powers[k:].sum() for k in range(min(heads, groups.count) + 1)])


def learning_order(groups: Groups) -> tuple[int, ...]:
    """Return the groups in the order in which they are learned: the largest $P_j$ first.

    Groups with equal $P_j$ are ordered by strength.
    """
    powers = _powers(groups)
    ranking = groups.ranking
    return tuple(sorted(ranking, key=lambda j: (-round(powers[j], 12), ranking.index(j))))


def start_rates(
    groups: Groups, length: int, heads: int, flow: Flow = "logit", *, leading: bool = False
) -> tuple[Float[np.ndarray, " groups"], Float[np.ndarray, " groups"]]:
    r"""Return growth rates at uniform attention and values 0, the largest first.

    Let $\mu$ be an eigenvalue of $\Delta(I - 11^\top/T)\Delta^\top$. Differences of heads grow at
    $\lambda = \sqrt{c\mu}$, and their mean at the positive root of $\lambda^2 + \frac KT\lambda =
    c\mu$, where $c$ is $1/T^2$ in the logit flow and $1/T$ in the preconditioned flow.

    **Arguments:**

    - `groups`, `length`, `heads`, `flow`: as in [`emergo.theory.incremental.trajectory`][].
    - `leading`: replace $\mu$ by $P_j$, which drops terms of relative order $n_j/T$.

    **Returns:** rates of differences, and rates of the mean.
    """
    delta = checked_target(groups, length, heads, flow)
    centred = delta - delta.mean(1, keepdims=True)
    mu = _powers(groups) if leading else np.maximum(np.linalg.eigvalsh(centred @ centred.T), 0)
    mu = np.sort(mu)[::-1] / length ** (2 if flow == "logit" else 1)
    damping = heads / length
    return np.sqrt(mu), 0.5 * (np.sqrt(damping**2 + 4 * mu) - damping)


class Cooperation(NamedTuple):
    """The plateau after the first stage, when all heads attend to the first group."""

    # s_j: attention to one position of each group except the first, in the order of learning
    attention: Float[np.ndarray, "groups times"]
    rate: Float[np.ndarray, " times"]  # largest growth rate of differences between heads


def cooperation(
    groups: Groups, length: int, heads: int, times: Numbers, flow: Flow = "logit"
) -> Cooperation:
    r"""Return the attention to groups not yet learned, and the growth rate of differences.

    Valid long after the first stage.

    Leading order in small $s_j$. With $\gamma_j = n_1(P_1 - P_j)/K$ the preconditioned flow has
    $s_j = 1/(\gamma_jt)$ and rate $\max_j\sqrt{P_js_j}$. The logit flow has $s_j =
    \sqrt{n_1/(2T\gamma_jt)}$ and, since what one group gains is taken from the first, the root of
    the largest eigenvalue of $\mathrm{diag}(P_js_j^2) + ww^\top/n_1$ with $w_j = n_jm_js_j$.
    """
    checked_target(groups, length, heads, flow)
    if heads < 2 or groups.count < 2 or not groups.disjoint or groups.weights is not None:
        raise InputError(
            "growth on the plateau is derived for at least 2 heads and at least 2 groups, which "
            "share no position and have no weights"
        )
    order = list(learning_order(groups))
    sizes = np.array(groups.spans, float)[order]
    powers = _powers(groups)[order]
    first = sizes[0]
    gap = powers[0] - powers[1:]
    if not (gap > 1e-9 * powers[0]).all():
        raise InputError(
            "two groups are equally strong, so no plateau has all heads on one of them"
        )
    decay = (first / heads * gap)[:, None]
    times = np.asarray(times, np.float64)
    strong = powers[1:]
    if flow == "preconditioned":
        left = 1 / (decay * times)
        return Cooperation(left, np.sqrt(np.max(strong[:, None] * left, 0)))
    left = np.sqrt(first / (2 * length * decay * times))
    # All entries decay by the same factor, so the eigenvalue is needed for one time only.
    share = np.sqrt(first / (2 * length * decay))[:, 0]
    w = np.sqrt(strong * sizes[1:]) * share
    top = np.linalg.eigvalsh(np.diag(strong * share**2) + np.outer(w, w) / first)[-1]
    return Cooperation(left, np.sqrt(top / times))


def escape_factor(groups: Groups, length: int, heads: int, flow: Flow = "logit") -> float:
    r"""Return C in the time of the second stage, $t \approx C \log^2(1/s)$.

    To leading order in a small initial scale $s$. The growth rate on the plateau is $r/\sqrt t$ in
    both flows, so $s$ grows to $s\,e^{2r\sqrt t}$ and $C = 1/(2r)^2$.
    """
    return float(1 / (2 * cooperation(groups, length, heads, [1.0], flow).rate[0]) ** 2)


def first_stage(groups: Groups, length: int, heads: int, flow: Flow = "logit") -> float:
    r"""Return the time at which all heads learn the first group, to leading order in the length.

    It does not depend on the initial scale. Let $\mu = \sqrt{n_1}\,m_1$. The time is
    $\pi\sqrt{T/2}\,/\mu$ in the preconditioned flow and $T\tau$ in the logit flow, where $\tau$ is
    the [`emergo.theory.incremental.takeoff`][] with damping K. For $K \ll \mu$ this is the plateau
    of zucchet2025.
    """
    checked_target(groups, length, heads, flow)
    mu = float(np.sqrt(_powers(groups).max()))
    if flow == "preconditioned":
        return float(np.pi * np.sqrt(length / 2) / mu)
    return length * takeoff(mu, heads)


def takeoff(signal: float, damping: float) -> float:
    r"""Return the time at which $\dot x = \mu y - \kappa x$, $\dot y = \mu xy^2$ diverges.

    The start is $x = 0$, $y = 1$.
    $\mu$ is the `signal` and $\kappa$ the `damping`. The time is $\sqrt{\pi/2}/\mu$ without damping
    and approaches $\kappa/2\mu^2$ from above for strong damping.
    """
    from scipy.integrate import solve_ivp  # here, because it is slow to import

    # In attention time, du = y dt, nothing diverges: x grows at most linearly and log y
    # quadratically.
    def field(_, state):
        x, log_y, _ = state
        return [signal - damping * x * np.exp(-log_y), signal * x, np.exp(-log_y)]

    # x does not fall below signal/damping, so log y exceeds 40 at the end. The remaining time is
    # below e^-40.
    end = 9 / signal + 40 * damping / signal**2
    return float(
        solve_ivp(field, (0, end), [0.0, 0.0, 0.0], "LSODA", rtol=1e-10, atol=1e-12).y[2, -1]
    )


class StageLoss(NamedTuple):
    """The expected loss above that of the teacher after each stage, learned from finite data."""

    bias: Float[np.ndarray, " stages"]  # from the groups that are not learned yet
    variance: Float[np.ndarray, " stages"]  # from fitting the values; infinite without enough data

    @property
    def best(self) -> int:
        """The number of groups to learn before training should stop."""
        return int(np.argmin(self.bias + self.variance))


def stage_losses(groups: Groups, tokens: int, samples: int, noise: float) -> StageLoss:
    r"""Return bias and variance of the regression after 0, 1, 2, ... groups are learned.

    After k groups, heads attend to these and values are the least-squares fit. Groups that are not
    learned act as further noise, because their tokens are normal and independent.

    **Arguments:**

    - `tokens`: V, the number of features of a token; maps are V × V.
    - `samples`: N, the number of training samples.
    - `noise`: standard deviation of the noise of each output.
    """
    powers = np.sort(_powers(groups))[::-1]
    left = np.array([powers[k:].sum() for k in range(groups.count + 1)])
    fitted = tokens * np.arange(groups.count + 1)
    with np.errstate(divide="ignore"):
        share = np.where(samples > fitted + 1, fitted / np.maximum(samples - fitted - 1, 0), np.inf)
    return StageLoss(tokens / 2 * left, tokens / 2 * (noise**2 + left) * share)
