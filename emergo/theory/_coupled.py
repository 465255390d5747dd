r"""Attentions that multiply: $y = W \sum_t \prod_i \alpha^i_{t_i} x_t$ with $n$ attentions.

Tokens stand on a grid of $T_1 \times \dots \times T_n$ positions. Attention $i$ selects along axis
$i$, and the target is $W^* x$ of one position. From uniform attention and $W = 0$ the state is $(v,
u, \Delta a_1, \dots, \Delta a_n)$: the weight, the weight of a separate signal for the first
attention, and the logit differences. With $A_i$ the attention to the right position of axis $i$, $A
= \prod A_i$ and $S = \prod (A_i^2 + (1-A_i)^2/(T_i-1))$,

$$L = \tfrac12\Big(\frac{(S - A^2)\,v^2}{d} + \frac{(Av - \sqrt d)^2}{d}\Big)
    + \frac g2\Big(\frac{(1-A_1)^2u^2}{d(T_1-1)} + \frac{(A_1u - \sqrt d)^2}{d}\Big).$$

`own` is $g$, the weight of a loss that depends on the first attention alone. With $n = 1$ and $g =
0$ this is Eq. 12 of zucchet2025. Derived in `docs/theory.md`.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.errors import InputError
from ._cells import Numbers, Scalars, checked_numbers
from ._flow import COMPILER, THRESHOLD, Plateau, call_in_float64, escape
from ._reduced import State

Lengths = Sequence[Numbers]
"""For each attention a number, or an array of cells."""


def attentions(state: State, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""Return $A_i$, the attention to the right position of each axis."""
    return jax.nn.sigmoid(state[2:] - jnp.log(lengths - 1))


def coupled_loss(
    state: State, lengths: Float[Array, " n"], dim: Scalars, own: Scalars = 0.0
) -> Float[Array, ""]:
    """Return the expected loss of all attentions, plus `own` times the loss of the first alone."""
    A = attentions(state, lengths)
    everywhere = jnp.prod(A**2 + (1 - A) ** 2 / (lengths - 1))
    alone = (1 - A[0]) ** 2 / (lengths[0] - 1)
    together = _loss(state[0], jnp.prod(A), everywhere - jnp.prod(A) ** 2, dim)
    return together + own * _loss(state[1], A[0], alone, dim)


def _loss(weight: Scalars, attention: Scalars, noise: Scalars, dim: Scalars) -> Scalars:
    """Return Eq. 12 for one weight; `noise` is the sum of squared attention to other tokens."""
    return 0.5 * (noise * weight**2 + (attention * weight - jnp.sqrt(dim)) ** 2) / dim


def coupled_velocity(
    state: State, lengths: Float[Array, " n"], dim: Scalars, own: Scalars = 0.0
) -> State:
    r"""Return the velocity of gradient flow on the weights and on all logits.

    The logit difference of attention $i$ moves at $1 + 1/(T_i-1)$ times its gradient.
    """
    speed = jnp.concatenate([jnp.ones(2), 1 + 1 / (lengths - 1)])
    return -speed * jax.grad(coupled_loss)(state, lengths, dim, own)


@partial(jax.jit, compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
def _escape_cells(lengths, dim, own, horizon, threshold):
    start = jnp.zeros(2 + len(lengths))

    def remaining(state: Array) -> Array:
        return coupled_loss(state, lengths, dim) / coupled_loss(start, lengths, dim) - threshold

    def clock(state: Array) -> Array:  # attention of the stronger signal
        A = attentions(state, lengths)
        return jnp.maximum(jnp.prod(A), own * A[0])

    velocity = partial(coupled_velocity, lengths=lengths, dim=dim, own=own)
    return escape(velocity, clock, remaining, start, jnp.sqrt(dim), horizon)


def coupled_plateau(
    lengths: Lengths, dim: Numbers, own: Numbers = 0.0, threshold: float = THRESHOLD
) -> Plateau:
    """Integrate until the loss of all attentions together falls to a share of its start.

    Flow times beyond 100 predicted plateaus are censored.

    **Arguments:**

    - `lengths`: T_i for each attention.
    - `dim`, `own`: d and g. They broadcast with the lengths.
    - `threshold`: the share of the initial loss at which the plateau ends.
    """
    sizes, d, g = _checked(lengths, dim, own)
    horizon = 100 * (predicted_coupled(lengths, dim, own) + d)
    flat = (sizes.reshape(len(sizes), -1).T, *map(np.ravel, (d, g, horizon)))
    time, reached, _ = call_in_float64(_escape_cells, 32, flat, threshold)
    return Plateau(time.reshape(d.shape), ~reached.reshape(d.shape))


def crossover(strength: float) -> float:
    r"""Return $I(k) = \int_0^\infty e^{-v^2 - k^2\Phi(v)^2/2}\,dv$, $\Phi(v) = \int_0^v
    e^{-y^2/2}dy$. It falls from $\sqrt\pi/2$ at $k = 0$ to $\sqrt{\pi/2}/k$ at large $k$."""
    from scipy.integrate import quad  # here, because it is slow to import
    from scipy.special import erf

    def integrand(v: float) -> float:
        return float(np.exp(-(v**2) - strength**2 * np.pi / 4 * erf(v / np.sqrt(2)) ** 2))

    edge = min(1.0, 8 / max(strength, 1e-300))  # the integrand is negligible beyond, for large k
    return quad(integrand, 0, edge)[0] + quad(integrand, edge, 12)[0]


def predicted_coupled(
    lengths: Lengths, dim: Numbers, own: Numbers = 0.0
) -> Float[np.ndarray, "..."]:
    r"""Return the plateau to leading order in large $T_i$ and $d$.

    For $g = 0$ it is $\sqrt{\pi/2n}\,\sqrt d\,\prod_i T_i$. For $g > 0$ and two attentions it is
    $\sqrt d\,\big(\sqrt{\pi/2}\,T_2 + T_1T_2\,I(gT_2)\big)$, which scales as $T_1T_2$ for small $g$
    and as $T_1/g + T_2$ for large $g$. Arguments are those of [`emergo.theory.coupled_plateau`][].
    """
    sizes, d, g = _checked(lengths, dim, own)
    count = len(sizes)
    together = np.prod(sizes, axis=0)
    alone = np.sqrt(np.pi / (2 * count)) * together
    if not np.any(g > 0):
        return np.asarray(np.sqrt(d) * alone)
    if count != 2:
        raise InputError(f"the plateau with own > 0 is derived for two attentions, got {count}")
    second = sizes[1]
    helped = np.sqrt(np.pi / 2) * second + together * np.vectorize(crossover)(g * second)
    return np.asarray(np.sqrt(d) * np.where(g > 0, helped, alone))


def _checked(
    lengths: Lengths, dim: Numbers, own: Numbers
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check and broadcast lengths (one row per attention), dims and weights `own`."""
    if not len(lengths):
        raise InputError("lengths must hold one length for each attention, got none")

    def checked(name: str, values: Numbers, least: int) -> np.ndarray:
        wanted = f"a finite number of at least {least}"
        return checked_numbers(name, values, wanted, lambda x: np.isfinite(x) & (x >= least))

    sizes = [checked("lengths", T, 2) for T in lengths]
    *sizes, d, g = np.broadcast_arrays(*sizes, checked("dim", dim, 1), checked("own", own, 0))
    return np.stack(sizes), d, g
