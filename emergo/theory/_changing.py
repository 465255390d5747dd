r"""Repetition that changes during training, and an output bias: closed forms and the reduced flow.

While attention is small, every direction grows at $\sigma_i c_i$ in attention time, $\mathrm ds =
A\,\mathrm dt$. So $\Delta a = |v|^2/2$ for *any* schedule of the repetition: attention depends only
on what is known of the map. A bias of the output learns the mean of the repeated token. Attention
then sees its variance, $p(1-p)$, instead of its second moment $p$. Derived in `docs/theory.md`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._cells import Cell, Numbers, cells, checked_numbers
from ._closed_form import mills_ratio, strength
from ._flow import COMPILER, THRESHOLD, call_in_float64, escape, field
from ._reduced import relevant_attention, test_loss

TAKEN_OFF = 0.5
"""Attention has taken off at this value by default."""
Times = Float[np.ndarray, "*cells"]


def takeoff_time(cell: Cell, bias: bool = False) -> Times:
    r"""Return the time at which attention takes off under constant repetition.

    It is $\frac TB\sqrt{\pi/2Q}$ to leading order; infinite with a `bias` and p = 1.
    """
    T, d, B, p = (np.asarray(part, np.float64) for part in cell)
    with np.errstate(divide="ignore"):
        return np.asarray(T / B * np.sqrt(np.pi / 2 / strength(p, d, bias)))


def switched_takeoff(cell: Cell, at: Numbers, bias: bool = False) -> Times:
    """Return the time at which attention takes off if cross-sample repetition ends at time `at`.

    Leading order. With a `bias`, the model has one for its output.
    """
    from scipy.special import erfinv  # here, because it is slow to import

    T, d, B, p = (np.asarray(part, np.float64) for part in cell)
    switch = np.asarray(at, np.float64)
    unswitched = takeoff_time(cell, bias)
    Q = strength(p, d, bias)
    with np.errstate(divide="ignore", invalid="ignore"):
        s = np.sqrt(2 / Q) * erfinv(np.minimum(switch / unswitched, 1.0))
    # The attention time at the switch. If Q is 0, attention does not grow before the switch.
    s = np.where(Q > 0, s, switch * B / T)
    s = np.where(np.isfinite(s), s, 0)
    logit = Q * s**2 / 2
    overlap = s * (1 - bias * p**2) / np.sqrt(d)  # of what is known with the whole target map
    left = T / B * np.exp(-logit) * np.sqrt(d) * mills_ratio(overlap)
    return np.where(switch < unswitched, switch + left, unswitched)


class Switched(NamedTuple):
    """The flow under repetition that changes once."""

    takeoff: Times  # time at which attention on the relevant tokens has taken off
    plateau: Times  # time at which the test loss reaches the threshold
    censored: Bool[np.ndarray, "*cells"]  # True if either is beyond the horizon


@partial(jax.jit, compiler_options=COMPILER)
@partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, 0, 0, 0, None))
def _until(
    before: Cell,
    after: Cell,
    takeoff: Array,
    at: Array,
    bias: Array,
    unit: Array,
    horizon: Array,
    level: Array,
    threshold: Array,
):
    """Integrate until attention takes off (if `takeoff`) or until the plateau ends.

    The state consists of the flow's state, the bias and the time.
    """

    def cell_at(y: Array) -> Cell:
        return jax.tree.map(lambda one, other: jnp.where(y[-1] < at, one, other), before, after)

    def velocity(y: Array) -> Array:
        cell = cell_at(y)
        v = y[0]
        b = y[3]
        A = relevant_attention(y[2], cell)
        # The bias adds p b (A v - 1) + b²/2 to the loss, where v is the weight in the repeated
        # direction, whose target is 1.
        pull = bias * cell.repeat * b
        moved = field(y[:3], cell) - jnp.stack([A * pull, jnp.zeros(()), A * (1 - A) * pull * v])
        return jnp.append(moved, jnp.stack([-bias * (b + cell.repeat * (A * v - 1)), jnp.ones(())]))

    def remaining(y: Array) -> Array:
        diverse = after._replace(burst=jnp.minimum(before.burst, after.burst))
        loss = (test_loss(y[:3], diverse) + y[3] ** 2 / 2) / test_loss(jnp.zeros(3), diverse)
        return jnp.where(takeoff, level - attention(y), loss - threshold)

    def attention(y: Array) -> Array:
        return relevant_attention(y[2], cell_at(y))

    return escape(velocity, attention, remaining, jnp.zeros(5), unit, horizon)


def switched(
    before: Cell,
    after: Cell,
    at: Numbers,
    bias: bool = False,
    threshold: float = THRESHOLD,
    horizon: float | None = None,
    level: float = TAKEN_OFF,
) -> Switched:
    """Integrate the reduced flow with repetition that changes once.

    **Arguments:**

    - `before`, `after`: cells with the repetition until flow time `at`, and from then on. They have
      the same lengths and dims.
    - `at`: flow time of the switch.
    - `bias`: give the model a bias for its output.
    - `threshold`: the plateau ends at this share of the initial test loss. The test has no
      cross-sample repetition, and the smaller of the two bursts.
    - `horizon`: last flow time; by default ten times the plateau without repetition.
    - `level`: attention has taken off at this value.
    """
    times = checked_numbers("at", at, "a flow time of at least 0", lambda t: t >= 0)
    *parts, times = np.broadcast_arrays(*before, *after, times)
    one, other = (cells(*parts[i : i + 4]).flat() for i in (0, 4))
    none = (
        takeoff_time(one._replace(repeat=0 * one.repeat, burst=np.ones_like(one.burst))) + one.dim
    )
    limit = 10 * none if horizon is None else np.full_like(none, horizon)
    switch = np.minimum(np.ravel(times), 2 * limit)
    numbers = (switch, np.full_like(limit, bias), none / one.length, limit)
    numbers += (np.full_like(limit, level),)
    # The first half of the rows runs until attention takes off, the second until the plateau ends.
    columns = (one, other, np.zeros(limit.size, bool), *numbers)
    twice = jax.tree.map(lambda a: np.tile(a, 2), columns)
    twice[2][: limit.size] = True
    time, reached, _ = (
        a.reshape(2, *times.shape) for a in call_in_float64(_until, 16, twice, threshold)
    )
    return Switched(time[0], time[1], np.asarray(~reached.all(0)))
