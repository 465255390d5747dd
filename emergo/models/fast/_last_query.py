"""Attention of a single query, at the last position, over a residual stream of all positions.

The stream is read three times: its last position, its inner products with a query vector, and a
weighted sum. Each read involves few vectors, so the gradient of the stream is a sum of
2 heads + 1 outer products of a vector over positions and a vector over features. We write the
gradient by hand as one matrix product. Automatic differentiation would form and add one array of
the stream's size per read.

The MLP below can be included. The gradient after it consists of the same few vectors, so two of
the four products in the MLP's backward pass become small: the vectors are mapped by the second
matrix, and hidden features are summed with them. The MLP's output is never formed (`AfterMlp`).
Three of six large products remain. On a GPU memory traffic decides, and a kernel computes this
gradient (`_mlp_kernel.py`).
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._layers import Linear
from .._products import over_rows, rows
from ._stream import AfterMlp, Stream

Positions = Float[Array, "n length width"]
Mlp = tuple[Linear, Linear] | None
OverPositions = Float[Array, "n vectors length"]
OverFeatures = Float[Array, "n vectors width"]
Hidden = Float[Array, "n length hidden"]
Up = Float[Array, "width hidden"]
Down = Float[Array, "hidden width"]
MlpGradient = tuple[
    Positions, Hidden, Float[Array, "n vectors hidden"], Float[Array, " hidden"] | None
]
MlpBackward = Callable[..., MlpGradient]
Weights = Float[Array, "n heads length"]
Taken = Float[Array, "n heads width"]
Last = tuple[Float[Array, "n width"], Taken, Weights]


@runtime_checkable
class Unformed(Protocol):
    """A stream kept as summands.

    `formed(ones=True)` appends a column of ones, and zeros, to its features, so that the MLP can
    store its first bias as a row of its first map. `back` maps the gradient of the stream to
    gradients of the summands.
    """

    def formed(self, ones: bool) -> Float[Array, "n length columns"]: ...

    def back(self, g: Positions) -> "Unformed": ...


def mlp_back(
    over_positions: OverPositions,
    over_features: OverFeatures,
    hidden: Hidden,
    up: Up,
    down: Down,
    bias: bool = True,
) -> MlpGradient:
    """Backpropagate through an MLP with ReLU and skip connection.

    **Arguments:**

    - `over_positions`, `over_features`: the gradient after the MLP is the sum over vectors of their
      outer products.
    - `hidden`: hidden features after the ReLU.
    - `up`, `down`: weights of the two maps.
    - `bias`: also compute the gradient of the first bias.

    **Returns:** gradients of the MLP's input and of its hidden features before the ReLU, sums of
    the hidden features weighted by `over_positions`, and the gradient of the first bias or None.
    """
    by_hidden = jnp.einsum("nkt,nkh->nth", over_positions, rows(over_features, down.T))
    by_hidden = jnp.where(hidden > 0, by_hidden, 0)
    by_x = jnp.einsum("nkt,nkw->ntw", over_positions, over_features) + rows(by_hidden, up.T)
    sums = jnp.einsum("nkt,nth->nkh", over_positions, hidden)
    return by_x, by_hidden, sums, by_hidden.sum((0, 1)) if bias else None


def _forward(
    query_vector: Callable[..., Any],
    weights_of: Callable[..., Any],
    mlp_backward: MlpBackward | None,
    layer: Any,
    mlp: Mlp,
    x: Positions | Unformed,
) -> tuple[Last, Any]:
    """Attend from the last position.

    **Arguments:**

    - `query_vector(layer, last)`: returns `(vector, constant)`; scores are `stream · vector +
      constant`.
    - `weights_of(layer, scores)`: returns attention weights. Neither function may close over
      anything that is differentiated.
    - `mlp_backward`: a kernel that replaces `mlp_back`, or None.
    - `layer`: parameters passed to both functions.
    - `mlp`: if given, the stream is x plus what this MLP adds to it.
    - `x`: the stream; `Unformed` only together with an MLP and a kernel.

    **Returns:** the last position of the stream, its weighted sums, and the weights; then what the
    backward pass needs.
    """
    unformed = None if isinstance(x, Array) else x
    if not isinstance(x, Array):
        x = x.formed(ones=True)
    stream, hidden = _after_mlp(mlp_backward, mlp, x)
    last = stream.last()
    (vector, constant), back_to_last = jax.vjp(query_vector, layer, last)
    weights, back_to_scores = jax.vjp(weights_of, layer, stream.against(vector) + constant)
    taken = stream.gather(weights.astype(x.dtype))
    saved = (unformed, x, hidden, mlp, stream, vector, weights, back_to_last, back_to_scores)
    return (last, taken, weights), saved


def _backward(
    query_vector: Callable[..., Any],
    weights_of: Callable[..., Any],
    mlp_backward: MlpBackward | None,
    saved: Any,
    g: Last,
) -> tuple[Any, Any, Positions | Unformed]:
    unformed, x, hidden, mlp, stream, vector, weights, back_to_last, back_to_scores = saved
    by_last, by_taken, by_weights = g
    by_weights = by_weights + stream.against(by_taken).astype(weights.dtype)
    by_layer, by_scores = back_to_scores(by_weights)
    by_constant = by_scores.sum(-1, keepdims=True)
    by_scores = by_scores.astype(x.dtype)
    also_by_layer, also_by_last = back_to_last((stream.gather(by_scores), by_constant))
    by_layer = jax.tree.map(jnp.add, by_layer, also_by_layer)
    # The gradient of the stream is the sum over k of outer(over_positions[k], over_features[k]).
    at_last = jnp.zeros_like(weights, x.dtype, shape=(len(x), 1, x.shape[1])).at[..., -1].set(1)
    over_positions = _stacked(by_scores, weights.astype(x.dtype), at_last)
    over_features = _stacked(vector, by_taken, (by_last + also_by_last)[:, None])
    over_positions, over_features = jax.lax.optimization_barrier((over_positions, over_features))
    if mlp is None:
        by_x = jnp.einsum("nkt,nkw->ntw", over_positions, over_features)
        by_mlp = None
    else:
        (up, _), (down, _) = mlp
        back = mlp_backward or mlp_back
        by_x, by_hidden, sums, by_up_bias = back(
            over_positions, over_features, hidden, up, down, unformed is None
        )
        by_up = over_rows(x, by_hidden)
        if by_up_bias is None:  # x has a column of ones, whose row of the gradient is the bias's
            by_up_bias = by_up[len(up)]
        by_down_bias = jnp.einsum("nk,nkw->w", over_positions.sum(-1), over_features)
        by_down = Linear(over_rows(sums, over_features), by_down_bias)
        by_mlp = Linear(by_up[: len(up)], by_up_bias), by_down
    return by_layer, by_mlp, by_x if unformed is None else unformed.back(by_x)


def _after_mlp(
    mlp_backward: MlpBackward | None, mlp: Mlp, x: Float[Array, "n length columns"]
) -> tuple[Stream | AfterMlp, Hidden | None]:
    """Return the stream after the MLP and the hidden features."""
    if mlp is None:
        return Stream(x), None
    up, down = mlp
    hidden = jnp.maximum(_first_map(up, x), 0)
    if mlp_backward is None:
        return AfterMlp(x, hidden, down), hidden
    # The kernel reads hidden features from memory. The barrier makes XLA write them once, instead
    # of recomputing them from their inputs.
    hidden = jax.lax.optimization_barrier(hidden)
    width = len(down.bias)
    total = x[..., :width] + (rows(hidden, down.weight) + down.bias)
    return Stream(jax.lax.optimization_barrier(total)), hidden


def _first_map(up: Linear, x: Float[Array, "n length columns"]) -> Hidden:
    """Apply the first map of an MLP; one product if x has a column of ones after its features."""
    spare = x.shape[-1] - len(up.weight)
    if not spare:
        return up(x)
    with_bias = jnp.concatenate([up.weight, up.bias[None]])
    return rows(x, jnp.pad(with_bias, ((0, spare - 1), (0, 0))))


def _stacked(*parts: Float[Array, "n _ columns"]) -> Float[Array, "n vectors columns"]:
    """Concatenate vectors; in 16 bits, pad their number to what tensor cores multiply."""
    vectors = jnp.concatenate(parts, 1)
    spare = -vectors.shape[1] % 16 if vectors.dtype == jnp.bfloat16 else 0
    return jnp.pad(vectors, ((0, 0), (0, spare), (0, 0)))


last_query = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(0, 1, 2))
"""Attend from the last position; see `_forward` for the arguments."""
last_query.defvjp(_forward, _backward)
