r"""Gradient flows on the reduced loss: the vector fields, the plateau and whole trajectories.

The *reduced* flow is the paper's: the gradient in the coordinate $\Delta a$. The *exact* flow is
what gradient flow on the model's own $T$ logits does to $\Delta a$: the same direction, $1/B +
1/(T-B)$ times as fast. Plateaus are integrated in *attention time* $s$, $\mathrm ds = A\,\mathrm
dt$, with $t$ as one more unknown: in $s$ the path has no scale that depends on $T$, so that a few
dozen steps serve every $T$ and cells of any size share one compiled call (`docs/theory.md`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Bool, Float

from ..core.errors import InputError
from ._cells import Cell, Numbers, Scalars, checked_numbers
from ._closed_form import Flow, logit_speed, predicted_plateau
from ._integrate import MOST_STEPS, sample, solve
from ._reduced import State, float64, gradient, loss, relevant_attention, test_loss

THRESHOLD = 0.2
"""The plateau ends where the test loss has fallen to this share of its start (Appendix D.1)."""
# Small programs that run for milliseconds: a lighter optimisation saves more than a second of the
# first call (docs/dev/LOG.md).
COMPILER = {"xla_backend_optimization_level": 1}


class Plateau(NamedTuple):
    """The end of the plateau of each cell."""

    time: Float[
        np.ndarray, "*cells"
    ]  # flow time at which the test loss reached the threshold, or the last one observed
    censored: Bool[np.ndarray, "*cells"]  # true where the threshold was not reached


class Trajectory(NamedTuple):
    """A flow sampled at times; every array ends in one axis of times."""

    time: Float[np.ndarray, "*cells times"]
    repeated: Float[np.ndarray, "*cells times"]  # $\tilde w$, the weight in the repeated direction
    others: Float[np.ndarray, "*cells times"]  # $w$ of Eq. 17, the weight in the other directions
    logit: Float[np.ndarray, "*cells times"]  # $\Delta a$
    attention: Float[
        np.ndarray, "*cells times"
    ]  # $A = B\alpha$, the attention on all relevant tokens
    alignment: Float[
        np.ndarray, "*cells times"
    ]  # of W with W*, divided by the norm of W*: $w$ of Eq. 12 where repeat is 0
    loss: Float[np.ndarray, "*cells times"]
    test_loss: Float[np.ndarray, "*cells times"]


def field(state: State, cell: Cell, speed: Scalars = 1.0) -> State:
    """The velocity of the state: minus the gradient, with the logit's entry at the `logit_speed` of
    a flow."""
    return -gradient(state, cell).at[..., -1].multiply(speed)


def escape(
    velocity: Callable[[Array], Array],
    attention: Callable[[Array], Array],
    remaining: Callable[[Array], Array],
    start: Float[Array, " entries"],
    unit: Scalars,
    horizon: Scalars,
    max_steps: int = MOST_STEPS,
) -> tuple[Float[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """Integrates in attention time until `remaining`, positive at the start, falls to 0 or the flow
    time exceeds `horizon`. `velocity`, `attention` and `remaining` are functions of the state.
    `unit` is a typical attention time, which sets the scale of the steps. Returns the flow time
    reached, whether that is the threshold, and whether the integration came to an end."""

    def field(y: Array) -> Array:
        A = attention(y[:-1])
        return unit * jnp.append(velocity(y[:-1]) / A, 1 / A / horizon)

    def condition(t, y, args, **_):
        return jnp.minimum(remaining(y[:-1]), 1 - y[-1])

    # The sign before the event is known. Detecting it would raise in batches where some cell has no
    # event.
    event = diffrax.Event(condition, optimistix.Bisection(rtol=1e-10, atol=1e-10, flip=True))
    # The end is never reached: attention is at most 1, so time passes at least as fast.
    result, states = solve(
        field, jnp.append(start, 0.0), 2 * horizon / unit, max_steps, event=event
    )
    end = states[0]
    finished = result == diffrax.RESULTS.event_occurred
    reached = finished & (remaining(end[:-1]) < 1e-8)
    return jnp.minimum(end[-1], 1.0) * horizon, reached, finished


def check_horizon(
    cell: Cell, flow: Flow, threshold: float, horizon: Numbers | None
) -> Float[np.ndarray, " cells"]:
    """The horizon of each cell in flow time, flat, after checking it and the threshold."""
    if not 0 < threshold < 1:
        raise InputError(f"threshold must be between 0 and 1, got {threshold:g}")
    if horizon is None:
        return np.ravel(100 * (predicted_plateau(cell, flow) + cell.dim))
    limit = checked_numbers(
        "horizon", horizon, "a positive, finite flow time", lambda h: np.isfinite(h) & (h > 0)
    )
    shape = np.shape(cell.length)
    try:
        return np.broadcast_to(limit, shape).ravel()
    except ValueError:
        raise InputError(
            f"horizon has shape {limit.shape}, the cells {shape}; give one, or one per cell"
        ) from None


@partial(jax.jit, static_argnames=("max_steps",), compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, None, None))
def _escape_cells(cell: Cell, speed, unit, horizon, start, threshold, max_steps: int):
    return escape(
        velocity=lambda y: field(y, cell, speed),
        attention=lambda y: relevant_attention(y[-1], cell),
        remaining=lambda y: test_loss(y, cell) / test_loss(jnp.zeros(3), cell) - threshold,
        start=start,
        unit=unit,
        horizon=horizon,
        max_steps=max_steps,
    )


def _starts(
    cell: Cell, alignment: Numbers, logit: Numbers, threshold: float
) -> Float[np.ndarray, "cells 3"]:
    """The state with an alignment of W with W* and a logit, one row per cell, after checking
    them."""
    along, logits = (
        np.broadcast_to(
            checked_numbers(name, given, "a finite number", np.isfinite), cell.length.shape
        )
        for name, given in (("alignment", alignment), ("logit", logit))
    )
    starts = np.stack(
        [along / np.sqrt(cell.dim), along * np.sqrt((cell.dim - 1) / cell.dim), logits], -1
    )
    with float64():
        begun = np.asarray(test_loss(jnp.asarray(starts), cell) / test_loss(jnp.zeros(3), cell))
    if (begun <= threshold).any():
        raise InputError(
            "the test loss is past the threshold at this alignment and logit; start nearer to "
            "the origin"
        )
    return starts


def plateau(
    cell: Cell,
    flow: Flow = "reduced",
    *,
    threshold: float = THRESHOLD,
    horizon: Numbers | None = None,
    alignment: Numbers = 0.0,
    logit: Numbers = 0.0,
) -> Plateau:
    """The flow time until the test loss is `threshold` of that at the origin, for every cell in one
    compiled call.

    The end is found by an event of the solver, not on a grid of times. The test loss is that of
    Appendix D.1: without cross-sample repetition, with the same burst. A cell that does not get
    there within the `horizon`, by default 100 times (predicted plateau + dim), is censored at the
    last time observed; so is one that takes over two million steps of the solver, as some do with
    dim over 10,000 and repeat over 0.9. The flow starts at the origin, or with an `alignment` and a
    `logit` as in [`emergo.theory.plateau_from`][], one for all cells or one per cell.
    """
    limit = check_horizon(cell, flow, threshold, horizon)
    flat = cell.flat()
    shape = np.shape(cell.length)
    starts = _starts(flat, np.ravel(alignment), np.ravel(logit), threshold)
    # The flow enters as a number, so that one program serves both. Attention times: 1/rate on the
    # plateau, dim after it.
    speed = np.broadcast_to(logit_speed(flat, flow), limit.shape)
    unit = predicted_plateau(flat, flow) * flat.burst / flat.length + flat.dim
    # With p = 1 the other directions are never shown, and the test loss keeps their share of (d -
    # 1)/d: nothing to look for.
    finished = (flat.repeat == 1) & ((flat.dim - 1) / flat.dim > threshold)
    time = limit.copy()
    reached = np.zeros(limit.shape, bool)
    # One cell in a thousand is stiff (a repeated direction that is learned long before the others).
    # Those few are finished in a second, small batch, so that the many do not wait for them.
    for size, max_steps in ((64, 1000), (4, MOST_STEPS)):
        left = np.flatnonzero(~finished)
        if not left.size:
            break
        while size < left.size:  # a few sizes, so that few programs are compiled
            size *= 4
        *sizes, kappa, scale, last, begun = (
            a[np.resize(left, size)] for a in (*flat, speed, unit, limit, starts)
        )
        with float64():
            columns = _escape_cells(Cell(*sizes), kappa, scale, last, begun, threshold, max_steps)
        time[left], reached[left], finished[left] = (
            np.asarray(column)[: left.size] for column in columns
        )
    return Plateau(time.reshape(shape), ~reached.reshape(shape))


def check_times(times: Numbers, shape: tuple[int, ...] = ()) -> Float[np.ndarray, "*cells times"]:
    """The times of each of the cells, after checking them."""
    values = np.atleast_1d(np.asarray(times, np.float64))
    if (
        values.shape[-1] < 2
        or not (np.isfinite(values) & (values >= 0)).all()
        or not (np.diff(values) > 0).all()
    ):
        raise InputError(
            "times must be two or more increasing, finite flow times, none of them negative"
        )
    try:
        return np.broadcast_to(values, (*shape, values.shape[-1]))
    except ValueError:
        raise InputError(
            f"times must be one axis for all or one row per cell, got shape {values.shape}"
        ) from None


@partial(jax.jit, compiler_options=COMPILER)
@jax.vmap
def _follow(cell: Cell, speed, times):
    done, states = sample(
        lambda y: times[-1] * field(y, cell, speed), jnp.zeros(3), times / times[-1]
    )
    attention = relevant_attention(states[:, -1], cell)
    alignment = (states[:, 0] + jnp.sqrt(cell.dim - 1) * states[:, 1]) / jnp.sqrt(cell.dim)
    columns = (*states.T, attention, alignment, loss(states, cell), test_loss(states, cell))
    return done, columns


def trajectory(cell: Cell, times: Numbers, flow: Flow = "reduced") -> Trajectory:
    """The flow from the origin, sampled at increasing flow times: one axis of times for all cells,
    or one row per cell."""
    times = check_times(times, np.shape(cell.length))
    flat = cell.flat()
    with float64():
        speed = np.broadcast_to(logit_speed(flat, flow), flat.length.shape)
        done, columns = _follow(flat, speed, times.reshape(-1, times.shape[-1]))
    if not np.all(done):
        bad = Cell(*(float(a[~np.asarray(done)][0]) for a in flat))
        raise InputError(
            f"times reach too far for {bad}: over {MOST_STEPS} steps are needed; ask for earlier "
            f"times"
        )
    return Trajectory(times, *(np.asarray(column).reshape(times.shape) for column in columns))
