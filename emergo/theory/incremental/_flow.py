r"""Attention heads that share a target: the loss, its two flows (yuksel2026), and these integrated.

Head k has attention $s_k = \mathrm{softmax}(a_k)$ over T positions and a value vector $V_k$. The
loss is half the squared norm of $R = \Delta - \sum_k V_k s_k^\top$, where column i of $\Delta$ is
$\alpha_i m_j e_j$ for a position i of group j and 0 for others. The $e_j$ are orthonormal, and
values that start at 0 stay in their span: a value vector is its coordinates, one per group. Then
$\dot V_k = R s_k$, and with $J(s) = \mathrm{diag}(s) - s s^\top$ there are two flows:

- `"logit"`: gradient flow on the logits, $\dot a_k = J(s_k) R^\top V_k$;
- `"preconditioned"`: $\dot a_k = R^\top V_k$, the natural gradient in the geometry of the entropy;
  the paper's simulation.

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
from .._flow import COMPILER, check_times
from .._integrate import MOST_STEPS, sample
from .._reduced import float64

Flow = Literal["logit", "preconditioned"]
Target = Float[Array, "groups length"] | Float[np.ndarray, "groups length"]


class Heads(NamedTuple):
    """The state: what each head adds and where it looks."""

    values: Float[Array, "*heads groups"]  # Coordinates of $V_k$ along the targets of the groups
    logits: Float[Array, "*heads length"]


def target(groups: Groups, length: int | None = None) -> Float[np.ndarray, "groups length"]:
    r"""$\Delta$: row j holds $m_j\alpha_i$ at the positions of group j. Positions are lags;
    `length` is at least the window."""
    length = groups.window if length is None else length
    if not isinstance(length, int) or isinstance(length, bool) or length < groups.window:
        raise InputError(
            f"length must be a whole number of at least the window, {groups.window}, got {length!r}"
        )
    return np.pad(groups.strengths[:, None] * groups.mixing, ((0, 0), (0, length - groups.window)))


def checked_target(
    groups: Groups, length: int | None, heads: int, flow: Flow = "logit"
) -> Float[np.ndarray, "groups length"]:
    """The target, once the number of heads and the flow are checked too."""
    check_flow(flow, get_args(Flow))
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1:
        raise InputError(f"heads must be a whole number of at least 1, got {heads!r}")
    return target(groups, length)


def start(heads: int, delta: Target, scale: float | Array, seed: int | Array) -> Heads:
    """Values 0, logits uniform in ± `scale`, a function of the seed. Scale 0: all heads the
    same."""
    groups, length = delta.shape
    key = jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)])
    chance = 2 * uniform(key, heads, length).astype(jnp.asarray(delta).dtype) - 1
    return Heads(jnp.zeros((heads, groups), chance.dtype), scale * chance)


def attention(heads: Heads) -> Float[Array, "*heads length"]:
    return jax.nn.softmax(heads.logits, -1)


def residual(heads: Heads, delta: Target) -> Float[Array, "groups length"]:
    """R: what is not learned yet. Written as sums, since a product may treat equal rows differently
    in the last bit."""
    return jnp.asarray(delta) - jnp.sum(heads.values[:, :, None] * attention(heads)[:, None, :], 0)


def loss(heads: Heads, delta: Target) -> Float[Array, ""]:
    return 0.5 * jnp.sum(residual(heads, delta) ** 2)


def pull(head: Heads, rest: Float[Array, "groups length"], on_logits: bool | Array) -> Heads:
    """The velocity of one or many heads in a given residual; the flow is a number, so that one
    program serves both."""
    s = attention(head)
    gain = jnp.sum(head.values[..., :, None] * rest, -2)  # R^T V
    gain = jnp.where(on_logits, s * (gain - jnp.sum(s * gain, -1, keepdims=True)), gain)
    return Heads(jnp.sum(rest * s[..., None, :], -1), gain)


def velocity(heads: Heads, delta: Target, flow: Flow = "logit") -> Heads:
    """How the heads move. In the logit flow it is minus the gradient of
    [`emergo.theory.incremental.loss`][]."""
    check_flow(flow, get_args(Flow))
    return pull(heads, residual(heads, delta), flow == "logit")


class Path(NamedTuple):
    """A flow at the sampled times; leading axes are those of the initial scales and seeds."""

    time: Float[np.ndarray, " times"]
    values: Float[np.ndarray, "*cells times heads groups"]
    attention: Float[np.ndarray, "*cells times heads length"]
    loss: Float[np.ndarray, "*cells times"]


def _solve(field, y0, times: Float[Array, " times"], observe) -> tuple[Any, Any]:
    """Whether the flow could be followed to the last time, and what is observed of it at all of
    them."""
    # Heads that differ by 1e-12 take the same steps, so that the errors of the solver are the same
    # for all of them and their differences are right far below the tolerance.
    return sample(field, y0, times, observe, rtol=1e-9, atol=1e-12)


def _check_done(done: Any) -> None:
    if not np.all(done):
        raise InputError(
            f"times reach too far: over {MOST_STEPS} steps are needed; ask for earlier times"
        )


@partial(jax.jit, static_argnames=("heads",), compiler_options=COMPILER)
def _follow(heads: int, on_logits, delta, times, scales, seeds):
    # Each head is an array of its own for the solver: its products over an array of all would round
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
    """The flow of K `heads` over T = `length` positions (the window if not given), at increasing
    flow times. Values start at 0 and logits uniform in ± `scale`; `scale` and `seed` are numbers or
    arrays that broadcast. Below about 1e-13 differences drown in the rounding of float64 (see
    [`emergo.theory.incremental.growth`][]); at 0 the heads stay equal."""
    ts = check_times(times)
    delta = checked_target(groups, length, heads, flow)
    checked = checked_numbers(
        "scale", scale, "finite and not negative", lambda s: np.isfinite(s) & (s >= 0)
    )
    scales, seeds = np.broadcast_arrays(checked, np.asarray(seed))
    with float64():
        done, columns = _follow(heads, flow == "logit", delta, ts, scales.ravel(), seeds.ravel())
    _check_done(done)
    return Path(ts, *(np.asarray(c).reshape(*scales.shape, *c.shape[1:]) for c in columns))


class Growth(NamedTuple):
    """How the smallest difference between heads grows beside the symmetric flow."""

    time: Float[np.ndarray, " times"]
    log: Float[
        np.ndarray, " times"
    ]  # of the size of a difference, logits and values together, over its initial size
    rate: Float[np.ndarray, " times"]  # the derivative of `log`
    attention: Float[np.ndarray, "times length"]  # of all heads alike
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
    r"""The flow of identical heads and, linearised around it, an infinitesimal difference between
    them. The difference is kept at size 1 and its logarithm integrated, so that growth by
    $10^{100}$ and more can be followed. An initial scale $s$ ends the symmetric plateau about when
    `log` reaches $\log(1/s)$."""
    ts = check_times(times)
    delta = checked_target(groups, length, heads, flow)
    with float64():
        direction = start(1, delta, 1.0, seed=0).logits[0]
        done, columns = _grow(heads, flow == "logit", delta, ts, direction - direction.mean())
    _check_done(done)
    return Growth(ts, *(np.asarray(c) for c in columns))


def stage_times(
    path: Path, levels: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, "*cells stages"]:
    """When the loss has done half of each drop between `levels`, those of
    [`emergo.theory.incremental.plateaus`][]. Interpolated between the times of the path; NaN where
    it is not reached."""
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
