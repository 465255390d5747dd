r"""Gradient flows on the reduced loss: the vector fields, the plateau and whole trajectories.

Two flows share one loss (see `docs/theory.md`). The *reduced* flow is the paper's: the gradient in the coordinate
$\Delta a$. The *exact* flow is what gradient flow on the model's own $T$ logits does to $\Delta a$: the same direction,
$1/B + 1/(T-B)$ times as fast.

Both are integrated in *attention time* $s$, $\mathrm ds = A\,\mathrm dt$, with $t$ carried along as one more unknown. On the
plateau $A$ is of order $B/T$ and then rises to 1 within a vanishing share of the elapsed time; in $s$ the same path has no
scale that depends on $T$, so that a few dozen steps serve every $T$ and cells of any size can share one compiled call.
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

from .._errors import InputError
from ._cells import Cell, Numbers, Scalars
from ._closed_form import Flow, logit_speed, predicted_plateau
from ._precision import float64
from ._reduced import State, gradient, loss, relevant_attention, test_loss

THRESHOLD = 0.2
"""The plateau ends where the test loss has fallen to this share of its start (Appendix D.1)."""
HORIZON = 100.0
"""How long to look for the end of the plateau, in units of `predicted_plateau + dim`."""

RTOL, ATOL = 1e-8, 1e-11
# One cell in a thousand is stiff (a repeated direction that is learned long before the others). Those few are finished
# in a second, small batch, so that the many do not wait for them.
_FEW_STEPS, _MANY_STEPS = 1_000, 2_000_000


class Plateau(NamedTuple):
    """The end of the plateau of each cell."""

    time: Float[np.ndarray, "*cells"]
    """Flow time at which the test loss reached the threshold; for a censored cell, the last time observed."""
    censored: Bool[np.ndarray, "*cells"]
    """True where the threshold was not reached."""


class Trajectory(NamedTuple):
    """A flow sampled at times; every array ends in one axis of times."""

    time: Float[np.ndarray, "*cells times"]
    repeated: Float[np.ndarray, "*cells times"]
    r"""$\tilde w$, the weight in the repeated direction."""
    others: Float[np.ndarray, "*cells times"]
    r"""$w$ of Eq. 17, the weight in the other directions."""
    logit: Float[np.ndarray, "*cells times"]
    r"""$\Delta a$."""
    attention: Float[np.ndarray, "*cells times"]
    r"""$A = B\alpha$, the attention on all relevant tokens."""
    alignment: Float[np.ndarray, "*cells times"]
    r"""$\langle W^*, W\rangle_F / \lVert W^*\rVert_F$, which is $w$ of Eq. 12 when there is no cross-sample repetition."""
    loss: Float[np.ndarray, "*cells times"]
    test_loss: Float[np.ndarray, "*cells times"]


def field(state: State, cell: Cell, flow: Flow = "reduced") -> State:
    """The velocity of the state: minus the gradient, with the logit's entry at the chosen flow's speed."""
    return _field(state, cell, logit_speed(cell, flow))


def _field(state: State, cell: Cell, speed) -> State:
    return -gradient(state, cell).at[..., -1].multiply(speed)


def escape(
    velocity: Callable[[Array], Array],
    attention: Callable[[Array], Array],
    remaining: Callable[[Array], Array],
    start: Float[Array, " entries"],
    unit: Scalars,
    horizon: Scalars,
    max_steps: int,
) -> tuple[Float[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """Integrates in attention time until `remaining` falls to zero or the time exceeds `horizon`.

    **Arguments:**

    - `velocity`, `attention`, `remaining`: of the state; `remaining` is positive before the threshold.
    - `start`: the state at time 0.
    - `unit`: a typical attention time, which sets the scale of the steps.
    - `horizon`: the largest flow time.

    **Returns:**

    The flow time reached, whether the threshold was reached there, and whether the integration came to an end.
    """

    def field(_, y, __):
        A = attention(y[:-1])
        return unit * jnp.append(velocity(y[:-1]) / A, 1 / A / horizon)

    def condition(t, y, args, **_):
        return jnp.minimum(remaining(y[:-1]), 1 - y[-1])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=2 * horizon / unit,  # never reached: attention is at most 1, so time passes at least as fast
        dt0=None,
        y0=jnp.append(start, 0.0),
        # The sign before the event is known. Detecting it would raise in batches where some cell has no event.
        event=diffrax.Event(condition, optimistix.Bisection(rtol=1e-10, atol=1e-10, flip=True)),
        stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
        max_steps=max_steps,
        throw=False,
    )
    assert solution.ys is not None
    end = solution.ys[0]
    finished = solution.result == diffrax.RESULTS.event_occurred
    reached = finished & (remaining(end[:-1]) < 1e-8)
    return jnp.minimum(end[-1], 1.0) * horizon, reached, finished


def check_horizon(cell: Cell, flow: Flow, threshold: float, horizon: Numbers | None) -> Float[np.ndarray, "*cells"]:
    """The horizon of each cell in flow time, after checking it and the threshold."""
    if not 0 < threshold < 1:
        raise InputError(f"threshold must be between 0 and 1, got {threshold:g}")
    if horizon is None:
        return np.asarray(HORIZON * (predicted_plateau(cell, flow) + cell.dim))
    values = np.asarray(horizon, dtype=np.float64)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise InputError(f"horizon must be a positive, finite flow time, got {float(values[bad].flat[0]):g}")
    try:
        return np.broadcast_to(values, np.shape(cell.length)).copy()
    except ValueError:
        raise InputError(
            f"horizon has shape {values.shape}, the cells {np.shape(cell.length)}; give one or one a cell"
        ) from None


# Small programs that run for milliseconds: a lighter optimisation saves more than a second of the first call (docs/dev/LOG.md).
COMPILER = {"xla_backend_optimization_level": 1}


@partial(jax.jit, static_argnames=("max_steps",), compiler_options=COMPILER)
def _escape_cells(cell: Cell, speed, unit, horizon, threshold, max_steps: int):
    def one(cell, speed, unit, horizon):
        start = jnp.zeros(3)
        return escape(
            velocity=lambda y: _field(y, cell, speed),
            attention=lambda y: relevant_attention(y[-1], cell),
            remaining=lambda y: test_loss(y, cell) / test_loss(start, cell) - threshold,
            start=start,
            unit=unit,
            horizon=horizon,
            max_steps=max_steps,
        )

    return jax.vmap(one)(cell, speed, unit, horizon)


def plateau(cell: Cell, flow: Flow = "reduced", *, threshold: float = THRESHOLD, horizon: Numbers | None = None) -> Plateau:
    """The flow time until the test loss is `threshold` of its start, for every cell in one compiled call.

    The end is found by an event of the solver, not on a grid of times. The test loss is that of Appendix D.1: without
    cross-sample repetition, with the same burst.

    **Arguments:**

    - `cell`: from [`emergo.theory.cells`][] or [`emergo.theory.grid`][], of any shape.
    - `flow`: `"reduced"` (the paper's) or `"exact"`.
    - `threshold`: the share of the initial test loss that ends the plateau.
    - `horizon`: the largest flow time; by default 100 times (predicted plateau + dim).

    **Returns:**

    A [`emergo.theory.Plateau`][]. A cell that does not get there within the horizon (or within two million steps of the
    solver, which takes dim over 10,000 and repeat over 0.9) is censored at the last time observed.
    """
    limit = check_horizon(cell, flow, threshold, horizon)
    shape = np.shape(cell.length)
    flat = Cell(*(np.ravel(np.asarray(a, np.float64)) for a in cell))
    limit = np.ravel(limit)
    if not limit.size:
        return Plateau(np.zeros(shape), np.zeros(shape, bool))
    # The flow enters as a number, so that one program serves both. Attention times: 1/rate on the plateau, dim after it.
    speed = np.broadcast_to(logit_speed(flat, flow), limit.shape)
    unit = predicted_plateau(flat, flow) * flat.burst / flat.length + flat.dim
    columns = (*flat, speed, unit, limit)

    def solve(which: np.ndarray, size: int, max_steps: int) -> list[np.ndarray]:
        # Padding to a few sizes keeps the number of compiled programs small.
        while size < len(which):
            size *= 4
        padded = np.resize(which, size)
        *sizes, kappa, scale, last = (a[padded] for a in columns)
        with float64():
            out = _escape_cells(Cell(*sizes), kappa, scale, last, threshold, max_steps)
        return [np.array(a)[: len(which)] for a in out]

    # With p = 1 the other directions are never shown, and the test loss keeps their share of (d - 1)/d: nothing to look for.
    hopeless = (flat.repeat == 1) & ((flat.dim - 1) / flat.dim > threshold)
    time, reached, finished = limit.copy(), np.zeros(limit.shape, bool), hopeless.copy()
    some = np.flatnonzero(~hopeless)
    if some.size:
        time[some], reached[some], finished[some] = solve(some, 64, _FEW_STEPS)
    rest = np.flatnonzero(~finished)
    if rest.size:
        time[rest], reached[rest], finished[rest] = solve(rest, 4, _MANY_STEPS)
    return Plateau(time.reshape(shape), ~reached.reshape(shape))


@jax.jit
def _follow(cell: Cell, speed, times):
    def one(cell, speed, times):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda _, y, __: times[-1] * _field(y, cell, speed)),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=None,
            y0=jnp.zeros(3),
            saveat=diffrax.SaveAt(ts=times / times[-1]),
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
            max_steps=_MANY_STEPS,
            throw=False,
        )
        assert solution.ys is not None
        states = solution.ys
        attention = relevant_attention(states[:, -1], cell)
        alignment = (states[:, 0] + jnp.sqrt(cell.dim - 1) * states[:, 1]) / jnp.sqrt(cell.dim)
        losses = [f(states, cell) for f in (loss, test_loss)]
        return solution.result == diffrax.RESULTS.successful, (*states.T, attention, alignment, *losses)

    return jax.vmap(one)(cell, speed, times)


def trajectory(cell: Cell, times: Numbers, flow: Flow = "reduced") -> Trajectory:
    """The flow from the origin, sampled at the given times.

    **Arguments:**

    - `cell`: from [`emergo.theory.cells`][], of any shape.
    - `times`: increasing flow times from 0 on, one axis for all cells or one row a cell.
    - `flow`: `"reduced"` or `"exact"`.

    **Returns:**

    A [`emergo.theory.Trajectory`][] whose arrays have the shape of the cells and one axis of times.
    """
    shape = np.shape(cell.length)
    times = np.asarray(times, dtype=np.float64)
    if times.ndim == 0 or times.shape[-1] < 2 or not (np.diff(times) > 0).all() or not (times >= 0).all():
        raise InputError("times must be two or more increasing, finite flow times, none of them negative")
    times = np.broadcast_to(times, (*shape, times.shape[-1]))
    flat = Cell(*(np.ravel(np.asarray(a, np.float64)) for a in cell))
    with float64():
        speed = np.broadcast_to(logit_speed(flat, flow), flat.length.shape)
        done, columns = _follow(flat, speed, times.reshape(-1, times.shape[-1]))
    if not np.all(done):
        bad = Cell(*(float(a[~np.asarray(done)][0]) for a in flat))
        raise InputError(f"times reach too far for {bad}: over {_MANY_STEPS} steps are needed; ask for earlier times")
    repeated, others, logit, attention, alignment, losses, tests = (np.asarray(c).reshape(times.shape) for c in columns)
    return Trajectory(times, repeated, others, logit, attention, alignment, losses, tests)
