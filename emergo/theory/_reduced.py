r"""The reduced model of zucchet2025, Appendix A: a few scalars that carry the whole learning
dynamics.

The weight matrix moves along $k$ fixed directions, each with an input variance $\sigma_i$ and a
target $c_i$, and attention is one number, the total weight on the relevant tokens, $A = B\alpha$:

$$L = \tfrac12\Big(\frac{(1-A)^2 \sum_i v_i^2}{d(T-B)} + \sum_i \sigma_i (A v_i - c_i)^2\Big),
\qquad A = \frac{B}{(T-B)e^{-\Delta a} + B}.$$

A state is the vector $(v_1, \dots, v_k, \Delta a)$:

- two entries, $(w, \Delta a)$: Eq. 12, without cross-sample repetition (`repeat` is ignored);
  $\sigma = 1/d$, $c = \sqrt d$.
- three entries, $(\tilde w, w, \Delta a)$: Eq. 17, and with $B > 1$ its extension to both
  repetitions at once; the repeated direction, $\tilde\sigma = p + (1-p)/d$, $c = 1$, and the
  others, $\sigma = (1-p)/d$, $c = \sqrt{d-1}$.

The functions are plain JAX and follow the dtype of their input; use [`emergo.theory.float64`][]
around them for 64 bits.
"""

import contextlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.cache import keep_programs
from ._cells import Cell, Scalars

State = Float[Array, "... entries"]
Directions = Float[Array, "... #directions"]


def float64() -> contextlib.AbstractContextManager[None]:
    """A context in which JAX computes in 64 bits. It is local to the thread and leaves the caller's
    setting alone. From its first use on, what is compiled is kept for the next process."""
    keep_programs()
    return jax.enable_x64(True)


def directions(cell: Cell, count: int) -> tuple[Directions, Directions]:
    r"""The input variances $\sigma_i$ and targets $c_i$ of the `count` directions of the weights (1
    or 2), on a last axis."""
    d = jnp.asarray(cell.dim)
    p = jnp.asarray(cell.repeat)
    if count == 1:
        return (1 / d)[..., None], jnp.sqrt(d)[..., None]
    rare = (1 - p) / d
    return jnp.stack([p + rare, rare], -1), jnp.stack([jnp.ones_like(rare), jnp.sqrt(d - 1)], -1)


def relevant_attention(logit: Scalars, cell: Cell) -> Float[Array, "..."]:
    r"""$A = B\alpha$: the attention on all relevant tokens together, for the logit difference
    $\Delta a$ (Eq. 9)."""
    return jax.nn.sigmoid(logit + jnp.log(cell.burst / (cell.length - cell.burst)))


def _parts(
    state: State, cell: Cell
) -> tuple[Directions, Directions, Directions, Directions, Directions]:
    r"""$v_i$, $\sigma_i$, $c_i$, $A$ and the factor of the noise, $1/(d(T-B))$, all with a last
    axis for the directions."""
    v = state[..., :-1]
    A = relevant_attention(state[..., -1], cell)
    noise = jnp.asarray(1 / (cell.dim * (cell.length - cell.burst)))
    return v, *directions(cell, v.shape[-1]), A[..., None], noise[..., None]


def loss(state: State, cell: Cell) -> Float[Array, "..."]:
    """The expected training loss: Eq. 12 for a state of two entries, Eq. 17 for three. States and
    cells broadcast."""
    v, sigma, c, A, n = _parts(state, cell)
    noise = ((1 - A) ** 2 * n)[..., 0] * jnp.sum(v**2, -1)
    return 0.5 * (noise + jnp.sum(sigma * (A * v - c) ** 2, -1))


def test_loss(state: State, cell: Cell) -> Float[Array, "..."]:
    """The expected loss on data without cross-sample repetition and with the same burst (Appendix
    D.1)."""
    return loss(state, cell._replace(repeat=jnp.zeros_like(jnp.asarray(cell.repeat))))


def gradient(state: State, cell: Cell) -> State:
    """The gradient of [`emergo.theory.loss`][]: Eqs. 13-14 for two entries, Eqs. 18-21 for
    three."""
    v, sigma, c, A, n = _parts(state, cell)
    by_weights = n * (1 - A) ** 2 * v + A * sigma * (A * v - c)
    by_attention = jnp.sum(-n * (1 - A) * v**2 + sigma * v * (A * v - c), -1, keepdims=True)
    return jnp.concatenate([by_weights, A * (1 - A) * by_attention], -1)


def hessian(state: State, cell: Cell) -> Float[Array, "... entries entries"]:
    r"""The Hessian of [`emergo.theory.loss`][]. The printed second derivatives in $\Delta a$ (A.3.1
    and A.4.1) and the printed mixed ones of A.4.1 are wrong; these are derived in `docs/theory.md`
    and tested against automatic differentiation."""
    v, sigma, c, A, n = _parts(state, cell)
    slope = A * (1 - A)
    weights = (n * (1 - A) ** 2 + A**2 * sigma)[..., None] * jnp.eye(v.shape[-1])
    mixed = slope * (-2 * n * (1 - A) * v + sigma * (2 * A * v - c))
    curvature = slope**2 * jnp.sum((n + sigma) * v**2, -1, keepdims=True)
    logit = (1 - 2 * A) * gradient(state, cell)[..., -1:] + curvature
    last = jnp.concatenate([mixed, logit], -1)
    return jnp.concatenate(
        [jnp.concatenate([weights, mixed[..., None]], -1), last[..., None, :]], -2
    )


def equilibrium(attention: Scalars, cell: Cell) -> Float[Array, "..."]:
    r"""$w^\infty$: the value of $w$ at which $\nabla_w L = 0$ for a given $A = B\alpha$ (A.3.3; no
    cross-sample repetition)."""
    A = jnp.asarray(attention)
    noise = 1 / (cell.dim * (cell.length - cell.burst))
    return A / jnp.sqrt(cell.dim) / ((1 - A) ** 2 * noise + A**2 / cell.dim)
