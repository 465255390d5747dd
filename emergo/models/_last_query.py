"""What one query, of the last position, takes from a stream of all of them.

The stream is read three times: its last position, inner products with it, and a sum with weights. As each read is of few
vectors, so is the gradient: of 2 heads + 1 products of a vector over positions with one over features, one matrix product gives
it at once. Written by hand, since otherwise every read has a gradient of the stream's size, and these are added.

The MLP below can be part of it. Behind it the gradient has so few vectors, and two of the MLP's four products in the backward
pass become small: these vectors go through its second map, and hidden features are summed with them. Nor is its output formed
(`BehindMlp`). Of six large products three are left. On a GPU bytes decide, and there kernels read the stream
and have its gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._products import Linear, over_rows, rows
from ._stream import BehindMlp, Stream, Unadded

Positions = Float[Array, "n length width"]
Mlp = tuple[Linear, Linear] | None
OverPositions = Float[Array, "n vectors length"]
OverFeatures = Float[Array, "n vectors width"]
Hidden = Float[Array, "n length hidden"]
Up = Float[Array, "width hidden"]
Down = Float[Array, "hidden width"]
MlpGradient = tuple[Positions, Hidden, Float[Array, "n vectors hidden"], Float[Array, " hidden"] | None]
Back = Callable[..., MlpGradient]
Weights = Float[Array, "n heads length"]
Taken = Float[Array, "n heads width"]
Parts = tuple[Float[Array, "n length _"], ...]
Last = tuple[Float[Array, "n width"], Taken, Weights]


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


class Reads(Protocol):
    """The module of kernels for reads of the stream (`_read_kernels.py`)."""

    def read(self, probe: Taken, parts: Parts) -> tuple[Weights, Taken]: ...

    def read_back(
        self, weights: Weights, taken: Taken, by_weights: Weights, by_taken: Taken, parts: Parts
    ) -> tuple[Weights, Taken]: ...


class Kernels(NamedTuple):
    """What takes the place of operations on a GPU, where it applies."""

    mlp_back: Back | None = None  # of the function of this name
    reads: Reads | None = None  # where weights are a softmax of scores and nothing else; with an MLP, only beside the first


def _last_query(
    ask: Callable[..., Any], weigh: Callable[..., Any], kernels: Kernels, layer: Any, mlp: Mlp, x: Positions | Unformed
) -> Last:
    """The last position, sums of the stream with the weights of its query, and these. `ask(layer, last)` returns what inner
    products are taken with, and what is added to them; `weigh(layer, scores)` weights. Neither may depend on anything else that
    is differentiated. `mlp`: the stream is x and what this MLP with a ReLU adds to it. x may be unformed where there is an MLP
    and a kernel for its gradient."""
    return _forward(ask, weigh, kernels, layer, mlp, x)[0]


def _forward(
    ask: Callable[..., Any], weigh: Callable[..., Any], kernels: Kernels, layer: Any, mlp: Mlp, x: Positions | Unformed
) -> tuple[Last, Any]:
    unformed, x = (None, x) if isinstance(x, Array) else (x, x.formed(ones=True))
    stream, hidden = _behind(kernels, mlp, x)
    last = stream.last()
    (probe, constant), back_to_last = jax.vjp(ask, layer, last)
    if kernels.reads is not None:  # what all scores share, a softmax does not see
        weights, sums = kernels.reads.read(probe, stream.parts)
        taken, back_to_scores = (sums + stream.bias).astype(x.dtype), sums
    else:
        weights, back_to_scores = jax.vjp(weigh, layer, stream.against(probe) + constant)
        taken = stream.gather(weights.astype(x.dtype))
    return (last, taken, weights), (unformed, x, hidden, mlp, stream, probe, weights, back_to_last, back_to_scores)


def _backward(
    ask: Callable[..., Any], weigh: Callable[..., Any], kernels: Kernels, saved: Any, g: Last
) -> tuple[Any, Any, Positions | Unformed]:
    unformed, x, hidden, mlp, stream, probe, weights, back_to_last, back_to_scores = saved
    by_last, by_taken, by_weights = g
    if kernels.reads is not None:
        by_scores, by_probe = kernels.reads.read_back(weights, back_to_scores, by_weights, by_taken, stream.parts)
        by_layer, also_by_last = back_to_last((by_probe, jnp.zeros_like(weights[..., :1])))
    else:
        by_layer, by_scores = back_to_scores(by_weights + stream.against(by_taken).astype(weights.dtype))
        by_constant, by_scores = by_scores.sum(-1, keepdims=True), by_scores.astype(x.dtype)
        also_by_layer, also_by_last = back_to_last((stream.gather(by_scores), by_constant))
        by_layer = jax.tree.map(jnp.add, by_layer, also_by_layer)
    at_last = jnp.zeros_like(weights, x.dtype, shape=(len(x), 1, x.shape[1])).at[..., -1].set(1)
    over_positions = _stacked(by_scores, weights.astype(x.dtype), at_last)
    over_features = _stacked(probe, by_taken, (by_last + also_by_last)[:, None])
    over_positions, over_features = jax.lax.optimization_barrier((over_positions, over_features))
    if mlp is None:
        by_x, by_mlp = jnp.einsum("nkt,nkw->ntw", over_positions, over_features), None
    else:
        (up, _), (down, _) = mlp
        back = kernels.mlp_back or mlp_back
        by_x, by_hidden, sums, by_up_bias = back(over_positions, over_features, hidden, up, down, unformed is None)
        by_up, by_down_bias = over_rows(x, by_hidden), jnp.einsum("nk,nkw->w", over_positions.sum(-1), over_features)
        by_up = Linear(by_up[: len(up)], by_up[len(up)] if by_up_bias is None else by_up_bias)
        by_mlp = by_up, Linear(over_rows(sums, over_features), by_down_bias)
    return by_layer, by_mlp, by_x if unformed is None else unformed.back(by_x)


def _behind(kernels: Kernels, mlp: Mlp, x: Float[Array, "n length columns"]) -> tuple[Any, Hidden | None]:
    """The stream behind the MLP, as it is to be read, and hidden features."""
    if mlp is None:
        return Stream(x), None
    up, down = mlp
    hidden = jnp.maximum(_first_map(up, x), 0)
    if kernels.mlp_back is None:
        return BehindMlp(x, hidden, down), hidden
    # Kernels read what is in memory: XLA is to write hidden features once, and not what they are made of.
    hidden = jax.lax.optimization_barrier(hidden)
    parts = Unadded(x, rows(hidden, down.weight), down.bias)
    return parts if kernels.reads else Stream(jax.lax.optimization_barrier(parts.sum())), hidden


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
