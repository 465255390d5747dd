"""The simplified attention layer of zucchet2025, Eq. 2."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.contract import NO_TAP, Output, Spec
from ..core.pytree import per_run
from ..core.random import normals, raw
from ._model import Model, TapFunction


class ToyParameters(NamedTuple):
    logits: Float[Array, " length"]
    weights: Float[Array, "outputs inputs"]

    @property
    def attention(self) -> Float[Array, " length"]:
        return jax.nn.softmax(self.logits)


class ToyAttention(Model):
    r"""Attention by position alone: $y = W \sum_t \mathrm{softmax}(a)_t\, x_t$.

    The parameters are one logit per position and one weight matrix.

    **Arguments:**

    - `scale`: scale of the initial weights, whose entries have variance scale²/inputs (A.3.4).
      Initial attention is uniform.

    >>> import jax, jax.numpy as jnp
    >>> model = em.ToyAttention()
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=3))
    >>> model.apply(params, jnp.ones((5, 4, 3))).attention[0, 0, 0]
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """

    scale: float = per_run(default=1.0, low=0.0)
    pads = True
    only_features = True

    def init(self, key: Array, spec: Spec) -> ToyParameters:
        inputs, outputs = spec.used or (spec.inputs, spec.outputs)
        weights = normals(raw(key), 1, spec.outputs, spec.inputs)[0] / jnp.sqrt(inputs)
        real = (jnp.arange(spec.outputs)[:, None] < outputs) & (jnp.arange(spec.inputs) < inputs)
        logits = jnp.zeros(spec.length, jnp.float32)
        return ToyParameters(logits, self.scale * jnp.where(real, weights, 0))

    def apply(
        self,
        params: ToyParameters,
        inputs: Float[Array, "n length inputs"],
        tap: TapFunction = NO_TAP,
    ) -> Output:
        shape = (len(inputs), 1, 1, inputs.shape[1])
        scores = tap("layers.0.scores", jnp.broadcast_to(params.logits, shape))
        pattern = tap("layers.0.pattern", jax.nn.softmax(scores, -1))
        mixed = tap("layers.0.mixed", jnp.einsum("nt,ntd->nd", pattern[:, 0, 0], inputs))
        return Output(tap("value", mixed @ params.weights.T), pattern, params.weights.T)
