r"""The reduced model of zucchet2025, Appendix A: a few scalars with the same learning dynamics.

The weight matrix moves along $k$ fixed directions, each with an input variance $\sigma_i$ and a
target $c_i$. Attention is one number, the total weight on the relevant tokens, $A = B\alpha$:

$$L = \tfrac12\Big(\frac{(1-A)^2 \sum_i v_i^2}{d(T-B)} + \sum_i \sigma_i (A v_i - c_i)^2\Big),
\qquad A = \frac{B}{(T-B)e^{-\Delta a} + B}.$$

A state is the vector $(v_1, \dots, v_k, \Delta a)$:

- two entries, $(w, \Delta a)$: Eq. 12, without cross-sample repetition (`repeat` is ignored);
  $\sigma = 1/d$, $c = \sqrt d$.
- three entries, $(\tilde w, w, \Delta a)$: Eq. 17, and for $B > 1$ its extension to both kinds of
  repetition. The repeated direction has $\tilde\sigma = p + (1-p)/d$, $c = 1$; the others have
  $\sigma = (1-p)/d$, $c = \sqrt{d-1}$.

The functions are plain JAX and follow the dtype of their input. Call them in the context
[`emergo.theory.float64`][] for float64.
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
    """Return a context in which JAX computes in float64.

    The setting is local to the thread. From the first use on, compiled programs are cached for
    later processes.
    """
    keep_programs()
    return jax.enable_x64(True)


def directions(cell: Cell, count: int) -> tuple[Directions, Directions]:
    r"""Return input variances $\sigma_i$ and targets $c_i$ of the directions of the weights.

    `count` is 1 or 2. Directions are the last axis.
    """
    d = jnp.asarray(cell.dim)
    p = jnp.asarray(cell.repeat)
    if count == 1:
        return (1 / d)[..., None], jnp.sqrt(d)[..., None]
    rare = (1 - p) / d
    return jnp.stack([p + rare, rare], -1), jnp.stack([jnp.ones_like(rare), jnp.sqrt(d - 1)], -1)


def relevant_attention(logit: Scalars, cell: Cell) -> Float[Array, "..."]:
    r"""Return $A = B\alpha$, the total attention on relevant tokens, for a logit difference
    $\Delta a$ (Eq. 9)."""
    return jax.nn.sigmoid(logit + jnp.log(cell.burst / (cell.length - cell.burst)))


def _parts(
    state: State, cell: Cell
) -> tuple[Directions, Directions, Directions, Directions, Directions]:
    r"""Return $v_i$, $\sigma_i$, $c_i$, $A$ and the factor of the noise, $1/(d(T-B))$.

    Directions are the last axis of each.
    """
    v = state[..., :-1]
    A = relevant_attention(state[..., -1], cell)
    noise = jnp.asarray(1 / (cell.dim * (cell.length - cell.burst)))
    return v, *directions(cell, v.shape[-1]), A[..., None], noise[..., None]


def loss(state: State, cell: Cell) -> Float[Array, "..."]:
    """Return the expected training loss: Eq. 12 for states of two entries, Eq. 17 for three.

    States and cells broadcast.
    """
    v, sigma, c, A, n = _parts(state, cell)
    noise = ((1 - A) ** 2 * n)[..., 0] * jnp.sum(v**2, -1)
    return 0.5 * (noise + jnp.sum(sigma * (A * v - c) ** 2, -1))


def test_loss(state: State, cell: Cell) -> Float[Array, "..."]:
    """Return the expected loss at the same burst, without cross-sample repetition (D.1)."""
    return loss(state, cell._replace(repeat=jnp.zeros_like(jnp.asarray(cell.repeat))))


def gradient(state: State, cell: Cell) -> State:
    """Return the gradient of [`emergo.theory.loss`][] (Eqs. 13-14 and 18-21)."""
    v, sigma, c, A, n = _parts(state, cell)
    by_weights = n * (1 - A) ** 2 * v + A * sigma * (A * v - c)
    by_attention = jnp.sum(-n * (1 - A) * v**2 + sigma * v * (A * v - c), -1, keepdims=True)
    return jnp.concatenate([by_weights, A * (1 - A) * by_attention], -1)


def hessian(state: State, cell: Cell) -> Float[Array, "... entries entries"]:
    r"""Return the Hessian of [`emergo.theory.loss`][].

    The paper's second derivatives in $\Delta a$ (A.3.1, A.4.1) and mixed derivatives (A.4.1) are
    wrong. Those used here are derived in `docs/theory.md` and agree with automatic differentiation.
    """
    v, sigma, c, A, n = _parts(state, cell)
    slope = A * (1 - A)
    weights = (n * (1 - A) ** 2 + A**2 * sigma)[..., None] * jnp.eye(v.shape[-1])
    mixed = slope * (-2 * n * (1 - A) * v + sigma * (2 * A * v - c))
    curvature = slope**2 * jnp.sum((n + sigma) * v**2, -1, keepdims=True)
    logit = (1 - 2 * A) * gradient(state, cell)[..., -1:] + curvature
    last = jnp.concatenate([mixed, logit], -1)
    upper = jnp.concatenate([weights, mixed[..., None]], -1)
    return jnp.concatenate([upper, last[..., None, :]], -2)


def equilibrium(attention: Scalars, cell: Cell) -> Float[Array, "..."]:
    r"""Return $w^\infty$, at which $\nabla_w L = 0$ for a given attention $A = B\alpha$ (A.3.3).

    For cells without cross-sample repetition.
    """
    A = jnp.asarray(attention)
    noise = 1 / (cell.dim * (cell.length - cell.burst))
    return A / jnp.sqrt(cell.dim) / ((1 - A) ** 2 * noise + A**2 / cell.dim)
