"""Integration of autonomous vector fields with Diffrax: to an end, to an event, at given times."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._cells import Scalars

if TYPE_CHECKING:
    import diffrax

RTOL = 1e-8
ATOL = 1e-11
MOST_STEPS = 2_000_000
_FIRST = 0.01  # the first step that `diffeqsolve` tries by default
_NEAR = 2e-14  # a step that would end this close to the last time, relative to it, ends there


def solve(
    field: Callable,
    y0: Any,
    t1: Scalars,
    max_steps: int = MOST_STEPS,
    rtol: float = RTOL,
    atol: float = ATOL,
    **options: Any,
) -> "tuple[diffrax.RESULTS, Any]":
    """Integrate from time 0 to `t1`; return Diffrax's result and the saved states."""
    import diffrax  # here, because it is slow to import

    options |= {
        "stepsize_controller": diffrax.PIDController(rtol=rtol, atol=atol),
        "max_steps": max_steps,
        "throw": False,
    }
    solution = diffrax.diffeqsolve(
        _term(field), diffrax.Tsit5(), t0=0.0, t1=t1, dt0=None, y0=y0, **options
    )
    return solution.result, solution.ys


def sample(
    field: Callable,
    y0: Any,
    times: Float[Array, " times"],
    observe: Callable[[Any], Any] = lambda y: y,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> tuple[Bool[Array, ""], Any]:
    """Integrate from time 0 to the last of increasing times, and observe the state at each.

    `diffrax.diffeqsolve` with `SaveAt(ts=times)` has the same steps and numbers. Diffrax checks
    the times with a callback into Python, and JAX cannot cache programs with callbacks for later
    processes. So we write the loop ourselves, without that check.

    **Returns:** True if the last time was reached, and the observations.
    """
    import diffrax  # here, because it is slow to import

    term = _term(field)
    solver = diffrax.Tsit5()
    controller = diffrax.PIDController(rtol=rtol, atol=atol)
    order = cast(int, solver.error_order(term))
    end = times[-1]
    first, controller_state = controller.init(term, 0.0, end, y0, _FIRST, None, solver.func, order)
    first = jnp.minimum(first, end)
    empty = jax.tree.map(
        lambda a: jnp.full((len(times), *a.shape), jnp.inf, a.dtype), jax.eval_shape(observe, y0)
    )
    solver_state = solver.init(term, 0.0, first, y0, None)
    begun = _Stepped(
        jnp.zeros_like(end),
        first,
        y0,
        solver_state,
        controller_state,
        steps=0,
        index=0,
        saved=empty,
    )

    def unfinished(now: _Stepped) -> Bool[Array, ""]:
        return (now.before < end) & (now.steps < MOST_STEPS)

    def step(now: _Stepped) -> _Stepped:
        y, error, dense, solver_state, _ = solver.step(
            term, now.before, now.after, now.y, None, now.solver_state, False
        )
        error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e), jnp.inf, e), error)
        taken, before, after, _, controller_state, _ = controller.adapt_step_size(
            now.before, now.after, now.y, y, None, error, order, now.controller_state
        )
        within = solver.interpolation_cls(t0=now.before, t1=now.after, **dense)

        def passed(save: tuple[Array, Any]) -> Bool[Array, ""]:
            return taken & (save[0] < len(times)) & (times[save[0]] <= now.after)

        def observed(save: tuple[Array, Any]) -> tuple[Array, Any]:
            index, saved = save
            new = observe(within.evaluate(times[index]))
            saved = jax.tree.map(lambda rows, row: rows.at[index].set(row), saved, new)
            return index + 1, saved

        index, saved = jax.lax.while_loop(passed, observed, (now.index, now.saved))
        y, solver_state = jax.tree.map(
            lambda a, b: jnp.where(taken, a, b), (y, solver_state), (now.y, now.solver_state)
        )
        before = jnp.minimum(before, end)
        last = jnp.where(taken, end, before + 0.5 * (end - before))
        after = jnp.where(after > end * (1 - _NEAR), last, after)
        return _Stepped(
            before, after, y, solver_state, controller_state, now.steps + 1, index, saved
        )

    done = jax.lax.while_loop(unfinished, step, jax.tree.map(jnp.asarray, begun))
    return done.before >= end, done.saved


class _Stepped(NamedTuple):
    """The state of an integration, which next tries a step from `before` to `after`."""

    before: Any
    after: Any
    y: Any
    solver_state: Any
    controller_state: Any
    steps: Any
    index: Any  # index of the next time to observe
    saved: Any


def _term(field: Callable) -> "diffrax.ODETerm":
    import diffrax  # here, because it is slow to import

    return diffrax.ODETerm(lambda t, y, args: field(y))
