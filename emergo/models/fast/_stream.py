"""The residual stream as a layer reads it: as one array, or as summands that compose with maps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._layers import Linear
from .._products import over_rows, rows, wide

Mapped = Float[Array, "n length outputs"]
Weights = Float[Array, "n heads length"]
Vectors = Float[Array, "n heads width"]


def padded(features: int, multiple: int = 8) -> int:
    """Return the columns of a token with a constant 1, rounded up to a multiple."""
    return features + 1 + -(features + 1) % multiple


class Embedded(NamedTuple):
    """The stream below the first layer, x E + c, kept as its factors.

    x holds the token, a constant 1, and zeros up to a multiple of columns. E holds the matching
    rows: embedding and bias. So the gradients of both are one matrix product, and no separate sum
    over tokens remains.
    """

    tokens: Float[Array, "n length columns"]
    embed: Float[Array, "columns width"]
    positions: Float[Array, "length width"]
    one: Float[Array, " columns"]  # 1 at the constant column, else 0

    @classmethod
    def of(cls, embed: Linear, tokens: Array, positions: Array, multiple: int = 8) -> "Embedded":
        weight, bias = embed
        features = tokens.shape[-1]
        columns = padded(features, multiple)
        spare = columns - features - 1
        zeros = jnp.zeros((spare, weight.shape[1]), weight.dtype)
        maps = jnp.concatenate([weight, bias[None], zeros])
        one = (jnp.arange(columns) == features).astype(tokens.dtype)
        # Padding and adding takes a GPU a third of the time of a concatenation.
        wider = jnp.pad(tokens, ((0, 0), (0, 0), (0, 1 + spare)))
        return cls(wider + one, maps, positions, one)

    def stream(self) -> Float[Array, "n length width"]:
        """Form the stream."""
        return rows(self.tokens, self.embed) + self.positions

    def through(self, map: Linear, on_gpu: bool = False) -> Mapped:
        """Map the stream: (x E + c) W + b = x (E W + 1 b) + c W; on a GPU, only in the gradient."""
        if on_gpu:
            return _composed_back(self, map)
        composed = self.embed @ map.weight + self.one[:, None] * map.bias
        return rows(self.tokens, composed) + self.positions @ map.weight

    def last(self) -> Float[Array, "n width"]:
        """Return the last position."""
        return self.tokens[:, -1] @ self.embed + self.positions[-1]

    def against(self, vector: Vectors) -> Weights:
        """Return inner products of the stream with vectors, in fp32."""
        by_token = wide("nhf,ntf->nht", vector @ self.embed.T, self.tokens)
        return by_token + wide("nhw,tw->nht", vector, self.positions)

    def gather(self, weights: Weights) -> Vectors:
        """Return weighted sums of the stream."""
        sums = jnp.einsum("nht,ntf->nhf", weights, self.tokens) @ self.embed
        return sums + jnp.einsum("nht,tw->nhw", weights, self.positions)


@jax.custom_vjp
def _composed_back(embedded: Embedded, map: Linear) -> Mapped:
    """Map the stream, composing maps in the gradient only.

    On a GPU adding c W takes longer than the product with W, and the skip connection has formed the
    stream anyway.
    """
    return map(embedded.stream())


def _composed_backward(saved: tuple[Embedded, Linear], g: Mapped) -> tuple[Embedded, Linear]:
    # The gradient of c W needs the sum of g over sequences, which is slower on a GPU than the
    # product (x E + c)^T g. So the gradient of W comes from the formed stream.
    embedded, map = saved
    by_map = over_rows(embedded.tokens, g)
    by_weight = over_rows(embedded.stream(), g)
    # XLA drops the next two where nothing uses them.
    by_tokens = rows(g, (embedded.embed @ map.weight).T)
    by_positions = g.sum(0) @ map.weight.T
    by_embedded = Embedded(by_tokens, by_map @ map.weight.T, by_positions, by_map @ map.bias)
    return by_embedded, Linear(by_weight, embedded.one @ by_map)


_composed_back.defvjp(
    lambda embedded, map: (_composed_back(embedded, map), (embedded, map)), _composed_backward
)


class Stream(NamedTuple):
    """The whole stream, with the interface of `Embedded`."""

    x: Float[Array, "n length width"]

    def through(self, map: Linear) -> Mapped:
        return map(self.x)

    def against(self, vector: Vectors) -> Weights:
        return wide("nhw,ntw->nht", vector, self.x)

    def gather(self, weights: Weights) -> Vectors:
        return jnp.einsum("nht,ntw->nhw", weights, self.x)

    def last(self) -> Float[Array, "n width"]:
        return self.x[:, -1]


class AfterMlp(NamedTuple):
    """The stream after an MLP with a skip connection, not formed.

    No array of the stream's size passes the second map: vectors that are compared with the stream
    pass its transpose, and weighted sums of hidden features pass it as sums.
    """

    x: Float[Array, "n length width"]
    hidden: Float[Array, "n length hidden"]
    down: Linear

    def against(self, vector: Vectors) -> Weights:
        # Hidden features come first in the product: a CPU would transpose all of them otherwise.
        mapped = rows(vector, self.down.weight.T)
        scores = wide("ntf,nhf->nth", self.hidden, mapped) + wide("ntw,nhw->nth", self.x, vector)
        constant = wide("nhw,w->nh", vector, self.down.bias)
        return jnp.moveaxis(scores, 1, 2) + constant[..., None]

    def gather(self, weights: Weights) -> Vectors:
        sums = rows(jnp.einsum("nht,ntf->nhf", weights, self.hidden), self.down.weight)
        total = weights.sum(-1, keepdims=True)
        return jnp.einsum("nht,ntw->nhw", weights, self.x) + sums + total * self.down.bias

    def last(self) -> Float[Array, "n width"]:
        return self.x[:, -1] + self.down(self.hidden[:, -1])
