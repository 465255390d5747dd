"""The full Transformer of yuksel2026: post-norm blocks on tokens, with learned positions and dropout.

It is not an option of `Transformer`, which reads vectors and answers at one position: here tokens come in, and the last
positions are all compared.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._errors import InputError, check_numbers, unknown
from .._random import Key, fold_in, normals, raw, uniform
from ._minimal import Attended, visible
from ._products import look_up, product
from ._transformer import Linear, Scale

Rate = float | Float[Array, ""]
_PLACES = 50
"""Rows of the published table of positions."""


class ChainBlock(NamedTuple):
    query: Float[Array, "width width"]
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]
    out: Float[Array, "width width"]
    norms: tuple[Scale, Scale]
    """After the attention and after the MLP."""
    up: Linear
    down: Linear


class Maps(NamedTuple):
    """What attention in a block works with, heads side by side."""

    query: Float[Array, "n last width"]
    key: Float[Array, "n length width"]
    value: Float[Array, "n length width"]


class ChainParameters(NamedTuple):
    encode: Float[Array, "vocabulary width"]
    positions: Float[Array, "length width"]
    blocks: tuple[ChainBlock, ...]
    decode: Linear


@dataclasses.dataclass(frozen=True)
class ChainTransformer:
    """The options; the defaults are the paper's. Parameters are separate: `init` draws them.

    **Arguments:**

    - `length`: how many positions are read: for a [`emergo.tasks.MarkovChain`][] one fewer than its sequences have.
    - `vocabulary`, `heads`, `width`, `hidden`, `layers`: sizes; heads share the width.
    - `dropout`: on attention weights, on what attention and MLP add, and on the MLP's hidden features (where PyTorch's encoder
      layer has it); in force where a key is given.
    - `dropout_every`: in one step of so many dropout is in force, the first of them; None: in all. In the published runs it
      was one in three.
    - `context`: how many positions a query sees, itself among them; None: all before it. With one layer this is the
      context-restricted predictor; with more, a window reaches further back by each layer.
    - `start`: `"xavier"`: as in the published code: maps uniform in ±√(6/(inputs + outputs)), positions as the rows of such a
      map from 50 places, biases 0, the decoder orthogonal (there without a bias). None: PyTorch's: maps and biases uniform in
      ±1/√inputs, positions N(0, 1). The encoder starts orthogonal in both: a position is 1.3 times as long as a token or 16
      times.

    Products have the precision that is in force (`jax.default_matmul_precision`).
    """

    length: int
    vocabulary: int = 50
    heads: int = 3
    width: int = 255
    hidden: int = 64
    layers: int = 1
    dropout: float = 0.1
    context: int | None = None
    dropout_every: int | None = None
    start: Literal["xavier"] | None = None

    def __post_init__(self) -> None:
        names = ["length", "vocabulary", "heads", "width", "hidden", "layers"]
        names += [name for name in ("context", "dropout_every") if getattr(self, name) is not None]
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_numbers(self)
        if self.width % self.heads:
            raise InputError(f"heads must divide width, got {self.heads} heads with width {self.width}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be in [0, 1), got {self.dropout!r}")
        if self.start not in (None, "xavier"):
            raise unknown("start", str(self.start), ("xavier",))

    def init(self, key: Array) -> ChainParameters:
        key, width, xavier = raw(key), self.width, self.start == "xavier"

        def draw(place: int, inputs: int, outputs: int) -> Array:
            over = (inputs + outputs) / 6 if xavier else inputs
            return (2 * uniform(fold_in(key, place), inputs, outputs) - 1) / math.sqrt(over)

        def linear(place: int, inputs: int, outputs: int) -> Linear:
            bias = (2 * uniform(fold_in(key, place), 1, outputs)[0] - 1) / math.sqrt(inputs)
            return Linear(draw(place + 1, inputs, outputs), 0 * bias if xavier else bias)

        def orthogonal(place: int, rows: int, columns: int) -> Array:
            q, r = jnp.linalg.qr(normals(fold_in(key, place), 1, max(rows, columns), min(rows, columns))[0])
            q = q * jnp.sign(jnp.diagonal(r))
            return q if rows >= columns else q.T

        def block(first: int) -> ChainBlock:
            query, keys, value, out = (draw(first + i, width, width) for i in range(4))
            scale = Scale(jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32))
            up, down = linear(first + 4, width, self.hidden), linear(first + 6, self.hidden, width)
            return ChainBlock(query, keys, value, out, (scale, scale), up, down)

        if xavier:
            positions = draw(1, max(_PLACES, self.length), width)[: self.length]
            decode = Linear(orthogonal(3, width, self.vocabulary), jnp.zeros(self.vocabulary, jnp.float32))
        else:
            positions, decode = normals(fold_in(key, 1), 1, self.length, width)[0], linear(2, width, self.vocabulary)
        blocks = tuple(block(4 + 8 * i) for i in range(self.layers))
        return ChainParameters(orthogonal(0, self.vocabulary, width), positions, blocks, decode)

    def forward(self, parameters: ChainParameters, tokens: Int[Array, "n length"], key: Array | None = None) -> Attended:
        """Logits at all positions and every attention map; with dropout if a key is given."""
        x, maps = self._embed(parameters, tokens), []
        for i, block in enumerate(parameters.blocks):
            x, attention = self._block(block, x, self._maps(block, x, x), _place(key, i), self.dropout)
            maps.append(attention)
        return Attended(_linear(parameters.decode, x), jnp.stack(maps, axis=1))

    def answer(
        self,
        parameters: ChainParameters,
        tokens: Int[Array, "n length"],
        last: int,
        key: Array | None = None,
        context: Int[Array, ""] | None = None,
        step: Int[Array, ""] | None = None,
    ) -> Float[Array, "n last vocabulary"]:
        """Logits at the `last` positions: the last block has no other queries; `context` stands in for the option, and `step`
        is that of training, for dropout that is not in force in every one."""
        read = tokens[:, self.length - last :] if self.layers == 1 else tokens
        x, rate = self._embed(parameters, read), self._rate(step)
        for i, block in enumerate(parameters.blocks):
            asked = x[:, x.shape[1] - last :] if i == self.layers - 1 else x
            maps = self._maps(block, asked, x) if i else self._first_maps(parameters, read, tokens)
            x, _ = self._block(block, asked, maps, _place(key, i), rate, context)
        return _linear(parameters.decode, x)

    def _embed(self, parameters: ChainParameters, tokens: Int[Array, "n read"]) -> Float[Array, "n read width"]:
        """The last positions, as many as there are tokens."""
        return self._read(parameters.encode[None], parameters.positions[None], tokens)[0]

    def _read(
        self,
        encode: Float[Array, "tables vocabulary width"],
        positions: Float[Array, "tables length width"],
        tokens: Int[Array, "n read"],
    ) -> Float[Array, "tables n read width"]:
        return look_up(encode, tokens) + positions[:, None, self.length - tokens.shape[1] :]

    def _maps(self, block: ChainBlock, asked: Float[Array, "n last width"], x: Float[Array, "n length width"]) -> Maps:
        """Queries of those that are asked, keys and values of all."""
        return Maps(product(asked, block.query), product(x, block.key), product(x, block.value))

    def _first_maps(self, parameters: ChainParameters, asked: Int[Array, "n last"], tokens: Int[Array, "n length"]) -> Maps:
        """Those of the first block: a map of a token's row plus a position's is that of the mapped tables' rows."""
        query, key, value = parameters.blocks[0][:3]
        (queries,) = self._read(parameters.encode @ query[None], parameters.positions @ query[None], asked)
        both = jnp.stack([key, value])
        return Maps(queries, *self._read(parameters.encode @ both, parameters.positions @ both, tokens))

    def _block(
        self,
        block: ChainBlock,
        asked: Float[Array, "n last width"],
        maps: Maps,
        key: Key | None,
        rate: Rate,
        context: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, "n last width"], Float[Array, "n heads last length"]]:
        last, split = asked.shape[1], (self.heads, self.width // self.heads)
        q, k, v = (a.reshape(*a.shape[:2], *split) for a in maps)
        scores = jnp.einsum("nqhs,nkhs->nhqk", q, k) / math.sqrt(split[1])
        seen = visible(self.length, self.context if context is None else context)[self.length - last :]
        attention = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        mixed = jnp.einsum("nhqk,nkhs->nqhs", self._drop(attention, key, 0, rate), v)
        x = block.norms[0](asked + self._drop(product(mixed.reshape(asked.shape), block.out), key, 1, rate))
        hidden = self._drop(jax.nn.relu(_linear(block.up, x)), key, 2, rate)
        return block.norms[1](x + self._drop(_linear(block.down, hidden), key, 3, rate)), attention

    def _rate(self, step: Int[Array, ""] | None) -> Rate:
        """Of dropout in a step."""
        if self.dropout_every is None or step is None:
            return self.dropout
        return jnp.where(step % self.dropout_every == 0, self.dropout, 0.0)

    def _drop(self, x: Float[Array, "*rows columns"], key: Key | None, place: int, rate: Rate) -> Float[Array, "*rows columns"]:
        if key is None or not self.dropout:
            return x
        rows, columns, at = math.prod(x.shape[:-1]), x.shape[-1], fold_in(key, place)
        # In a loop, for two halves: outside of one, XLA compiles the generator into everything that reads the mask, which takes
        # half a minute on a CPU.
        halves = jax.lax.map(lambda i: uniform(fold_in(at, i), -(-rows // 2), columns) < rate, jnp.arange(2))
        dropped = halves.reshape(-1, columns)[:rows].reshape(x.shape)
        return jnp.where(dropped, 0, x / (1 - rate))


def _linear(map: Linear, x: Float[Array, "n length inputs"]) -> Float[Array, "n length outputs"]:
    return product(x, map.weight) + map.bias


def _place(key: Array | None, layer: int) -> Key | None:
    return None if key is None else fold_in(raw(key), layer)
