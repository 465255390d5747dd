r"""The whole toy model, $a \in \mathbb R^T$ and $W \in \mathbb R^{d\times d}$, under gradient flow on its expected loss.

Nothing is reduced here: this is what the reduced and the exact flow are measured against.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ._cells import Cell, Numbers
from ._closed_form import predicted_plateau
from ._flow import _MANY_STEPS, COMPILER, THRESHOLD, Plateau, check_horizon, escape
from ._precision import float64


class Parameters(NamedTuple):
    """The parameters of the toy model (Eq. 2)."""

    logits: Float[Array, " length"]
    weights: Float[Array, "dim dim"]


def relevant_positions(cell: Cell, length: int) -> Bool[Array, " length"]:
    """Where the relevant token is: the last `burst` positions."""
    return jnp.arange(length) >= length - cell.burst


def population_loss(parameters: Parameters, target: Float[Array, "dim dim"], cell: Cell) -> Float[Array, ""]:
    r"""The expected loss of the toy model, exact for any parameters and target (A.2).

    The special token $\tilde x$ is the first basis vector. `cell.length` and `cell.dim` must be the sizes of the arrays;
    `cell.burst` and `cell.repeat` may be traced.
    """
    length, dim = parameters.logits.shape[0], target.shape[0]
    attention = jax.nn.softmax(parameters.logits)
    relevant = relevant_positions(cell, length)
    total = jnp.sum(jnp.where(relevant, attention, 0))
    noise = jnp.sum(jnp.where(relevant, 0, attention**2)) * jnp.sum(parameters.weights**2) / dim
    error = jnp.sum((total * parameters.weights - target) ** 2, axis=0)  # one entry an input direction
    variance = (1 - cell.repeat) / dim * jnp.ones(dim)
    return 0.5 * (noise + jnp.sum(variance * error) + cell.repeat * error[0])


def population_gradient(parameters: Parameters, target: Float[Array, "dim dim"], cell: Cell) -> Parameters:
    """The gradient of [`emergo.theory.population_loss`][] by hand: Eqs. 7 and 8, and the softmax behind them."""
    length, dim = parameters.logits.shape[0], target.shape[0]
    W = parameters.weights
    attention = jax.nn.softmax(parameters.logits)
    relevant = relevant_positions(cell, length)
    total = jnp.sum(jnp.where(relevant, attention, 0))
    noise = jnp.sum(jnp.where(relevant, 0, attention**2)) / dim
    variance = ((1 - cell.repeat) / dim * jnp.ones(dim)).at[0].add(cell.repeat)
    error = (total * W - target) * variance
    by_weights = total * error + noise * W
    by_attention = jnp.where(relevant, jnp.sum(W * error), attention / dim * jnp.sum(W**2))
    by_logits = attention * (by_attention - jnp.sum(attention * by_attention))
    return Parameters(by_logits, by_weights)


def unit_columns(key: Array, dim: int) -> Float[Array, "dim dim"]:
    """A target with columns of norm 1 in random directions (Assumption 3 of A.1)."""
    columns = jax.random.normal(key, (dim, dim))
    return columns / jnp.linalg.norm(columns, axis=0)


@partial(jax.jit, static_argnames=("length", "dim"), compiler_options=COMPILER)
def _escape_full(length: int, dim: int, cell: Cell, threshold, horizon, target):
    zero = Parameters(jnp.zeros(length), jnp.zeros((dim, dim)))
    start, unravel = ravel_pytree(zero)

    def one(cell, horizon):
        untouched = cell._replace(repeat=jnp.zeros_like(cell.repeat))
        initial = population_loss(zero, target, untouched)

        def attention(y):
            return jnp.sum(jnp.where(relevant_positions(cell, length), jax.nn.softmax(unravel(y).logits), 0))

        return escape(
            velocity=lambda y: -ravel_pytree(population_gradient(unravel(y), target, cell))[0],
            attention=attention,
            remaining=lambda y: population_loss(unravel(y), target, untouched) / initial - threshold,
            start=start,
            unit=predicted_plateau(cell, "exact") * cell.burst / cell.length + dim,
            horizon=horizon,
            max_steps=_MANY_STEPS,
        )

    return jax.vmap(one)(cell, horizon)


def full_plateau(cell: Cell, *, threshold: float = THRESHOLD, horizon: Numbers | None = None, seed: int = 0) -> Plateau:
    """As [`emergo.theory.plateau`][], for the whole model from $a = 0$, $W = 0$. One compiled program per (length, dim).

    **Arguments:**

    - `seed`: chooses the target, a matrix with random columns of norm 1. The result does not depend on it.
    """
    limit = check_horizon(cell, "exact", threshold, horizon)
    shape = np.shape(cell.length)
    flat = Cell(*(np.ravel(np.asarray(a, np.float64)) for a in cell))
    limit = np.ravel(limit)
    time, reached = np.zeros(limit.size), np.zeros(limit.size, bool)
    sizes = {(int(t), int(d)) for t, d in zip(flat.length, flat.dim, strict=True)}
    for length, dim in sorted(sizes):
        these = (flat.length == length) & (flat.dim == dim)
        with float64():
            target = unit_columns(jax.random.key(seed), dim)
            some = Cell(*(a[these] for a in flat))
            time[these], reached[these], _ = _escape_full(length, dim, some, threshold, limit[these], target)
    return Plateau(time.reshape(shape), ~reached.reshape(shape))
