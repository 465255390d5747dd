r"""Attention heads that share a target: the loss and its two flows (yuksel2026).

Head k has attention $s_k = \mathrm{softmax}(a_k)$ over T positions and a value vector $V_k$. The
loss is half the squared norm of $R = \Delta - \sum_k V_k s_k^\top$, where column i of $\Delta$ is
$\alpha_i m_j e_j$ for a position i of group j and 0 for others. The $e_j$ are orthonormal, and
values that start at 0 stay in their span. So a value vector is stored as its coordinates, one per
group. Then $\dot V_k = R s_k$. With $J(s) = \mathrm{diag}(s) - s s^\top$ the two flows are:

- `"logit"`: gradient flow on the logits, $\dot a_k = J(s_k) R^\top V_k$;
- `"preconditioned"`: $\dot a_k = R^\top V_k$, the natural gradient in the geometry of the entropy,
  which the paper simulates.

Functions of `Heads` are plain JAX and follow the dtype of their input.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import InputError
from ...core.random import uniform
from ...tasks import Groups
from .._cells import Numbers, checked_numbers
from .._closed_form import check_flow
from .._flow import COMPILER, check_done, check_times
from .._integrate import sample
from .._reduced import float64

Flow = Literal["logit", "preconditioned"]
Target = Float[Array, "groups length"] | Float[np.ndarray, "groups length"]


class Heads(NamedTuple):
    """The state of the flow: values and attention logits of each head."""

    values: Float[Array, "*heads groups"]  # coordinates of $V_k$ along the targets of the groups
    logits: Float[Array, "*heads length"]


def target(groups: Groups, length: int | None = None) -> Float[np.ndarray, "groups length"]:
    r"""Return $\Delta$: row j holds $m_j\alpha_i$ at the positions of group j, and 0 elsewhere.

    Positions are lags. `length` is at least the window of the groups, which is the default.
    """
    length = groups.window if length is None else length
    if length < groups.window:
        raise InputError(f"length must be at least the window, {groups.window}, got {length}")
    return np.pad(groups.strengths[:, None] * groups.mixing, ((0, 0), (0, length - groups.window)))


def checked_target(
    groups: Groups, length: int | None, heads: int, flow: Flow = "logit"
) -> Float[np.ndarray, "groups length"]:
    """Check the number of heads and the flow, and return the target."""
    check_flow(flow, get_args(Flow))
    if heads < 1:
        raise InputError(f"heads must be at least 1, got {heads}")
    return target(groups, length)


def start(heads: int, delta: Target, scale: float | Array, seed: int | Array) -> Heads:
    """Return an initial state with values 0 and logits uniform in ± `scale`.

    If the scale is 0, all heads are equal.
    """
    groups, length = delta.shape
    key = jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)])
    chance = 2 * uniform(key, heads, length).astype(jnp.asarray(delta).dtype) - 1
    return Heads(jnp.zeros((heads, groups), chance.dtype), scale * chance)


def attention(heads: Heads) -> Float[Array, "*heads length"]:
    return jax.nn.softmax(heads.logits, -1)


def residual(heads: Heads, delta: Target) -> Float[Array, "groups length"]:
    """Return R, the part of the target that is not learned yet.

    It is written as sums, because a matrix product may round equal rows differently.
    """
    return jnp.asarray(delta) - jnp.sum(heads.values[:, :, None] * attention(heads)[:, None, :], 0)


def loss(heads: Heads, delta: Target) -> Float[Array, ""]:
    return 0.5 * jnp.sum(residual(heads, delta) ** 2)


def pull(head: Heads, rest: Float[Array, "groups length"], on_logits: bool | Array) -> Heads:
    """Return the velocity of one or many heads in a given residual.

    `on_logits` selects the flow. It is a number, so that both flows share a program.
    """
    s = attention(head)
    gain = jnp.sum(head.values[..., :, None] * rest, -2)  # R^T V
    gain = jnp.where(on_logits, s * (gain - jnp.sum(s * gain, -1, keepdims=True)), gain)
    return Heads(jnp.sum(rest * s[..., None, :], -1), gain)


def velocity(heads: Heads, delta: Target, flow: Flow = "logit") -> Heads:
    """Return the velocity of the heads.

    In the logit flow it is minus the gradient of [`emergo.theory.incremental.loss`][].
    """
    check_flow(flow, get_args(Flow))
    return pull(heads, residual(heads, delta), flow == "logit")


class Path(NamedTuple):
    """A sampled flow. The leading axes are those of the initial scales and seeds."""

    time: Float[np.ndarray, " times"]
    values: Float[np.ndarray, "*cells times heads groups"]
    attention: Float[np.ndarray, "*cells times heads length"]
    loss: Float[np.ndarray, "*cells times"]


def _solve(field, y0, times: Float[Array, " times"], observe) -> tuple[Any, Any]:
    """Integrate; return True if the last time was reached, and the observations."""
    # Nearly equal heads take the same steps and have the same solver errors. So their differences
    # are correct far below the tolerance.
    return sample(field, y0, times, observe, rtol=1e-9, atol=1e-12)


@partial(jax.jit, static_argnames=("heads",), compiler_options=COMPILER)
def _follow(heads: int, on_logits, delta, times, scales, seeds):
    # The solver gets a separate array per head. Products over one array of all heads would round
    # equal heads differently.
    def apart(y: Heads) -> list[Heads]:
        return [Heads(*(a[k] for a in y)) for k in range(heads)]

    def together(y: list[Heads]) -> Heads:
        return Heads(*(jnp.stack(column) for column in zip(*y, strict=True)))

    def observe(y: list[Heads]):
        whole = together(y)
        return whole.values, attention(whole), loss(whole, delta)

    def field(y: list[Heads]) -> list[Heads]:
        whole = together(y)
        return apart(pull(whole, residual(whole, delta), on_logits))

    def one(scale, seed):
        return _solve(field, apart(start(heads, delta, scale, seed)), times, observe)

    return jax.vmap(one)(scales, seeds)


def trajectory(
    groups: Groups,
    times: Numbers,
    heads: int = 3,
    length: int | None = None,
    flow: Flow = "logit",
    scale: Numbers = 1e-6,
    seed: Numbers = 0,
) -> Path:
    """Sample the flow of several heads.

    **Arguments:**

    - `groups`: the target.
    - `times`: increasing flow times.
    - `heads`: K, the number of heads.
    - `length`: T, the number of positions; by default the window of the groups.
    - `flow`: `"logit"` or `"preconditioned"`.
    - `scale`, `seed`: values start at 0, logits uniform in ± `scale`. Both may be arrays, which
      broadcast. At scale 0 heads stay equal. Below about 1e-13 rounding in float64 hides their
      differences; use [`emergo.theory.incremental.growth`][] then.
    """
    ts = check_times(times)
    delta = checked_target(groups, length, heads, flow)
    checked = checked_numbers(
        "scale", scale, "finite and not negative", lambda s: np.isfinite(s) & (s >= 0)
    )
    scales, seeds = np.broadcast_arrays(checked, np.asarray(seed))
    with float64():
        done, columns = _follow(heads, flow == "logit", delta, ts, scales.ravel(), seeds.ravel())
    check_done(done)
    return Path(ts, *(np.asarray(c).reshape(*scales.shape, *c.shape[1:]) for c in columns))


class Growth(NamedTuple):
    """Growth of an infinitesimal difference between heads along the symmetric flow."""

    time: Float[np.ndarray, " times"]
    # logarithm of the difference's size, logits and values together, over its initial size
    log: Float[np.ndarray, " times"]
    rate: Float[np.ndarray, " times"]  # the derivative of `log`
    attention: Float[np.ndarray, "times length"]  # the same for all heads
    loss: Float[np.ndarray, " times"]


@partial(jax.jit, compiler_options=COMPILER)
def _grow(heads, on_logits, delta, times, direction):
    def common(head: Heads) -> Float[Array, "groups length"]:
        return delta - heads * head.values[:, None] * attention(head)[None, :]

    def field(y):
        head, difference, _ = y
        rest = common(head)
        # The residual is the same for all heads and, to first order, a difference that sums to 0
        # does not change it.
        moved, change = jax.jvp(lambda h: pull(h, rest, on_logits), (head,), (difference,))
        rate = sum(jnp.sum(a * b) for a, b in zip(difference, change, strict=True))
        return moved, jax.tree.map(lambda c, d: c - rate * d, change, difference), rate

    def observe(y):
        return y[2], field(y)[2], attention(y[0]), 0.5 * jnp.sum(common(y[0]) ** 2)

    values, logits = (jnp.zeros(size) for size in delta.shape)
    first = Heads(values, direction / jnp.linalg.norm(direction))
    return _solve(field, (Heads(values, logits), first, jnp.zeros(())), times, observe)


def growth(
    groups: Groups, times: Numbers, heads: int = 3, length: int | None = None, flow: Flow = "logit"
) -> Growth:
    r"""Integrate the flow of identical heads, and the growth of an infinitesimal difference.

    The difference follows the linearised flow. It is kept at size 1 and its logarithm is
    integrated, so that growth by $10^{100}$ and more can be followed. With an initial scale $s$ the
    symmetric plateau ends about when `log` reaches $\log(1/s)$. Arguments are those of
    [`emergo.theory.incremental.trajectory`][].
    """
    ts = check_times(times)
    delta = checked_target(groups, length, heads, flow)
    with float64():
        direction = start(1, delta, 1.0, seed=0).logits[0]
        done, columns = _grow(heads, flow == "logit", delta, ts, direction - direction.mean())
    check_done(done)
    return Growth(ts, *(np.asarray(c) for c in columns))


def stage_times(
    path: Path, levels: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, "*cells stages"]:
    """Return the times at which the loss has completed half of each drop.

    Times are interpolated; NaN if a drop is not reached.

    **Arguments:**

    - `path`: a sampled flow.
    - `levels`: levels of the loss, from [`emergo.theory.incremental.plateaus`][].
    """
    halves = (levels[1:] + levels[:-1]) / 2

    def crossing(losses: np.ndarray, half: float) -> float:
        past = losses <= half
        if not past.any():
            return np.nan
        after = int(np.argmax(past))
        pair = slice(max(after - 1, 0), after + 1)
        return float(np.interp(-half, -losses[pair], path.time[pair]))

    rows = path.loss.reshape(-1, path.loss.shape[-1])
    crossings = [[crossing(row, half) for half in halves] for row in rows]
    return np.reshape(crossings, (*path.loss.shape[:-1], len(halves)))
