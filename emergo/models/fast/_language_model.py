r"""An optimised forward pass of `Transformer` as a language model: several positions are read.

It computes what `apply` computes, with less memory and fewer passes over it:

- **Attention patterns are not kept.** A GPU runs cuDNN's fused kernel where that can be trusted.
  Elsewhere, queries are processed in blocks. A block sees only the positions up to its end, and its
  weights are computed again in the backward pass.
- **Norms and activations keep their input only**, and are computed again in the backward pass.

Queries, keys and values are three products. One product of joined maps takes 1.03 to 1.04 times the
processor time of a step on a CPU, because its result has to be split.

Probes of the attention of the last position get it from one more query, which costs nothing in
training, because nothing reads it there.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.contract import Output, Tap
from .._attention import Keys, score, weigh
from .._transformer import (
    Inputs,
    Rows,
    Transformer,
    TransformerLayer,
    TransformerParameters,
)
from ._attention import attend_causally
from ._transformer import linear


def forward(
    model: Transformer, params: TransformerParameters, inputs: Inputs, tap: Tap, stack_size: int
) -> Output:
    """Compute `model.apply(params, inputs, tap)`; the only tap is `value`.

    **Arguments:**

    - `stack_size`: number of runs that a GPU trains together; 0 on a CPU.
    """
    on_gpu = stack_size > 0
    x = model._drop(model._embedded(params, inputs), tap.key, model.layers, 0)
    last_rows = []
    for i, layer in enumerate(params.layers):
        q, k, v = _queries_keys_values(model, layer, _normalised(model, layer, 0, x), on_gpu)
        last_rows.append(weigh("softmax", score("softmax", q[:, -1:], k, None), None)[:, :, 0])
        mixed = attend_causally(q, k, v, on_gpu).reshape(x.shape)
        x = x + model._drop(linear(layer.out, mixed, on_gpu), tap.key, i, 0)
        if layer.down is not None:
            added = linear(layer.down, _hidden(model, layer, x, on_gpu), on_gpu)
            x = x + model._drop(added, tap.key, i, 1)
    return model._output(params, x, jnp.stack(last_rows, axis=1), tap)


def _normalised(model: Transformer, layer: TransformerLayer, sublayer: int, x: Rows) -> Rows:
    """Apply the norm before a sublayer; keep only its input for the backward pass."""
    return jax.checkpoint(lambda layer, x: model._norm("pre", layer, sublayer, x))(layer, x)


def _queries_keys_values(
    model: Transformer, layer: TransformerLayer, x: Float[Array, "n length width"], on_gpu: bool
) -> tuple[Keys, Keys, Keys]:
    """Return rotated queries, rotated keys, and values."""
    maps = (layer.query, layer.key, layer.value)
    q, k, v = (model._heads(linear(map, x, on_gpu)) for map in maps)
    length = x.shape[1]
    return model._rotated(q, length), model._rotated(k, length), v


def _hidden(
    model: Transformer, layer: TransformerLayer, x: Float[Array, "n length width"], on_gpu: bool
) -> Float[Array, "n length hidden"]:
    """Return the hidden features of the MLP, after its norm."""
    n = _normalised(model, layer, 1, x)
    assert layer.up is not None
    gate = None if layer.gate is None else linear(layer.gate, n, on_gpu)
    return jax.checkpoint(model._activate)(linear(layer.up, n, on_gpu), gate)
