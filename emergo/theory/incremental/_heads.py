r"""Attention heads that share a target: the loss, its gradient and the two flows (yuksel2026).

Head k has attention $s_k = \mathrm{softmax}(a_k)$ over T positions and a value vector $V_k$. The loss is

$$L = \tfrac12\Big\lVert \Delta - \sum_k V_k s_k^\top \Big\rVert_F^2, \qquad R = \Delta - \sum_k V_k s_k^\top,$$

where column i of $\Delta$ is $\alpha_i m_j e_j$ for a position i of group j and 0 outside all groups. The $e_j$ are
orthonormal, and values that start at 0 stay in their span: a value vector is its coordinates, one a group. Then
$\dot V_k = R s_k$, and for the attention there are two flows:

- `"logit"`: gradient flow on the logits, $\dot a_k = J(s_k) R^\top V_k$, so $\dot s_k = J(s_k)^2 R^\top V_k$;
- `"preconditioned"`: $\dot a_k = R^\top V_k$, so $\dot s_k = J(s_k) R^\top V_k$, the natural gradient in the geometry of the
  entropy; the paper's simulation.

$J(s) = \mathrm{diag}(s) - s s^\top$. The functions here are plain JAX and follow the dtype of their input.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._errors import InputError, unknown
from ..._random import uniform
from ...tasks import Groups

Flow = Literal["logit", "preconditioned"]
Target = Float[Array, "groups length"] | Float[np.ndarray, "groups length"]


class Heads(NamedTuple):
    """The state: what each head adds and where it looks."""

    values: Float[Array, "*heads groups"]
    """Coordinates of $V_k$ along the targets of the groups."""
    logits: Float[Array, "*heads length"]


def check_flow(flow: str) -> None:
    if flow not in get_args(Flow):
        raise unknown("flow", flow, get_args(Flow))


def target(groups: Groups, length: int | None = None) -> Float[np.ndarray, "groups length"]:
    r"""$\Delta$: row j holds $m_j\alpha_i$ at the positions of group j. Positions are lags; `length` is at least the window."""
    length = groups.window if length is None else length
    if not isinstance(length, int) or isinstance(length, bool) or length < groups.window:
        raise InputError(f"length must be a whole number of at least the window, {groups.window}, got {length!r}")
    return np.pad(groups.strengths[:, None] * groups.mixing, ((0, 0), (0, length - groups.window)))


def start(heads: int, delta: Target, scale: float | Array, seed: int | Array) -> Heads:
    """Values 0, logits uniform in ± `scale`, a function of the seed. Scale 0: all heads the same."""
    groups, length = delta.shape
    key = jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)])
    chance = 2 * uniform(key, heads, length).astype(jnp.asarray(delta).dtype) - 1
    return Heads(jnp.zeros((heads, groups), chance.dtype), scale * chance)


def attention(heads: Heads) -> Float[Array, "*heads length"]:
    return jax.nn.softmax(heads.logits, -1)


def residual(heads: Heads, delta: Target) -> Float[Array, "groups length"]:
    """R: what is not learned yet. Written as sums, since a product may treat equal rows differently in the last bit."""
    return jnp.asarray(delta) - jnp.sum(heads.values[:, :, None] * attention(heads)[:, None, :], 0)


def loss(heads: Heads, delta: Target) -> Float[Array, ""]:
    return 0.5 * jnp.sum(residual(heads, delta) ** 2)


def pull(head: Heads, rest: Float[Array, "groups length"], on_logits: bool | Array) -> Heads:
    """The velocity of heads in a given residual `rest`: of one, or of many, each on its own.

    `on_logits` is the flow as a number, so that one compiled program serves both.
    """
    s = attention(head)
    gain = jnp.sum(head.values[..., :, None] * rest, -2)  # R^T V
    gain = jnp.where(on_logits, s * (gain - jnp.sum(s * gain, -1, keepdims=True)), gain)
    return Heads(jnp.sum(rest * s[..., None, :], -1), gain)


def velocity(heads: Heads, delta: Target, flow: Flow = "logit") -> Heads:
    """How the heads move. In the logit flow it is minus the gradient of [`emergo.theory.incremental.loss`][]."""
    check_flow(flow)
    return pull(heads, residual(heads, delta), flow == "logit")
