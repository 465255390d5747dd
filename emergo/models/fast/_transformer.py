r"""An optimised forward pass of `Transformer`: it computes only what the task reads.

The task reads the output at the last position. Three consequences save most of the work:

- **The last layer has one query.** With $n_t$ its input, $q_h\cdot k_{t,h} = n_t\cdot(W^K_h q_h) +
  q_h\cdot b^K_h$ and $\sum_t a_t v_{t,h} = (\sum_t a_t n_t) W^V_h + (\sum_t a_t)\, b^V_h$. So keys
  and values of single tokens are never formed. (Rotary positions rotate every key by its own angle;
  keys are formed then.) The gradient of the residual stream below this layer is a sum of few outer
  products (`_last_query.py`).
- **The first layer reads $x_t E + c_t$** (token and position), so its maps compose with the
  embedding: $x_t (E W)$ costs inputs/width of $(x_t E) W$. With one layer both apply, and no token
  is ever embedded. With more layers, our kernels compose the maps on a GPU
  (`_stream_kernels.py`); without them it is faster to compose only the gradient.
- **On a CPU and with short sequences** all maps of the first attention are folded into small
  matrices (`_folded.py`).

The functions take the model as their first argument and use its private helpers. That is safe
because the table (`_table.py`) admits only this exact class.
"""

import functools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...core.contract import Output, Tap
from .._attention import causal, cooled, score, weigh
from .._layers import Linear
from .._products import at_least_fp32, rows
from .._transformer import (
    Inputs,
    Rows,
    Transformer,
    TransformerLayer,
    TransformerParameters,
    as_features,
)
from ._attention import attend_all
from ._folded import Scores, folded, folds
from ._last_query import MlpBackward, Unformed, last_query
from ._stream import Embedded, Stream

AllRows = Float[Array, "n length width"]
LastRow = Float[Array, "#n heads length"]  # attention weights of the last query
Last = Float[Array, "n width"]  # values at the last position
Taken = Float[Array, "n heads width"]  # weighted sums of the stream, one per head
Below = AllRows | Unformed  # the residual stream that a layer reads


class _Choices(NamedTuple):
    """The choice between equivalent computations."""

    stack_size: int  # runs trained together on a GPU; 0 on a CPU
    on_gpu: bool
    composes: bool  # compose the maps of the first layer with the embedding
    folds: bool  # fold all maps of the first attention
    kernels: Any  # the module `_stream_kernels`, or None
    mlp: tuple[Linear, Linear] | None  # the MLP below the last layer, if the query passes it
    mlp_backward: MlpBackward | None  # a kernel for the gradient of that MLP


def forward(
    model: Transformer, params: TransformerParameters, inputs: Inputs, tap: Tap, stack_size: int
) -> Output:
    """Compute `model.apply(params, inputs, tap)`; the only tap is `value`.

    **Arguments:**

    - `stack_size`: number of runs that a GPU trains together; 0 on a CPU.
    """
    tokens = as_features(params, inputs)
    count, length = tokens.shape[:2]
    choices = _choose(model, params, tokens, stack_size)
    positions = model._positions(params, length, tokens.dtype)
    multiple = choices.kernels.MULTIPLE if choices.kernels else 8
    below: Embedded | Below = Embedded.of(params.embed, tokens, positions, multiple)
    last_rows = []
    for i, layer in enumerate(params.layers[:-1]):
        below, row = _attend_all(model, layer, below, choices)
        last_rows.append(row)
        if choices.mlp is None or i < model.layers - 2:  # else `last_query` includes this MLP
            below = _add_mlp(model, layer, _formed(below), choices.on_gpu)
    layer = params.layers[-1]
    last, mixed, row = _attend_last(model, layer, below, choices)
    last = _add_mlp(model, layer, _add_attention(model, layer, last, mixed))
    shape = (count, model.heads, length)
    attention = [jnp.broadcast_to(r, shape) for r in (*last_rows, row)]
    return model._output(params, last[:, None], jnp.stack(attention, axis=1), tap)


