r"""Gradient flows on the reduced loss: the vector fields, the plateau and whole trajectories.

The *reduced* flow is the paper's: gradient flow in the coordinate $\Delta a$. The *exact* flow is
gradient flow on the $T$ logits of the model, which moves $\Delta a$ in the same direction, $1/B +
1/(T-B)$ times as fast.

Plateaus are integrated in *attention time* $s$, $\mathrm ds = A\,\mathrm dt$, with $t$ as one more
unknown. In $s$ no scale of the path depends on $T$. So a few dozen steps suffice for every $T$, and
cells of all sizes share one compiled call (`docs/theory.md`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.errors import InputError
from ._cells import Cell, Numbers, Scalars, checked_numbers
from ._closed_form import Flow, logit_speed, predicted_plateau
from ._integrate import MOST_STEPS, sample, solve
from ._reduced import State, float64, gradient, loss, relevant_attention, test_loss

THRESHOLD = 0.2
"""The plateau ends where the test loss has fallen to this share of its start (Appendix D.1)."""
# The programs run for milliseconds. Compiling them with less optimisation saves more than a second.
COMPILER = {"xla_backend_optimization_level": 1}


class Plateau(NamedTuple):
    """The end of the plateau of each cell."""

    time: Float[np.ndarray, "*cells"]  # flow time to the threshold; the last one if censored
    censored: Bool[np.ndarray, "*cells"]  # True if the threshold was not reached


class Trajectory(NamedTuple):
    """A flow sampled at times; every array ends in one axis of times."""

    time: Float[np.ndarray, "*cells times"]
    repeated: Float[np.ndarray, "*cells times"]  # $\tilde w$, the weight in the repeated direction
    others: Float[np.ndarray, "*cells times"]  # $w$ of Eq. 17, the weight in the other directions
    logit: Float[np.ndarray, "*cells times"]  # $\Delta a$
    attention: Float[np.ndarray, "*cells times"]  # $A = B\alpha$, on all relevant tokens
    # Projection of W on W*, divided by the norm of W*: $w$ of Eq. 12 if repeat is 0.
    alignment: Float[np.ndarray, "*cells times"]
    loss: Float[np.ndarray, "*cells times"]
    test_loss: Float[np.ndarray, "*cells times"]


def field(state: State, cell: Cell, speed: Scalars = 1.0) -> State:
    """Return the velocity of a state: minus the gradient, its logit entry times `speed`."""
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
    """Integrate in attention time until `remaining` falls to 0 or flow time reaches `horizon`.

    **Arguments:**

    - `velocity`, `attention`, `remaining`: functions of the state; `remaining` is positive at the
      start.
    - `start`: the initial state.
    - `unit`: a typical attention time, the scale of the steps.
    - `horizon`: the last flow time.
    - `max_steps`: the largest number of steps.

    **Returns:** the flow time at the end; True if `remaining` fell to 0; True if the integration
    ended within `max_steps`.
    """

    import diffrax  # here, because it is slow to import
    import optimistix

    def field(y: Array) -> Array:
        A = attention(y[:-1])
        return unit * jnp.append(velocity(y[:-1]) / A, 1 / A / horizon)

    def condition(t, y, args, **_):
        return jnp.minimum(remaining(y[:-1]), 1 - y[-1])

    # We pass the sign before the event. Detecting it would raise if some cell of a batch has no
    # event.
    event = diffrax.Event(condition, optimistix.Bisection(rtol=1e-10, atol=1e-10, flip=True))
    # Attention is at most 1, so flow time reaches the horizon before attention time reaches `end`.
    end = 2 * horizon / unit
    result, states = solve(field, jnp.append(start, 0.0), end, max_steps, event=event)
    end = states[0]
    finished = result == diffrax.RESULTS.event_occurred
    reached = finished & (remaining(end[:-1]) < 1e-8)
    return jnp.minimum(end[-1], 1.0) * horizon, reached, finished


def check_horizon(
    cell: Cell, flow: Flow, threshold: float, horizon: Numbers | None
) -> Float[np.ndarray, " cells"]:
    """Check the threshold and the horizon; return the horizon of each cell, flat."""
    if not 0 < threshold < 1:
        raise InputError(f"threshold must be between 0 and 1, got {threshold:g}")
    if horizon is None:
        return np.ravel(100 * (predicted_plateau(cell, flow) + cell.dim))
    limit = checked_numbers(
        "horizon", horizon, "a positive, finite flow time", lambda h: np.isfinite(h) & (h > 0)
    )
    return np.broadcast_to(limit, np.shape(cell.length)).ravel()


def call_in_float64(function: Callable, least: int, columns: Any, *rest: Any) -> list[np.ndarray]:
    """Call a compiled function of columns with one row per cell, in float64.

    Rows are repeated up to few different sizes, `least` times a power of 4, so that few programs
    are compiled.
    """
    count = len(jax.tree.leaves(columns)[0])
    size = least
    while size < count:
        size *= 4
    padded = jax.tree.map(lambda a: np.resize(a, (size, *a.shape[1:])), columns)
    with float64():
        return [np.asarray(a)[:count] for a in function(*padded, *rest)]


@partial(jax.jit, static_argnames=("max_steps",), compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None))
def _escape_cells(cell: Cell, speed, unit, horizon, threshold, max_steps: int):
    return escape(
        velocity=lambda y: field(y, cell, speed),
        attention=lambda y: relevant_attention(y[-1], cell),
        remaining=lambda y: test_loss(y, cell) / test_loss(jnp.zeros(3), cell) - threshold,
        start=jnp.zeros(3),
        unit=unit,
        horizon=horizon,
        max_steps=max_steps,
    )


def plateau(
    cell: Cell,
    flow: Flow = "reduced",
    *,
    threshold: float = THRESHOLD,
    horizon: Numbers | None = None,
) -> Plateau:
    """Integrate the flow until the test loss falls to a share of that at the origin.

    The test has no cross-sample repetition and the same burst (Appendix D.1). The
    end is an event of the solver, so it does not depend on a grid of times.

    **Arguments:**

    - `cell`: the cells; all are integrated in one compiled call.
    - `flow`: the reduced or the exact flow.
    - `threshold`: the share of the initial test loss at which the plateau ends.
    - `horizon`: the last flow time; by default 100 times (predicted plateau + dim).

    **Returns:** a [`emergo.theory.Plateau`][]. Cells that do not reach the threshold are censored,
    and so are cells that need more than two million steps of the solver, such as some with dim over
    10,000 and repeat over 0.9.
    """
    limit = check_horizon(cell, flow, threshold, horizon)
    flat = cell.flat()
    shape = np.shape(cell.length)
    # The flow enters as a number, so that both flows share a program. Typical attention times are
    # 1/rate on the plateau and dim after it.
    speed = np.broadcast_to(logit_speed(flat, flow), limit.shape)
    unit = predicted_plateau(flat, flow) * flat.burst / flat.length + flat.dim
    # If p = 1, the other directions never occur in training, and the test loss keeps their share of
    # (d - 1)/d. Such cells are not integrated.
    finished = (flat.repeat == 1) & ((flat.dim - 1) / flat.dim > threshold)
    time = limit.copy()
    reached = np.zeros(limit.shape, bool)
    # One cell in a thousand is stiff: its repeated direction is learned long before the others. A
    # second, small batch finishes those cells, so that the others do not wait for them.
    for least, max_steps in ((64, 1000), (4, MOST_STEPS)):
        left = np.flatnonzero(~finished)
        if not left.size:
            break
        columns = jax.tree.map(lambda a, left=left: a[left], (flat, speed, unit, limit))
        time[left], reached[left], finished[left] = call_in_float64(
            _escape_cells, least, columns, threshold, max_steps
        )
    return Plateau(time.reshape(shape), ~reached.reshape(shape))


def check_times(times: Numbers, shape: tuple[int, ...] = ()) -> Float[np.ndarray, "*cells times"]:
    """Check times; return them with one row per cell."""
    values = np.atleast_1d(np.asarray(times, np.float64))
    finite = np.isfinite(values) & (values >= 0)
    if values.shape[-1] < 2 or not finite.all() or not (np.diff(values) > 0).all():
        raise InputError(
            "times must be two or more increasing, finite flow times, none of them negative"
        )
    return np.broadcast_to(values, (*shape, values.shape[-1]))


def check_done(done: Any) -> None:
    if not np.all(done):
        raise InputError(
            f"times reach too far: over {MOST_STEPS} steps are needed; ask for earlier times"
        )


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
    """Sample the flow from the origin.

    **Arguments:**

    - `cell`: the cells.
    - `times`: increasing flow times: one axis for all cells, or one row per cell.
    - `flow`: the reduced or the exact flow.
    """
    times = check_times(times, np.shape(cell.length))
    flat = cell.flat()
    with float64():
        speed = np.broadcast_to(logit_speed(flat, flow), flat.length.shape)
        done, columns = _follow(flat, speed, times.reshape(-1, times.shape[-1]))
    check_done(done)
    return Trajectory(times, *(np.asarray(column).reshape(times.shape) for column in columns))
