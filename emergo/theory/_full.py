r"""Gradient flow of the full toy model, $a \in \mathbb R^T$ and $W \in \mathbb R^{d\times d}$.

It serves as a reference for the reduced and the exact flow.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ..core.errors import InputError
from ..models import ToyParameters
from ._cells import Cell, Numbers
from ._closed_form import Flow, check_flow, escape_time, growth_rate, predicted_plateau
from ._flow import COMPILER, THRESHOLD, Plateau, check_horizon, escape, plateau
from ._reduced import float64


def _attention(
    params: ToyParameters, cell: Cell
) -> tuple[Float[Array, " length"], Bool[Array, " length"], Float[Array, ""]]:
    """Return attention, a mask of the relevant (last `burst`) positions, and attention on these."""
    attention = params.attention
    relevant = jnp.arange(len(attention)) >= len(attention) - cell.burst
    return attention, relevant, jnp.sum(jnp.where(relevant, attention, 0))


def population_loss(
    params: ToyParameters, target: Float[Array, "dim dim"], cell: Cell
) -> Float[Array, ""]:
    r"""Return the expected loss of the toy model, exact for all parameters and targets (A.2).

    The special token $\tilde x$ is the first basis vector.

    **Arguments:**

    - `params`: parameters of [`emergo.ToyAttention`][].
    - `target`: W*.
    - `cell`: `length` and `dim` are the sizes of the arrays; `burst` and `repeat` may be traced.
    """
    dim = len(target)
    attention, relevant, total = _attention(params, cell)
    noise = jnp.sum(jnp.where(relevant, 0, attention**2)) * jnp.sum(params.weights**2) / dim
    error = jnp.sum((total * params.weights - target) ** 2, axis=0)  # one entry per input direction
    variance = (1 - cell.repeat) / dim * jnp.ones(dim)
    return 0.5 * (noise + jnp.sum(variance * error) + cell.repeat * error[0])


def population_gradient(
    params: ToyParameters, target: Float[Array, "dim dim"], cell: Cell
) -> ToyParameters:
    """Return the gradient of [`emergo.theory.population_loss`][], from Eqs. 7 and 8."""
    dim = len(target)
    W = params.weights
    attention, relevant, total = _attention(params, cell)
    noise = jnp.sum(jnp.where(relevant, 0, attention**2)) / dim
    variance = ((1 - cell.repeat) / dim * jnp.ones(dim)).at[0].add(cell.repeat)
    error = (total * W - target) * variance
    by_attention = jnp.where(relevant, jnp.sum(W * error), attention / dim * jnp.sum(W**2))
    by_logits = attention * (by_attention - jnp.sum(attention * by_attention))
    return ToyParameters(by_logits, total * error + noise * W)


@partial(jax.jit, static_argnames=("length", "dim"), compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(None, None, 0, None, 0, None))
def _escape_full(length: int, dim: int, cell: Cell, threshold, horizon, target):
    zero = ToyParameters(jnp.zeros(length), jnp.zeros((dim, dim)))
    start, unravel = ravel_pytree(zero)
    untouched = cell._replace(repeat=jnp.zeros_like(cell.repeat))
    initial = population_loss(zero, target, untouched)
    return escape(
        velocity=lambda y: -ravel_pytree(population_gradient(unravel(y), target, cell))[0],
        attention=lambda y: _attention(unravel(y), cell)[-1],
        remaining=lambda y: population_loss(unravel(y), target, untouched) / initial - threshold,
        start=start,
        unit=predicted_plateau(cell, "exact") * cell.burst / cell.length + dim,
        horizon=horizon,
    )


def full_plateau(
    cell: Cell, *, threshold: float = THRESHOLD, horizon: Numbers | None = None, seed: int = 0
) -> Plateau:
    """Integrate the full model from zero parameters until its plateau ends.

    One program is compiled per (length, dim).

    **Arguments:**

    - `cell`, `threshold`, `horizon`: as in [`emergo.theory.plateau`][].
    - `seed`: draws the target, a matrix with random columns of norm 1 (Assumption 3 of A.1). The
      result does not depend on it.
    """
    limit = check_horizon(cell, "exact", threshold, horizon)
    flat = cell.flat()
    shape = np.shape(cell.length)
    time = np.zeros(limit.size)
    reached = np.zeros(limit.size, bool)
    for length, dim in sorted({*zip(flat.length, flat.dim, strict=True)}):
        these = (flat.length == length) & (flat.dim == dim)
        some = Cell(*(a[these] for a in flat))
        with float64():
            columns = jax.random.normal(jax.random.key(seed), (int(dim), int(dim)))
            target = columns / jnp.linalg.norm(columns, axis=0)
            time[these], reached[these], _ = _escape_full(
                int(length), int(dim), some, threshold, limit[these], target
            )
    return Plateau(time.reshape(shape), ~reached.reshape(shape))


def describe_cell(
    cell: Cell,
    flow: Flow | Literal["full"] = "reduced",
    *,
    threshold: float = THRESHOLD,
    horizon: float | None = None,
) -> dict[str, Any]:
    """Return the theory of one cell as plain data.

    **Arguments:**

    - `cell`: one cell.
    - `flow`: the reduced flow, the exact flow, or that of the full model.
    - `threshold`, `horizon`: as in [`emergo.theory.plateau`][].

    **Returns:** the sizes; `plateau`, the flow time to the threshold; `censored`; `rate`, the
    growth rate at the origin; `predicted`, the closed form; `escape_linear`, the paper's arcsinh
    formula at ε = 0.8. The full model follows the exact flow, which defines its last three entries.
    """
    check_flow(flow, ("reduced", "exact", "full"))
    sizes = {name: int(getattr(cell, name)) for name in ("length", "dim", "burst")}
    parameters = sizes["length"] + sizes["dim"] ** 2
    if flow == "full" and parameters > 10_000_000:
        raise InputError(
            f"the full model has {parameters} parameters, over 10 million; use the exact flow"
        )
    formula = "exact" if flow == "full" else flow
    search: dict[str, Any] = {"threshold": threshold, "horizon": horizon}
    end = full_plateau(cell, **search) if flow == "full" else plateau(cell, flow, **search)
    given = sizes | {"repeat": float(cell.repeat), "flow": flow, "threshold": float(threshold)}
    formulas = {"rate": growth_rate, "predicted": predicted_plateau, "escape_linear": escape_time}
    measured = {"plateau": float(end.time), "censored": bool(end.censored)}
    return (
        given | measured | {name: float(value(cell, formula)) for name, value in formulas.items()}
    )