def _choose(
    model: Transformer,
    params: TransformerParameters,
    tokens: Float[Array, "n length features"],
    stack_size: int,
) -> _Choices:
    _, length, features = tokens.shape
    width = model.width
    on_gpu = stack_size > 0
    composes = model.norm in ("none", "post") and features < width
    mlp = _mlp_below(model, params)
    mlp_backward = None
    kernels = None
    if on_gpu and model.layers > 1:
        from . import _mlp_kernel, _stream_kernels  # here, since Pallas takes 0.3 s to import

        # On a GPU memory traffic decides, and only the kernel moves fewer bytes.
        hidden = width * model.mlp_factor
        if mlp is None or not _mlp_kernel.applies(tokens.dtype, length, width, hidden, model.heads):
            mlp = None
        else:
            mlp_backward = _mlp_kernel.mlp_back
        if (
            composes
            and model.skip
            and _stream_kernels.applies(tokens.dtype, length, width, features, stack_size)
        ):
            kernels = _stream_kernels
    # Folded maps are products of maps, which 16 bits would round.
    can_fold = (
        model.norm in ("none", "post")
        and _scores_read_stream(model)
        and not on_gpu
        and jnp.finfo(tokens.dtype).bits >= 32
    )
    folding = can_fold and folds(features, length, width, model.heads)
    return _Choices(stack_size, on_gpu, composes, folding, kernels, mlp, mlp_backward)


def _scores_read_stream(model: Transformer) -> bool:
    """Return True if scores are inner products of a vector with the residual stream itself."""
    return model.positions in ("sinusoidal", "learned", "none") and model.attention in (
        "softmax",
        "linear",
        "sigmoid",
        "biased",
    )


def _mlp_below(model: Transformer, params: TransformerParameters) -> tuple[Linear, Linear] | None:
    """Return the MLP below the last layer if `last_query` can include it."""
    if not (model.norm == "none" and model.skip and model.activation == "relu"):
        return None
    if model.layers == 1 or not _scores_read_stream(model):
        return None
    below = params.layers[-2]
    if below.up is None or below.down is None:
        return None
    return below.up, below.down


def _attend_all(
    model: Transformer, layer: TransformerLayer, below: Embedded | Below, choices: _Choices
) -> tuple[Below, LastRow]:
    """Return the stream after the attention of all positions, and the weights of the last one."""
    embedded = below if isinstance(below, Embedded) else None
    if embedded is not None and choices.folds:
        return _attend_folded(model, layer, embedded)
    if choices.on_gpu and model.attention == "softmax":
        layer = _without_redundant_biases(layer, model.positions == "rope")
    q, k, v = map(model._heads, _queries_keys_values(model, layer, below, choices))
    count, length = q.shape[:2]
    q = model._rotated(q, length)
    k = model._rotated(k, length)
    bias = None if layer.bias is None else layer.bias[:, -1:]
    scores = score(model.attention, q[:, -1:], k, bias, layer.temperature)
    row = weigh(model.attention, scores, _seen_by_last(model, length), model.top_k)[:, :, 0]
    mixed = attend_all(
        model.attention,
        q,
        k,
        v,
        layer.bias,
        model._visible(length),
        choices.on_gpu and model.window is None,
        layer.temperature,
        model.top_k,
    ).reshape(count, length, model.width)
    if embedded is None or choices.kernels is None:
        return _add_attention(model, layer, _formed(below), mixed, choices.on_gpu), row
    kernels = choices.kernels
    unformed = kernels.AfterAttention(
        kernels.Together(choices.stack_size), embedded, layer.out, mixed
    )
    if choices.mlp is not None and model.layers == 2:
        return unformed, row
    return model._norm("post", layer, 0, kernels.formed(unformed)), row


def _queries_keys_values(
    model: Transformer, layer: TransformerLayer, below: Embedded | Below, choices: _Choices
) -> tuple[Array, ...]:
    maps = (layer.query, layer.key, layer.value)
    if isinstance(below, Embedded) and choices.kernels is not None:
        return choices.kernels.through(choices.stack_size, below, maps)
    if isinstance(below, Embedded) and choices.composes:
        return tuple(below.through(map, choices.on_gpu) for map in maps)
    n = model._norm("pre", layer, 0, _formed(below))
    return tuple(linear(map, n, choices.on_gpu) for map in maps)


