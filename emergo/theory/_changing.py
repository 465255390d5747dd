r"""Repetition that changes while a model learns, and a bias that answers it: closed forms and the
flow (`docs/theory.md`).

While attention is small, $\mathrm ds = A\,\mathrm dt$ makes every direction grow at its own
$\sigma_i c_i$, and $\Delta a = |v|^2/2$ for *any* schedule of the repetition: what is known of the
map is all that attention depends on. A bias of the output answers the mean of what is repeated, so
that attention sees its variance, $p(1-p)$, instead of $p$. All of it is for the reduced flow.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.special import erfinv

from ..core.errors import InputError
from ._cells import Cell, Numbers, cells, checked_numbers
from ._closed_form import mills_ratio, strength
from ._flow import COMPILER, THRESHOLD, escape, field
from ._integrate import MOST_STEPS
from ._reduced import float64, relevant_attention, test_loss

TAKEN_OFF = 0.5
"""The attention at which it has taken off."""
Times = Float[np.ndarray, "*cells"]


def takeoff_time(cell: Cell, bias: bool = False) -> Times:
    r"""When attention takes off if the repetition stays, $\frac TB\sqrt{\pi/2Q}$ to leading order;
    with a `bias` and p = 1, never."""
    T, d, B, p = (np.asarray(part, np.float64) for part in cell)
    with np.errstate(divide="ignore"):
        return np.asarray(T / B * np.sqrt(np.pi / 2 / strength(p, d, bias)))


def best_repeat(dim: Numbers, bias: bool = False) -> Times:
    """The p whose attention takes off first if it stays: 1; with a `bias` 1/2 - 3/2d, or 0 for up
    to three dimensions."""
    d = np.asarray(dim, np.float64)
    return np.asarray(np.maximum(0.5 - 1.5 / d, 0.0) if bias else np.ones_like(d))


class _Learned(NamedTuple):
    """At an attention time s of constant repetition, to leading order: what matters for what
    comes."""

    logit: Times  # Δa
    overlap: Times  # x, of the map with the target map in all directions alike


def _learned(cell: Cell, s: Times, bias: bool) -> _Learned:
    _, d, _, p = (np.asarray(part, np.float64) for part in cell)
    trace = 1 - bias * p**2
    return _Learned(np.asarray(strength(p, d, bias) * s**2 / 2), np.asarray(s * trace / np.sqrt(d)))


def _attention_time(cell: Cell, at: Numbers, bias: bool) -> Times:
    """The attention time at a flow time before take-off; infinite after it."""
    _, d, _, p = (np.asarray(part, np.float64) for part in cell)
    Q = strength(p, d, bias)
    plain = np.asarray(at, np.float64) * cell.burst / cell.length
    with np.errstate(divide="ignore", invalid="ignore"):
        s = np.sqrt(2 / Q) * erfinv(np.minimum(np.asarray(at) / takeoff_time(cell, bias), 1.0))
    return np.where(Q > 0, s, plain)  # nothing is learned: attention stays what it is


def time_left(cell: Cell, attention: Numbers, bias: bool = False) -> Times:
    r"""From the end of cross-sample repetition, at attention $A_s$, to take-off: $\frac{\sqrt
    d}{A_s}\,m(x)$ with Mills' ratio m and $x = \tau\sqrt{2\ln(A_sT/B)/Qd}$, where $\tau$ is 1, and
    with a `bias` $1 - p^2$. Leading order in small $A_s$."""
    T, d, B, p = (np.asarray(part, np.float64) for part in cell)
    A = checked_numbers("attention", attention, "above 0 and below 1", lambda a: (a > 0) & (a < 1))
    if (A < B / T * (1 - 1e-9)).any():
        raise InputError(f"attention begins at burst/length = {np.min(B / T):g}; got {A.min():g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        s = np.sqrt(2 * np.log(np.maximum(A * T / B, 1)) / strength(p, d, bias))
    return np.asarray(
        np.sqrt(d) / A * mills_ratio(_learned(cell, np.asarray(np.nan_to_num(s)), bias).overlap)
    )


def switched_takeoff(cell: Cell, at: Numbers, bias: bool = False) -> Times:
    """When attention takes off if cross-sample repetition ends at flow time `at`, to leading
    order."""
    s = _attention_time(cell, at, bias)
    start = takeoff_time(cell, bias)
    known = _learned(cell, np.where(np.isfinite(s), s, 0), bias)
    left = (
        cell.length
        / cell.burst
        * np.exp(-known.logit)
        * np.sqrt(cell.dim)
        * mills_ratio(known.overlap)
    )
    return np.where(np.asarray(at) < start, np.asarray(at) + left, start)


def cost_of_early(cell: Cell, at: Numbers, bias: bool = False) -> Times:
    r"""How many units of time one unit costs by which cross-sample repetition ends earlier than
    `at`, before take-off: $(Qd/\tau - \tau)\,x\,m(x) + \tau - 1$. After take-off, one unit too late
    costs p."""
    _, d, _, p = (np.asarray(part, np.float64) for part in cell)
    trace = 1 - bias * p**2
    x = _learned(cell, _attention_time(cell, at, bias), bias).overlap
    with np.errstate(divide="ignore", invalid="ignore"):
        pull = np.where(trace > 0, strength(p, d, bias) * d / trace - trace, 0.0)
        return np.asarray(np.where(x > 0, pull * x * mills_ratio(x), 0.0) + trace - 1)


def dropped_takeoff(cell: Cell, at: Numbers) -> Times:
    r"""When attention takes off if in-context repetition falls from B to 1 at flow time `at`: $B
    t_B - (B-1)\,t$, with $t_B$ the take-off time of B kept. Leading order, no cross-sample
    repetition: every unit too early costs B - 1."""
    kept = takeoff_time(cell._replace(repeat=np.zeros_like(np.asarray(cell.repeat, np.float64))))
    return np.asarray(
        cell.burst * kept - (cell.burst - 1) * np.minimum(np.asarray(at, np.float64), kept)
    )


class Switched(NamedTuple):
    """The flow under repetition that changes once."""

    takeoff: Times  # when attention on the relevant tokens came to one half
    plateau: Times  # when the test loss came to the threshold
    censored: Bool[np.ndarray, "*cells"]  # whether one of them was not seen within the horizon


@partial(jax.jit, compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, 0, 0, None))
def _until(
    before: Cell,
    after: Cell,
    takeoff: Array,
    at: Array,
    bias: Array,
    unit: Array,
    horizon: Array,
    threshold: Array,
):
    """When attention takes off or else the plateau ends. The state is that of the flow, the bias
    and the time."""

    def cell_at(y: Array) -> Cell:
        return jax.tree.map(lambda one, other: jnp.where(y[-1] < at, one, other), before, after)

    def velocity(y: Array) -> Array:
        cell = cell_at(y)
        v = y[0]
        b = y[3]
        A = relevant_attention(y[2], cell)
        # The bias adds p b (A v - 1) + b²/2 to the loss: v is the weight in the repeated direction,
        # whose target is 1.
        pull = bias * cell.repeat * b
        moved = field(y[:3], cell) - jnp.stack([A * pull, jnp.zeros(()), A * (1 - A) * pull * v])
        return jnp.append(moved, jnp.stack([-bias * (b + cell.repeat * (A * v - 1)), jnp.ones(())]))

    def remaining(y: Array) -> Array:
        diverse = after._replace(burst=jnp.minimum(before.burst, after.burst))
        loss = (test_loss(y[:3], diverse) + y[3] ** 2 / 2) / test_loss(jnp.zeros(3), diverse)
        return jnp.where(
            takeoff, TAKEN_OFF - relevant_attention(y[2], cell_at(y)), loss - threshold
        )

    return escape(
        velocity,
        lambda y: relevant_attention(y[2], cell_at(y)),
        remaining,
        jnp.zeros(5),
        unit,
        horizon,
        MOST_STEPS,
    )


def switched(
    before: Cell,
    after: Cell,
    at: Numbers,
    bias: bool = False,
    threshold: float = THRESHOLD,
    horizon: float | None = None,
) -> Switched:
    """Integrates the reduced flow whose repetition is that of `before` until flow time `at`, and
    that of `after` from then on; with a `bias`, the model has one for its output. The test has no
    cross-sample repetition and the smaller of the two bursts. The horizon is by default ten times
    the plateau without repetition."""
    if np.any(np.asarray(before.length) != after.length) or np.any(
        np.asarray(before.dim) != after.dim
    ):
        raise InputError(
            "before and after must have the same lengths and dims; only repetition changes"
        )
    times = checked_numbers("at", at, "a flow time of at least 0", lambda t: t >= 0)
    *parts, times = np.broadcast_arrays(*before, *after, times)
    one, other = (cells(*parts[i : i + 4]).flat() for i in (0, 4))
    none = (
        takeoff_time(one._replace(repeat=0 * one.repeat, burst=np.ones_like(one.burst))) + one.dim
    )
    limit = 10 * none if horizon is None else np.full_like(none, horizon)
    count = 2 * limit.size
    size = 16
    while size < count:  # a few sizes, so that few programs are compiled
        size *= 4
    numbers = (
        np.minimum(np.ravel(times), 2 * limit),
        np.full_like(limit, bias),
        none / one.length,
        limit,
    )
    twice = jax.tree.map(
        lambda a: np.resize(a, size), (one, other, np.repeat([True, False], limit.size), *numbers)
    )
    with float64():
        time, reached, _ = (
            np.asarray(a)[:count].reshape(2, *times.shape) for a in _until(*twice, threshold)
        )
    return Switched(time[0], time[1], np.asarray(~reached.all(0)))
