"""The full Transformer of yuksel2026: post-norm blocks on tokens, learned positions, dropout.

It is a separate class because it has another initialisation than `Transformer`, and because tasks
read several of its last positions.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.contract import NO_TAP, Output, Spec
from ..core.errors import InputError
from ..core.pytree import option, per_run
from ..core.random import Key, fold_in, normals, raw, uniform
from ._attention import causal
from ._layers import LayerNorm, Linear, dropped
from ._model import Model, TapFunction, answers, check_heads
from ._products import look_up, product

_POSITIONS = 50  # rows of the published table of positions
DROPOUT_PLACES = ("embedding", "attention", "added", "hidden")


class ChainBlock(NamedTuple):
    query: Float[Array, "width width"]
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]
    out: Float[Array, "width width"]
    norms: tuple[LayerNorm, LayerNorm]  # after the attention and after the MLP
    up: Linear
    down: Linear


class ChainParameters(NamedTuple):
    encode: Float[Array, "vocabulary width"]
    positions: Float[Array, "length width"]
    blocks: tuple[ChainBlock, ...]
    decode: Linear


Last = Float[Array, "n last width"]  # the residual stream at the last positions
All = Float[Array, "n length width"]
QueriesKeysValues = tuple[Last, All, All]  # heads side by side


class Dropout(NamedTuple):
    """Dropout in one layer, at its last positions. Without a key it does nothing.

    In the last layer only the positions that are read draw random numbers. So computing fewer
    positions gives the same masks.
    """

    key: Key | None
    rate: float | Float[Array, ""]
    last: int
    places: tuple[str, ...]

    def at(self, place: str) -> bool:
        return self.key is not None and place in self.places

    def __call__(
        self, x: Float[Array, "*rows positions columns"], slot: int, place: str
    ) -> Float[Array, "*rows positions columns"]:
        if self.key is None or not self.at(place):
            return x
        unread, read = jnp.split(x, [x.shape[-2] - self.last], -2)
        zero = dropped(fold_in(self.key, slot), read.shape, self.rate)
        return jnp.concatenate([unread, jnp.where(zero, 0, read / (1 - self.rate))], -2)


class ChainTransformer(Model):
    """The full Transformer of yuksel2026, on integer tokens (n, length). Defaults are the paper's.

    **Arguments:**

    - `heads`: number of attention heads per layer; they share the width.
    - `width`: size of the residual stream.
    - `hidden`: hidden size of the MLPs.
    - `layers`: number of layers.
    - `dropout`: dropout rate; applied only if `tap.key` is set.
    - `context`: number of positions that a query sees, including itself; None: all before it. With
      one layer this is the context-restricted predictor. With more layers each one reaches further
      back.
    - `dropout_every`: apply dropout only in one step out of this many; None: in all. The published
      runs used one in three.
    - `start`: `"xavier"`: the published initialisation: maps uniform in ±√(6/(inputs + outputs)),
      positions as rows of such a map from 50 positions, biases 0, an orthogonal decoder (published
      without a bias). None: PyTorch's: maps and biases uniform in ±1/√inputs, positions N(0, 1).
      The encoder is orthogonal in both; a position is 1.3 times as long as a token, or 16 times.
    - `dropout_at`: places of dropout: `"attention"` weights, the outputs that attention and MLP
      have `"added"`, the MLP's `"hidden"` features (the three places of PyTorch's encoder layer),
      the `"embedding"` (token plus position). The published code uses `("embedding", "attention",
      "added")`.

    Products use the precision that is set by `jax.default_matmul_precision`.

    >>> import jax, jax.numpy as jnp
    >>> model = em.ChainTransformer(heads=2, width=8)
    >>> spec = em.Spec(length=6, inputs=5, outputs=5, answers=4)
    >>> params = model.init(jax.random.key(0), spec)
    >>> model.apply(params, jnp.zeros((7, 6), int), em.Tap(spec)).value.shape
    (7, 4, 5)
    """

    heads: int = option(default=3, low=1)
    width: int = option(default=255, low=1)
    hidden: int = option(default=64, low=1)
    layers: int = option(default=1, low=1)
    dropout: float = option(default=0.1, low=0.0)
    context: int | None = per_run(default=None, low=1)
    dropout_every: int | None = option(default=None, low=1)
    start: Literal["xavier"] | None = option(default=None, at_start=True)
    dropout_at: tuple[str, ...] = ("attention", "added", "hidden")
    precisions = ("fp32", "fp64")
    only_tokens = True

    def __post_init__(self) -> None:
        check_heads(self, self.heads, self.width)
        if self.dropout >= 1:
            raise InputError(f"ChainTransformer.dropout must be below 1, got {self.dropout!r}")
        if not {*self.dropout_at} <= {*DROPOUT_PLACES}:
            raise InputError(
                f"ChainTransformer.dropout_at must name places of {', '.join(DROPOUT_PLACES)}, got "
                f"{self.dropout_at!r}"
            )

    def init(self, key: Array, spec: Spec) -> ChainParameters:
        key = raw(key)
        width = self.width
        xavier = self.start == "xavier"

        def draw(number: int, inputs: int, outputs: int) -> Array:
            over = (inputs + outputs) / 6 if xavier else inputs
            return (2 * uniform(fold_in(key, number), inputs, outputs) - 1) / math.sqrt(over)

        def linear(number: int, inputs: int, outputs: int) -> Linear:
            bias = (2 * uniform(fold_in(key, number), 1, outputs)[0] - 1) / math.sqrt(inputs)
            return Linear(draw(number + 1, inputs, outputs), 0 * bias if xavier else bias)

        def orthogonal(number: int, rows: int, columns: int) -> Array:
            sizes = max(rows, columns), min(rows, columns)
            q, r = jnp.linalg.qr(normals(fold_in(key, number), 1, *sizes)[0])
            q = q * jnp.sign(jnp.diagonal(r))
            return q if rows >= columns else q.T

        if xavier:
            positions = draw(1, max(_POSITIONS, spec.length), width)[: spec.length]
            bias = jnp.zeros(spec.outputs, jnp.float32)
            decode = Linear(orthogonal(3, width, spec.outputs), bias)
        else:
            positions = normals(fold_in(key, 1), 1, spec.length, width)[0]
            decode = linear(2, width, spec.outputs)
        blocks = []
        for first in range(4, 4 + 8 * self.layers, 8):
            query, keys, value, out = (draw(first + i, width, width) for i in range(4))
            up = linear(first + 4, width, self.hidden)
            down = linear(first + 6, self.hidden, width)
            norms = LayerNorm.identity(width), LayerNorm.identity(width)
            blocks.append(ChainBlock(query, keys, value, out, norms, up, down))
        return ChainParameters(orthogonal(0, spec.inputs, width), positions, tuple(blocks), decode)

    def apply(
        self, params: ChainParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP
    ) -> Output:
        read = answers(tap)
        last = read or 1
        length = inputs.shape[1]
        key = getattr(tap, "key", None) if self.dropout else None
        rate = self.rate(getattr(tap, "step", None))
        x = self.dropout_of(key, rate, self.layers, length)(embed(params, inputs), 0, "embedding")
        x = tap("embed", x)
        last_rows = []
        for i, block in enumerate(params.blocks):
            # In the last block only the positions that are read draw dropout masks.
            count = last if i == self.layers - 1 else length
            dropout = self.dropout_of(key, rate, i, count)
            x, row = self.block(block, x, project(block, x, x), dropout, tap, f"layers.{i}")
            last_rows.append(row)
        logits = linear(params.decode, x[:, length - last :])
        value = tap("value", logits[:, 0] if read is None else logits)
        return Output(value, jnp.stack(last_rows, 1))

    def dropout_of(
        self, key: Array | None, rate: float | Float[Array, ""], layer: int, count: int
    ) -> "Dropout":
        """Return the dropout of a layer that acts on its last `count` positions."""
        words = None if key is None else fold_in(raw(key), layer)
        return Dropout(words, rate, count, self.dropout_at)

    def rate(self, step: Int[Array, ""] | None) -> float | Float[Array, ""]:
        """Return the dropout rate at a step of training."""
        every = self.dropout_every
        if every is None or step is None:
            return self.dropout
        return jnp.where(step % every == 0, self.dropout, 0.0)

    def block(
        self,
        block: ChainBlock,
        x: Last,
        maps: QueriesKeysValues,
        dropout: Dropout,
        tap: TapFunction,
        name: str,
    ) -> tuple[Last, Float[Array, "n heads length"]]:
        """Apply a block.

        **Arguments:**

        - `x`: the residual stream at the last positions; these have queries.
        - `maps`: queries of these positions, keys and values of all.

        **Returns:** the stream after the block at these positions, and the attention of the last.
        """
        split = (self.heads, self.width // self.heads)
        q, k, v = (a.reshape(*a.shape[:2], *split) for a in maps)
        q = tap(f"{name}.queries", q)
        k = tap(f"{name}.keys", k)
        v = tap(f"{name}.values", v)
        scores = tap(f"{name}.scores", jnp.einsum("nqhs,nkhs->nhqk", q, k) / math.sqrt(split[1]))
        last, length = scores.shape[-2:]
        visible = causal(length, self.context)[length - last :]
        pattern = tap(f"{name}.pattern", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1))
        mixed = jnp.einsum("nhqk,nkhs->nqhs", dropout(pattern, 0, "attention"), v)
        mixed = tap(f"{name}.mixed", mixed)
        added = tap(f"{name}.attention", product(mixed.reshape(x.shape), block.out))
        x = block.norms[0](x + dropout(added, 1, "added"))
        hidden = dropout(jax.nn.relu(linear(block.up, x)), 2, "hidden")
        added = tap(f"{name}.mlp", linear(block.down, hidden))
        x = tap(f"{name}.output", block.norms[1](x + dropout(added, 3, "added")))
        return x, pattern[:, :, -1]


def embed(params: ChainParameters, tokens: Int[Array, "n last"]) -> Last:
    """Embed tokens that stand at the last positions."""
    return rows_of(params.encode[None], params.positions[None], tokens)[0]


def rows_of(
    encode: Float[Array, "tables rows width"],
    positions: Float[Array, "tables length width"],
    tokens: Int[Array, "n last"],
) -> Float[Array, "tables n last width"]:
    """Look up the rows of tokens in several tables, and add the rows of their positions."""
    return look_up(encode, tokens) + positions[:, None, positions.shape[1] - tokens.shape[1] :]


def project(block: ChainBlock, last: Last, x: All) -> QueriesKeysValues:
    """Return queries of the last positions, keys and values of all."""
    return product(last, block.query), product(x, block.key), product(x, block.value)


def linear(map: Linear, x: Float[Array, "n length inputs"]) -> Float[Array, "n length outputs"]:
    return product(x, map.weight) + map.bias
