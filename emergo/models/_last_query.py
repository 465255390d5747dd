"""What one query, of the last position, takes from a stream of all of them.

The stream is read three times: its last position, inner products with it, and a sum with weights. As each read is of few
vectors, so is the gradient: of 2 heads + 1 products of a vector over positions with one over features, one matrix product gives
it at once. Written by hand, since otherwise every read has a gradient of the stream's size, and these are added.

The MLP below can be part of it. Behind it the gradient has so few vectors, and two of the MLP's four products in the backward
pass become small: these vectors go through its second map, and hidden features are summed with them. Nor is its output formed
(`BehindMlp`). Of six large products three are left. On a GPU bytes decide, and there a kernel has the gradient.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._products import Linear, over_rows, rows
from ._stream import BehindMlp, Stream

Positions = Float[Array, "n length width"]
Mlp = tuple[Linear, Linear] | None
OverPositions = Float[Array, "n vectors length"]
OverFeatures = Float[Array, "n vectors width"]
Hidden = Float[Array, "n length hidden"]
Up = Float[Array, "width hidden"]
Down = Float[Array, "hidden width"]
MlpGradient = tuple[Positions, Hidden, Float[Array, "n vectors hidden"], Float[Array, " hidden"] | None]
Back = Callable[..., MlpGradient]
Last = tuple[Float[Array, "n width"], Float[Array, "n heads width"], Float[Array, "n heads length"]]


@runtime_checkable
class Unformed(Protocol):
    """A stream in parts. It is formed with a column of ones, and zeros, behind its features, so that the MLP can have its first
    bias as a row of its first map; `back` gives the gradient of the parts."""

    def formed(self, ones: bool) -> Float[Array, "n length columns"]: ...

    def back(self, g: Positions) -> "Unformed": ...


def mlp_back(
    over_positions: OverPositions, over_features: OverFeatures, hidden: Hidden, up: Up, down: Down, bias: bool = True
) -> MlpGradient:
    """From the vectors of the gradient behind an MLP with a skip connection: the gradient of what it reads and of its hidden
    features before the ReLU, sums of these features with the vectors over positions, and, with `bias`, the gradient of the
    first bias."""
    by_hidden = jnp.einsum("nkt,nkh->nth", over_positions, rows(over_features, down.T))
    by_hidden = jnp.where(hidden > 0, by_hidden, 0)
    by_x = jnp.einsum("nkt,nkw->ntw", over_positions, over_features) + rows(by_hidden, up.T)
    return by_x, by_hidden, jnp.einsum("nkt,nth->nkh", over_positions, hidden), by_hidden.sum((0, 1)) if bias else None


def _last_query(
    ask: Callable[..., Any], weigh: Callable[..., Any], back: Back, layer: Any, mlp: Mlp, x: Positions | Unformed
) -> Last:
    """The last position, sums of the stream with the weights of its query, and these. `ask(layer, last)` returns what inner
    products are taken with, and what is added to them; `weigh(layer, scores)` weights. Neither may depend on anything else that
    is differentiated. `mlp`: the stream is x and what this MLP with a ReLU adds to it; `back`: `mlp_back` or a kernel. x may be
    unformed where there is an MLP and a kernel."""
    return _forward(ask, weigh, back, layer, mlp, x)[0]


def _forward(
    ask: Callable[..., Any], weigh: Callable[..., Any], back: Back, layer: Any, mlp: Mlp, x: Positions | Unformed
) -> tuple[Last, Any]:
    parts, x = (None, x) if isinstance(x, Array) else (x, x.formed(ones=True))
    hidden, stream = None, Stream(x)
    if mlp is not None:
        up, down = mlp
        hidden = jnp.maximum(_first_map(up, x), 0)
        if back is mlp_back:
            stream = BehindMlp(x, hidden, down)
        else:  # a kernel reads hidden features from memory: XLA is to write them once, and not what they are made of
            hidden = jax.lax.optimization_barrier(hidden)
            stream = Stream(jax.lax.optimization_barrier(x[..., : len(up.weight)] + down(hidden)))
    last = stream.last()
    (probe, constant), back_to_last = jax.vjp(ask, layer, last)
    weights, back_to_scores = jax.vjp(weigh, layer, stream.against(probe) + constant)
    taken = stream.gather(weights.astype(x.dtype))
    return (last, taken, weights), (parts, x, hidden, mlp, stream, probe, weights, back_to_last, back_to_scores)


def _backward(
    ask: Callable[..., Any], weigh: Callable[..., Any], back: Back, saved: Any, g: Last
) -> tuple[Any, Any, Positions | Unformed]:
    parts, x, hidden, mlp, stream, probe, weights, back_to_last, back_to_scores = saved
    by_last, by_taken, by_weights = g
    by_layer, by_scores = back_to_scores(by_weights + stream.against(by_taken).astype(weights.dtype))
    by_constant, by_scores = by_scores.sum(-1, keepdims=True), by_scores.astype(x.dtype)
    also_by_layer, also_by_last = back_to_last((stream.gather(by_scores), by_constant))
    at_last = jnp.zeros_like(weights, x.dtype, shape=(len(x), 1, x.shape[1])).at[..., -1].set(1)
    over_positions = _stacked(by_scores, weights.astype(x.dtype), at_last)
    over_features = _stacked(probe, by_taken, (by_last + also_by_last)[:, None])
    over_positions, over_features = jax.lax.optimization_barrier((over_positions, over_features))
    if mlp is None:
        by_x, by_mlp = jnp.einsum("nkt,nkw->ntw", over_positions, over_features), None
    else:
        (up, _), (down, _) = mlp
        by_x, by_hidden, sums, by_up_bias = back(over_positions, over_features, hidden, up, down, parts is None)
        by_up, by_down_bias = over_rows(x, by_hidden), jnp.einsum("nk,nkw->w", over_positions.sum(-1), over_features)
        by_up = Linear(by_up[: len(up)], by_up[len(up)] if by_up_bias is None else by_up_bias)
        by_mlp = by_up, Linear(over_rows(sums, over_features), by_down_bias)
    return jax.tree.map(jnp.add, by_layer, also_by_layer), by_mlp, by_x if parts is None else parts.back(by_x)


def _first_map(up: Linear, x: Float[Array, "n length columns"]) -> Hidden:
    """The first map of an MLP, as one product where x has a column of ones behind its features."""
    if spare := x.shape[-1] - len(up.weight):
        return rows(x, jnp.pad(jnp.concatenate([up.weight, up.bias[None]]), ((0, spare - 1), (0, 0))))
    return up(x)


def _stacked(*parts: Float[Array, "n _ columns"]) -> Float[Array, "n vectors columns"]:
    """The vectors of all parts; in 16 bits filled up to what a GPU multiplies at least."""
    vectors = jnp.concatenate(parts, 1)
    spare = -vectors.shape[1] % 16 if vectors.dtype == jnp.bfloat16 else 0
    return jnp.pad(vectors, ((0, 0), (0, spare), (0, 0)))


last_query = jax.custom_vjp(_last_query, nondiff_argnums=(0, 1, 2))
last_query.defvjp(_forward, _backward)