def _attend_folded(
    model: Transformer, layer: TransformerLayer, embedded: Embedded
) -> tuple[Array, Float[Array, "n heads length"]]:
    """Compute the first attention with folded maps."""
    visible = model._visible(embedded.tokens.shape[1])

    def weights_of(scores: Scores) -> Scores:
        if layer.bias is not None:
            scores = scores + jnp.moveaxis(layer.bias, 0, 1)
        if layer.temperature is not None:
            scores = scores / jnp.exp(layer.temperature)[:, None]
        seen = None if visible is None else visible[:, None]
        return weigh(model.attention, scores, seen, model.top_k)

    maps = (layer.query, layer.key, layer.value, layer.out)
    added, weights = folded(embedded, maps, model.heads, weights_of)
    skipped = embedded.stream() if model.skip else 0
    return model._norm("post", layer, 0, skipped + added), weights[:, -1]


def _attend_last(
    model: Transformer, layer: TransformerLayer, below: Embedded | Below, choices: _Choices
) -> tuple[Last, Last, LastRow]:
    """Return the last position of the stream, the values its query mixes, and its weights."""
    query_vector = functools.partial(_query_vector, model)
    weights_of = functools.partial(_weights, model)
    if isinstance(below, Embedded) and model.norm in ("none", "post"):
        last = below.last()
        return last, *_one_query(model, layer, below, last)
    if not isinstance(below, Array | Embedded):
        last, taken, row = last_query(
            query_vector, weights_of, choices.mlp_backward, layer, choices.mlp, below
        )
        return last, _values(model, layer, taken, row), row
    x = _formed(below)
    n = model._norm("pre", layer, 0, x)
    last = x[:, -1]
    if not _scores_read_stream(model):
        return last, *_one_query(model, layer, Stream(n), n[:, -1])
    last_of_n, taken, row = last_query(
        query_vector, weights_of, choices.mlp_backward, layer, choices.mlp, n
    )
    # If there is no pre-norm, `last_query` may have added the MLP below. Its result counts then.
    return last_of_n if n is x else last, _values(model, layer, taken, row), row


def _one_query(
    model: Transformer,
    layer: TransformerLayer,
    stream: Embedded | Stream,
    x: Last,
) -> tuple[Last, LastRow]:
    """Return the mixed values of the last query, and its weights."""
    if model.attention == "positional":
        scores = jnp.zeros((1, model.heads, 1), at_least_fp32(x.dtype))
    elif model.positions == "rope":
        k = model._heads(stream.through(layer.key))
        q = model._rotated(model._heads(layer.query(x))[:, None], k.shape[1])
        k = model._rotated(k, k.shape[1])
        scores = score(model.attention, q, k, None)[:, :, 0]
    else:
        vector, constant = _query_vector(model, layer, x)
        scores = stream.against(vector) + constant
    weights = _weights(model, layer, scores)
    shape = (len(x), *weights.shape[1:])
    taken = stream.gather(jnp.broadcast_to(weights.astype(x.dtype), shape))
    return _values(model, layer, taken, weights), weights


