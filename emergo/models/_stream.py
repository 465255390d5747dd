"""The stream of tokens as a layer reads it: whole, or below the first layer in its parts, so that maps of it compose."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._products import Linear, over_rows, rows, wide


def padded(features: int, multiple: int = 8) -> int:
    """The columns of a token with a constant 1, and zeros to a multiple of this."""
    return features + 1 + -(features + 1) % multiple


class Embedded(NamedTuple):
    """The stream below the first layer, x E + c, kept in its parts.

    x holds the token, a constant 1 and zeros to a `multiple`; E the matching rows: embedding and bias. So the gradients of
    both are one matrix product, and no sum over tokens is left.
    """

    tokens: Float[Array, "n length columns"]
    embed: Float[Array, "columns width"]
    positions: Float[Array, "length width"]
    one: Float[Array, " columns"]  # which column is the constant

    @classmethod
    def of(cls, embed: Linear, tokens: Array, positions: Array, multiple: int = 8) -> "Embedded":
        (weight, bias), features = embed, tokens.shape[-1]
        columns = padded(features, multiple)
        spare = columns - features - 1
        maps = jnp.concatenate([weight, bias[None], jnp.zeros((spare, weight.shape[1]), weight.dtype)])
        one = (jnp.arange(columns) == features).astype(tokens.dtype)
        wide = jnp.pad(tokens, ((0, 0), (0, 0), (0, 1 + spare)))
        return cls(wide + one, maps, positions, one)  # on a GPU in a third of the time of a concatenation

    def stream(self) -> Float[Array, "n length width"]:
        return rows(self.tokens, self.embed) + self.positions

    def through(self, map: Linear, on_gpu: bool = False) -> Float[Array, "n length outputs"]:
        """The stream through a map, composed: (x E + c) W + b as x (E W + 1 b) + c W; `on_gpu` in the gradient only."""
        if on_gpu:
            return _composed_back(self, map)
        return rows(self.tokens, self.embed @ map.weight + self.one[:, None] * map.bias) + self.positions @ map.weight

    def last(self) -> Float[Array, "n width"]:
        return self.tokens[:, -1] @ self.embed + self.positions[-1]

    def against(self, probe: Float[Array, "n heads width"]) -> Float[Array, "n heads length"]:
        """Inner products of the stream with `probe`, in fp32."""
        return wide("nhf,ntf->nht", probe @ self.embed.T, self.tokens) + wide("nhw,tw->nht", probe, self.positions)

    def gather(self, weights: Float[Array, "n heads length"]) -> Float[Array, "n heads width"]:
        """Sums of the stream with `weights`."""
        sums = jnp.einsum("nht,ntf->nhf", weights, self.tokens) @ self.embed
        return sums + jnp.einsum("nht,tw->nhw", weights, self.positions)


@jax.custom_vjp
def _composed_back(embedded: Embedded, map: Linear) -> Float[Array, "n length outputs"]:
    """Composed in the gradient only. On a GPU the sum with c W takes longer than the product with W, and the stream is there
    already for the skip connection."""
    return map(embedded.stream())


def _composed_backward(kept: tuple[Embedded, Linear], g: Float[Array, "n length outputs"]) -> tuple[Embedded, Linear]:
    """By hand: the sum of g over sequences that c W asks for is slower on a GPU than the product (x E + c)^T g."""
    embedded, map = kept
    by_map, by_weight = over_rows(embedded.tokens, g), over_rows(embedded.stream(), g)
    # Dropped where nothing asks for them.
    by_tokens, by_positions = rows(g, (embedded.embed @ map.weight).T), g.sum(0) @ map.weight.T
    by_embedded = Embedded(by_tokens, by_map @ map.weight.T, by_positions, by_map @ map.bias)
    return by_embedded, Linear(by_weight, embedded.one @ by_map)


_composed_back.defvjp(lambda embedded, map: (_composed_back(embedded, map), (embedded, map)), _composed_backward)


class Stream(NamedTuple):
    """The stream of all positions, whole, read as `Embedded` is."""

    x: Float[Array, "n length width"]

    def through(self, map: Linear) -> Float[Array, "n length outputs"]:
        return map(self.x)

    def against(self, probe: Float[Array, "n heads width"]) -> Float[Array, "n heads length"]:
        return wide("nhw,ntw->nht", probe, self.x)

    def gather(self, weights: Float[Array, "n heads length"]) -> Float[Array, "n heads width"]:
        return jnp.einsum("nht,ntw->nhw", weights, self.x)

    def last(self) -> Float[Array, "n width"]:
        return self.x[:, -1]

    @property
    def parts(self) -> tuple[Float[Array, "n length width"]]:
        return (self.x,)

    @property
    def bias(self) -> float:
        return 0.0


class Unadded(NamedTuple):
    """The stream behind an MLP with a skip connection, in parts that kernels add where they read it: x, whose first columns
    count, what the MLP adds but for its second bias, and that."""

    x: Float[Array, "n length columns"]
    added: Float[Array, "n length width"]
    bias: Float[Array, " width"]

    def sum(self) -> Float[Array, "n length width"]:
        return self.x[..., : len(self.bias)] + (self.added + self.bias)

    def last(self) -> Float[Array, "n width"]:
        return self.x[:, -1, : len(self.bias)] + (self.added[:, -1] + self.bias)

    @property
    def parts(self) -> tuple[Float[Array, "n length columns"], Float[Array, "n length width"]]:
        return self.x, self.added


class BehindMlp(NamedTuple):
    """The stream behind an MLP with a skip connection, not formed. Nothing as large goes through the second map: what
    is compared with the stream goes through it the other way, and sums of the stream go through it as sums."""

    x: Float[Array, "n length width"]
    hidden: Float[Array, "n length hidden"]
    down: Linear

    def against(self, probe: Float[Array, "n heads width"]) -> Float[Array, "n heads length"]:
        # Hidden features first: a CPU would move all of them about if they came second.
        behind = wide("ntf,nhf->nth", self.hidden, rows(probe, self.down.weight.T)) + wide("ntw,nhw->nth", self.x, probe)
        return jnp.moveaxis(behind, 1, 2) + wide("nhw,w->nh", probe, self.down.bias)[..., None]

    def gather(self, weights: Float[Array, "n heads length"]) -> Float[Array, "n heads width"]:
        behind = rows(jnp.einsum("nht,ntf->nhf", weights, self.hidden), self.down.weight)
        return jnp.einsum("nht,ntw->nhw", weights, self.x) + behind + weights.sum(-1, keepdims=True) * self.down.bias

    def last(self) -> Float[Array, "n width"]:
        return self.x[:, -1] + self.down(self.hidden[:, -1])
