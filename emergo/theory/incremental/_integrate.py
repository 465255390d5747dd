"""The flows integrated: many initial scales and seeds in one compiled call, and the growth of differences for scales too small
to be seen in float64."""

from functools import partial
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._errors import InputError
from ...tasks import Groups
from .._cells import Numbers
from .._flow import COMPILER
from .._precision import float64
from ._closed_form import check_heads
from ._heads import Flow, Heads, attention, check_flow, loss, pull, residual, start, target

# Heads that differ by 1e-12 take the same steps, so that the errors of the solver are the same for all of them and their
# differences are right far below the tolerance.
_RTOL, _ATOL, _MOST_STEPS = 1e-9, 1e-12, 2_000_000


class Path(NamedTuple):
    """A flow at the sampled times; leading axes are those of the initial scales and seeds."""

    time: Float[np.ndarray, " times"]
    values: Float[np.ndarray, "*cells times heads groups"]
    attention: Float[np.ndarray, "*cells times heads length"]
    loss: Float[np.ndarray, "*cells times"]


def _check_times(times: Numbers) -> Float[np.ndarray, " times"]:
    found = np.asarray(times, np.float64)
    if found.ndim != 1 or len(found) < 2 or not (np.diff(found) > 0).all() or not found[0] >= 0 or not np.isfinite(found[-1]):
        raise InputError("times must be two or more increasing, finite flow times, none of them negative")
    return found


def _solve(field, y0, times: Float[Array, " times"], observe):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: field(y)),
        diffrax.Tsit5(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=y0,
        saveat=diffrax.SaveAt(ts=times, fn=lambda t, y, args: observe(y)),
        stepsize_controller=diffrax.PIDController(rtol=_RTOL, atol=_ATOL),
        max_steps=_MOST_STEPS,
        throw=False,
    )


@partial(jax.jit, static_argnames=("heads",), compiler_options=COMPILER)
def _follow(heads: int, on_logits, delta, times, scales, seeds):
    # Each head is an array of its own for the solver: its products over an array of all would round equal heads differently.
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
        first = apart(start(heads, delta, scale, seed))
        found = _solve(field, first, times, observe)
        return found.result == diffrax.RESULTS.successful, found.ys

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
    """The flow from values 0 and logits uniform in ± `scale`, at the given times.

    **Arguments:**

    - `groups`: of positions, with their strengths.
    - `times`: increasing flow times.
    - `heads`, `length`: K, and T, which is the window if not given.
    - `flow`: `"logit"` or `"preconditioned"`.
    - `scale`, `seed`: numbers or arrays that broadcast. Below about 1e-13 differences drown in the rounding of float64;
      see [`emergo.theory.incremental.growth`][]. At 0 the heads are and stay the same.
    """
    check_flow(flow)
    check_heads(heads)
    found, delta = _check_times(times), target(groups, length)
    scales, seeds = np.broadcast_arrays(np.asarray(scale, np.float64), np.asarray(seed))
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise InputError("scale must be finite and not negative")
    with float64():
        done, columns = _follow(heads, flow == "logit", delta, found, scales.ravel(), seeds.ravel())
    if not np.all(done):
        raise InputError(f"times reach too far: over {_MOST_STEPS} steps are needed; ask for earlier times")
    values, seen, losses = (np.asarray(c).reshape(*scales.shape, *c.shape[1:]) for c in columns)
    return Path(found, values, seen, losses)


class Growth(NamedTuple):
    """How the smallest difference between heads grows beside the symmetric flow."""

    time: Float[np.ndarray, " times"]
    log: Float[np.ndarray, " times"]
    """Logarithm of the size of a difference over its initial size: of the logits and values together."""
    rate: Float[np.ndarray, " times"]
    """The derivative of `log`."""
    attention: Float[np.ndarray, "times length"]
    """Of all heads alike."""
    loss: Float[np.ndarray, " times"]


@partial(jax.jit, compiler_options=COMPILER)
def _grow(heads, on_logits, delta, times, direction):
    def common(head: Heads) -> Float[Array, "groups length"]:
        return delta - heads * head.values[:, None] * attention(head)[None, :]

    def field(y):
        head, difference, _ = y
        rest = common(head)
        # The residual is the same for all heads and, to first order, a difference that sums to 0 does not change it.
        moved, change = jax.jvp(lambda h: pull(h, rest, on_logits), (head,), (difference,))
        rate = sum(jnp.sum(a * b) for a, b in zip(difference, change, strict=True))
        return moved, jax.tree.map(lambda c, d: c - rate * d, change, difference), rate

    groups, length = delta.shape
    zero = Heads(jnp.zeros(groups), jnp.zeros(length))
    first = Heads(jnp.zeros(groups), direction / jnp.linalg.norm(direction))

    def observe(y):
        return y[2], field(y)[2], attention(y[0]), 0.5 * jnp.sum(common(y[0]) ** 2)

    found = _solve(field, (zero, first, jnp.zeros(())), times, observe)
    return found.result == diffrax.RESULTS.successful, found.ys


def growth(
    groups: Groups, times: Numbers, heads: int = 3, length: int | None = None, flow: Flow = "logit", seed: int = 0
) -> Growth:
    r"""The flow of identical heads and, linearised around it, an infinitesimal difference between them.

    The difference is kept at size 1 and its logarithm integrated, so that growth by $10^{100}$ and more can be followed. An
    initial scale $s$ ends the symmetric plateau about when `log` reaches $\log(1/s)$.
    """
    check_flow(flow)
    check_heads(heads)
    found, delta = _check_times(times), target(groups, length)
    with float64():
        direction = start(1, delta, 1.0, seed).logits[0]
        done, columns = _grow(heads, flow == "logit", delta, found, direction - direction.mean())
    if not done:
        raise InputError(f"times reach too far: over {_MOST_STEPS} steps are needed; ask for earlier times")
    return Growth(found, *(np.asarray(c) for c in columns))


def stage_times(path: Path, levels: Float[np.ndarray, " levels"]) -> Float[np.ndarray, "*cells stages"]:
    """When the loss has done half of each drop between `levels`, those of [`emergo.theory.incremental.plateaus`][].

    Interpolated between the times of the path; NaN where it is not reached.
    """
    halves = (levels[1:] + levels[:-1]) / 2
    rows = path.loss.reshape(-1, path.loss.shape[-1])
    found = np.full((len(rows), len(halves)), np.nan)
    for row, out in zip(rows, found, strict=True):
        for k, half in enumerate(halves):
            if (row <= half).any():
                i = int(np.argmax(row <= half))
                out[k] = path.time[0] if i == 0 else np.interp(-half, -row[i - 1 : i + 1], path.time[i - 1 : i + 1])
    return found.reshape(*path.loss.shape[:-1], len(halves))