def _query_vector(
    model: Transformer, layer: TransformerLayer, x: Last
) -> tuple[Taken, Float[Array, "n heads 1"]]:
    """Return `(vector, constant)`: the scores of a query are `stream · vector + constant`."""
    q = model._heads(layer.query(x)) / math.sqrt(model.width // model.heads)
    constant = jnp.sum(q * model._heads(layer.key.bias), -1, keepdims=True)
    vector = jnp.einsum("nhs,whs->nhw", q, model._heads(layer.key.weight))
    return vector, constant.astype(at_least_fp32(constant.dtype))


def _weights(
    model: Transformer, layer: TransformerLayer, scores: Float[Array, "#n heads #length"]
) -> LastRow:
    """Return the attention weights of the last query."""
    if layer.bias is not None:
        scores = scores + layer.bias[:, -1].astype(scores.dtype)
    scores = cooled(scores[:, :, None], layer.temperature)[:, :, 0]
    seen = _seen_by_last(model, scores.shape[-1])
    return weigh(model.attention, scores, seen, model.top_k)


def _values(
    model: Transformer,
    layer: TransformerLayer,
    taken: Taken,
    weights: LastRow,
) -> Last:
    """Map weighted sums of the stream to mixed values."""
    total = jnp.sum(weights, -1, keepdims=True).astype(taken.dtype)
    values = jnp.einsum("nhw,whs->nhs", taken, model._heads(layer.value.weight))
    values = values + total * model._heads(layer.value.bias)
    return values.reshape(len(taken), model.width)


def _seen_by_last(model: Transformer, length: int) -> Bool[Array, "1 length"] | None:
    """Return which positions the last query sees; without a window all, masked or not."""
    return None if model.window is None else causal(length, model.window)[-1:]


def _add_attention(
    model: Transformer, layer: TransformerLayer, x: Rows, mixed: Rows, on_gpu: bool = False
) -> Rows:
    """Apply the output map of the attention and the skip connection."""
    added = linear(layer.out, mixed, on_gpu)
    return model._norm("post", layer, 0, model._skip(x) + added)


def _add_mlp(model: Transformer, layer: TransformerLayer, x: Rows, on_gpu: bool = False) -> Rows:
    """Apply the MLP and the skip connection."""
    if layer.up is not None and layer.down is not None:
        hidden = linear(layer.up, model._norm("pre", layer, 1, x), on_gpu)
        if model.activation == "gelu":
            hidden = jax.nn.gelu(hidden)
        else:
            hidden = cast(Array, _relu(on_gpu, hidden))
        added = linear(layer.down, hidden, on_gpu)
        x = model._norm("post", layer, 1, model._skip(x) + added)
    return jax.lax.optimization_barrier(x) if on_gpu else x


def _formed(below: Embedded | Below) -> AllRows:
    """Return the residual stream of all positions as one array."""
    return below.stream() if isinstance(below, Embedded) else cast(Array, below)


def linear(map: Linear, x: Rows, on_gpu: bool) -> Float[Array, "*rows outputs"]:
    """Apply a linear map; on a GPU with a cheaper gradient of the bias."""
    return _plus_bias(rows(x, map.weight), map.bias) if on_gpu else map(x)


@jax.custom_vjp
def _plus_bias(
    y: Float[Array, "n length outputs"], bias: Float[Array, " outputs"]
) -> Float[Array, "n length outputs"]:
    """Add a bias. Its gradient is summed over positions first, then over sequences.

    A single sum over all rows takes a GPU far longer when few runs are trained, presumably because
    few columns cannot occupy all processors.
    """
    return y + bias


def _plus_bias_back(_: None, g: Float[Array, "n length outputs"]) -> tuple[Array, Array]:
    by_sequence = jax.lax.optimization_barrier(jnp.sum(g, 1, dtype=at_least_fp32(g.dtype)))
    return g, jnp.sum(by_sequence, 0).astype(g.dtype)


_plus_bias.defvjp(lambda y, bias: (y + bias, None), _plus_bias_back)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _relu(materialise: bool, x: Array) -> Array:
    return _relu_forward(materialise, x)[0]


def _relu_forward(materialise: bool, x: Array) -> tuple[Array, Array]:
    """Keep only the output for the backward pass.

    `materialise`: write it to memory, so that XLA does not compute it again at every use.
    """
    y = jnp.maximum(x, 0)
    y = jax.lax.optimization_barrier(y) if materialise else y
    return y, y


_relu.defvjp(_relu_forward, lambda materialise, y, g: (jnp.where(y > 0, g, 0),))


def _without_redundant_biases(layer: TransformerLayer, rotates: bool) -> TransformerLayer:
    """Drop two biases of a softmax layer; each costs a pass over all tokens.

    Softmax ignores what all keys share (rotated keys share nothing). Its weights sum to 1, so the
    bias of the values can be mapped once and added to the bias of the output.
    """
    none = jnp.zeros_like(layer.key.bias)
    out = layer.out._replace(bias=layer.out.bias + layer.value.bias @ layer.out.weight)
    key = layer.key if rotates else layer.key._replace(bias=none)
    return layer._replace(key=key, value=layer.value._replace(bias=none), out=out)
