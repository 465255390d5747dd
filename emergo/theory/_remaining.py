r"""How much of a plateau is left, from what can be measured in the middle of it (`docs/theory.md`).

While attention is small, with $g = \frac{d}{dt}\log A$ its growth rate and $\lambda = A\sqrt{\kappa
Q}$ the local rate, the time left is $R(g/\lambda)/\lambda$ for every state of the flow, $R$ being
the Mills ratio. $\lambda$ is the *coupling* of values and attention, not the most negative
curvature: that is $\mu = \frac12(g + \sqrt{g^2 + 4\lambda^2})$, and equal to it only at the start,
where nothing grows yet.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.errors import InputError
from ._cells import Cell, Numbers, checked_numbers
from ._closed_form import Flow, logit_speed, mills_ratio
from ._flow import field
from ._reduced import State, hessian, relevant_attention

Rates = Float[np.ndarray, "..."]


def remaining_time(growth: Numbers, rate: Numbers) -> Rates:
    r"""$R(g/\lambda)/\lambda$: the time until attention takes off. Leading order in small attention
    and large $\sqrt d$; the drop of the loss itself, of order d, comes after it.

    - `growth`: g, the growth rate of attention, $\frac{d}{dt}\log A$.
    - `rate`: $\lambda$, the local rate, from [`emergo.theory.local_rate`][] or
      [`emergo.theory.local_rate_from_growth`][].
    """
    rates = checked_numbers(
        "rate", rate, "positive", lambda x: ~(x <= 0)
    )  # what is not known, nan, stays so
    return np.asarray(mills_ratio(np.asarray(growth, np.float64) / rates) / rates)


def local_rate(growth: Numbers, curvature: Numbers) -> Rates:
    r"""$\lambda = \sqrt{\mu(\mu - g)}$ from $\mu$, minus the most negative `curvature` of the loss
    (of the flow: its largest growth rate). Curvature that is no larger than the growth of attention
    says nothing of a coupling: `nan`."""
    g = np.asarray(growth, np.float64)
    mu = np.asarray(curvature, np.float64)
    square = mu * (mu - g)
    return np.asarray(np.sqrt(np.where((mu > 0) & (square > 0), square, np.nan)))


def local_rate_from_growth(growth: Numbers, change: Numbers) -> Rates:
    r"""$\lambda = \sqrt{\dot g - g^2}$ from the growth rate of attention and its `change` $\dot g$:
    of attention alone, from three moments of a run instead of two and a curvature. `nan` where
    growth does not speed up as it does on a plateau."""
    square = np.asarray(change, np.float64) - np.asarray(growth, np.float64) ** 2
    return np.asarray(np.sqrt(np.where(square > 0, square, np.nan)))


class Local(NamedTuple):
    """What a state of the flow shows of the time left."""

    growth: Float[Array, "..."]  # g, d log A / dt
    curvature: Float[Array, "..."]  # mu, the largest growth rate of the linearised flow


def local(state: State, cell: Cell, flow: Flow = "reduced") -> Local:
    """The growth of attention and the most negative curvature at a state of the reduced or exact
    flow, all terms kept."""
    if state.shape[-1] not in (2, 3):
        raise InputError(
            f"a state has 2 or 3 entries (weights, then the logit), got {state.shape[-1]}"
        )
    speed = jnp.broadcast_to(jnp.asarray(logit_speed(cell, flow)), state.shape[:-1])
    growth = (1 - relevant_attention(state[..., -1], cell)) * field(state, cell, speed)[..., -1]
    # With the root of its speed for a unit of the logit, the flow is a gradient flow and its matrix
    # symmetric.
    scale = jnp.ones_like(state).at[..., -1].set(jnp.sqrt(speed))
    matrix = -hessian(state, cell) * scale[..., None] * scale[..., None, :]
    return Local(growth, jnp.linalg.eigvalsh(matrix)[..., -1])
