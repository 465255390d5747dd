"""The full Transformer of yuksel2026: post-norm blocks on tokens, with learned positions and dropout.

It is not an option of `Transformer`: it starts otherwise, and several of the last positions are read.
"""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._contract import NO_TAP, Output, Spec
from .._errors import InputError
from .._pytree import option, per_run
from .._random import Key, fold_in, normals, raw, uniform
from ._attention import causal
from ._model import Model, TapFunction, answers
from ._products import Linear, Scale, look_up, product

_POSITIONS = 50  # rows of the published table of positions
_PLACES = ("embedding", "attention", "added", "hidden")  # where dropout may be


class ChainBlock(NamedTuple):
    query: Float[Array, "width width"]
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]
    out: Float[Array, "width width"]
    norms: tuple[Scale, Scale]  # after the attention and after the MLP
    up: Linear
    down: Linear


class ChainParameters(NamedTuple):
    encode: Float[Array, "vocabulary width"]
    positions: Float[Array, "length width"]
    blocks: tuple[ChainBlock, ...]
    decode: Linear


_Asked = Float[Array, "n last width"]  # the stream where it is asked for
_All = Float[Array, "n length width"]
_Maps = tuple[_Asked, _All, _All]  # queries, keys and values, heads side by side


class _Dropout(NamedTuple):
    """Dropout in one layer, at so many of its last positions: the others of the last layer are not read, and draw nothing. It
    is not in force where there is no key."""

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
        rows, columns, key = math.prod(read.shape[:-1]), x.shape[-1], fold_in(self.key, slot)
        # In a loop, for two halves: outside of one, XLA compiles the generator into everything that reads the mask, which takes
        # half a minute on a CPU.
        halves = jax.lax.map(lambda i: uniform(fold_in(key, i), -(-rows // 2), columns) < self.rate, jnp.arange(2))
        dropped = halves.reshape(-1, columns)[:rows].reshape(read.shape)
        return jnp.concatenate([unread, jnp.where(dropped, 0, read / (1 - self.rate))], -2)


class ChainTransformer(Model):
    """The full Transformer of yuksel2026, on whole-number tokens (n, length); the defaults are the paper's.

    **Arguments:**

    - `heads`: the number of heads of a layer; they share the width.
    - `width`: the features of a token between layers.
    - `hidden`: the hidden features of an MLP.
    - `layers`: the number of layers.
    - `dropout`: the rate; in force where `tap.key` is given.
    - `dropout_at`: where: `"attention"` weights, what attention and MLP have `"added"`, the MLP's `"hidden"` features (the
      three places of PyTorch's encoder layer), the `"embedding"` (token plus position). The published code has it at
      `("embedding", "attention", "added")`.
    - `context`: how many positions a query sees, itself among them; None: all before it. With one layer this is the
      context-restricted predictor; with more, a window reaches further back by each layer.
    - `dropout_every`: in one step of so many dropout is in force, the first of them; None: in all. In the published runs it
      was one in three.
    - `start`: `"xavier"`: as in the published code: maps uniform in ±√(6/(inputs + outputs)), positions as the rows of such a
      map from 50 positions, biases 0, the decoder orthogonal (there without a bias). None: PyTorch's: maps and biases uniform
      in ±1/√inputs, positions N(0, 1). The encoder starts orthogonal in both: a position is 1.3 times as long as a token or 16
      times.

    Products have the precision that is in force (`jax.default_matmul_precision`).

    >>> import jax, jax.numpy as jnp
    >>> model, spec = em.ChainTransformer(heads=2, width=8), em.Spec(length=6, inputs=5, outputs=5, answers=4)
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
        if self.width % self.heads:
            raise InputError(f"ChainTransformer.heads must divide width, got {self.heads} heads with width {self.width}")
        if self.dropout >= 1:
            raise InputError(f"ChainTransformer.dropout must be below 1, got {self.dropout!r}")
        if not isinstance(self.dropout_at, tuple) or not set(self.dropout_at) <= set(_PLACES):
            raise InputError(f"ChainTransformer.dropout_at must name places of {', '.join(_PLACES)}, got {self.dropout_at!r}")

    def init(self, key: Array, spec: Spec) -> ChainParameters:
        key, width, xavier = raw(key), self.width, self.start == "xavier"

        def draw(number: int, inputs: int, outputs: int) -> Array:
            over = (inputs + outputs) / 6 if xavier else inputs
            return (2 * uniform(fold_in(key, number), inputs, outputs) - 1) / math.sqrt(over)

        def linear(number: int, inputs: int, outputs: int) -> Linear:
            bias = (2 * uniform(fold_in(key, number), 1, outputs)[0] - 1) / math.sqrt(inputs)
            return Linear(draw(number + 1, inputs, outputs), 0 * bias if xavier else bias)

        def orthogonal(number: int, rows: int, columns: int) -> Array:
            q, r = jnp.linalg.qr(normals(fold_in(key, number), 1, max(rows, columns), min(rows, columns))[0])
            q = q * jnp.sign(jnp.diagonal(r))
            return q if rows >= columns else q.T

        if xavier:
            positions = draw(1, max(_POSITIONS, spec.length), width)[: spec.length]
            decode = Linear(orthogonal(3, width, spec.outputs), jnp.zeros(spec.outputs, jnp.float32))
        else:
            positions, decode = normals(fold_in(key, 1), 1, spec.length, width)[0], linear(2, width, spec.outputs)
        blocks = []
        for first in range(4, 4 + 8 * self.layers, 8):
            query, keys, value, out = (draw(first + i, width, width) for i in range(4))
            up, down = linear(first + 4, width, self.hidden), linear(first + 6, self.hidden, width)
            norms = Scale.identity(width), Scale.identity(width)
            blocks.append(ChainBlock(query, keys, value, out, norms, up, down))
        return ChainParameters(orthogonal(0, spec.inputs, width), positions, tuple(blocks), decode)

    def apply(self, params: ChainParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP) -> Output:
        return self._forward(params, inputs, tap, tap, lean=False)

    def fast(self, params: ChainParameters, inputs: Int[Array, "n length"], tap: TapFunction = NO_TAP) -> Output:
        """The last block has no queries but those that are read, and the first maps its tables instead of every token. Of the
        taps, only `value` is there."""
        return self._forward(params, inputs, tap, NO_TAP, lean=True)

    def _forward(
        self, params: ChainParameters, inputs: Int[Array, "n length"], tap: TapFunction, inner: TapFunction, lean: bool
    ) -> Output:
        """`inner` is the tap of all points but the last."""
        read, key, rate = answers(tap), getattr(tap, "key", None), self._rate(getattr(tap, "step", None))

        def compute(key: Array | None, params: ChainParameters) -> tuple[_Asked, Float[Array, "n layers heads length"]]:
            return self._logits(params, inputs, read or 1, inner, lean, None if key is None else raw(key), rate)

        if key is None or not self.dropout:
            logits, rows = compute(None, params)
        elif lean and "embedding" in self.dropout_at and isinstance(rate, Array):
            # Without dropout the first block is folded, which takes half the time. The branch is one for all runs of a stack.
            dry, wet = functools.partial(compute, None), functools.partial(compute, key)
            logits, rows = jax.lax.cond(_in_any_run(rate > 0), wet, dry, params)
        else:
            logits, rows = compute(key, params)
        return Output(tap("value", logits[:, 0] if read is None else logits), rows)

    def _rate(self, step: Int[Array, ""] | None) -> float | Float[Array, ""]:
        """Of dropout, at a step."""
        every = self.dropout_every
        return self.dropout if every is None or step is None else jnp.where(step % every == 0, self.dropout, 0.0)

    def _logits(
        self,
        params: ChainParameters,
        inputs: Int[Array, "n length"],
        last: int,
        tap: TapFunction,
        lean: bool,
        key: Key | None,
        rate: float | Float[Array, ""],
    ) -> tuple[Float[Array, "n last outputs"], Float[Array, "n layers heads length"]]:
        """At the last positions; and the attention of the last of all."""

        def dropout(layer: int, count: int) -> _Dropout:
            return _Dropout(None if key is None else fold_in(key, layer), rate, count, self.dropout_at)

        embedding, last_rows = dropout(self.layers, inputs.shape[1]), []
        folded = lean and not embedding.at("embedding")
        asked_tokens = inputs[:, inputs.shape[1] - last :] if folded and self.layers == 1 else inputs
        x = tap("embed", embedding(_embed(params, asked_tokens), 0, "embedding"))
        for i, block in enumerate(params.blocks):
            count = last if i == self.layers - 1 else x.shape[1]
            asked = x[:, x.shape[1] - count :] if lean else x
            maps = _first_maps(params, asked_tokens, inputs) if folded and i == 0 else _maps(block, asked, x)
            x, row = self._block(block, asked, maps, dropout(i, count), tap, f"layers.{i}")
            last_rows.append(row)
        return _linear(params.decode, x[:, x.shape[1] - last :]), jnp.stack(last_rows, 1)

    def _block(
        self, block: ChainBlock, asked: _Asked, maps: _Maps, dropout: _Dropout, tap: TapFunction, name: str
    ) -> tuple[_Asked, Float[Array, "n heads length"]]:
        """The stream above a block at the positions that are asked, and the attention of the last."""
        split = (self.heads, self.width // self.heads)
        q, k, v = (a.reshape(*a.shape[:2], *split) for a in maps)
        q, k, v = tap(f"{name}.queries", q), tap(f"{name}.keys", k), tap(f"{name}.values", v)
        scores = tap(f"{name}.scores", jnp.einsum("nqhs,nkhs->nhqk", q, k) / math.sqrt(split[1]))
        last, length = scores.shape[-2:]
        visible = causal(length, self.context)[length - last :]
        pattern = tap(f"{name}.pattern", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1))
        mixed = tap(f"{name}.mixed", jnp.einsum("nhqk,nkhs->nqhs", dropout(pattern, 0, "attention"), v))
        added = tap(f"{name}.attention", product(mixed.reshape(asked.shape), block.out))
        x = block.norms[0](asked + dropout(added, 1, "added"))
        hidden = dropout(jax.nn.relu(_linear(block.up, x)), 2, "hidden")
        added = tap(f"{name}.mlp", _linear(block.down, hidden))
        return tap(f"{name}.output", block.norms[1](x + dropout(added, 3, "added"))), pattern[:, :, -1]


@jax.custom_batching.custom_vmap
def _in_any_run(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether it is so in any run of a stack: not one value per run, so that a branch on it stays one."""
    return flag


@_in_any_run.def_vmap
def _in_any_run_of_a_stack(size: int, batched: list[bool], flags: Bool[Array, " runs"]) -> tuple[Bool[Array, ""], bool]:
    return (jnp.any(flags) if batched[0] else flags), False


def _embed(params: ChainParameters, tokens: Int[Array, "n last"]) -> _Asked:
    """The last positions, as many as there are tokens."""
    return _rows_of(params.encode[None], params.positions[None], tokens)[0]


def _rows_of(
    encode: Float[Array, "tables rows width"], positions: Float[Array, "tables length width"], tokens: Int[Array, "n last"]
) -> Float[Array, "tables n last width"]:
    return look_up(encode, tokens) + positions[:, None, positions.shape[1] - tokens.shape[1] :]


def _maps(block: ChainBlock, asked: _Asked, x: _All) -> _Maps:
    """Queries of those that are asked, keys and values of all."""
    return product(asked, block.query), product(x, block.key), product(x, block.value)


def _first_maps(params: ChainParameters, asked: Int[Array, "n last"], tokens: Int[Array, "n length"]) -> _Maps:
    """Those of the first block: a map of a token's row plus a position's is that of the mapped tables' rows."""
    query, key, value = params.blocks[0][:3]
    (queries,) = _rows_of(params.encode @ query[None], params.positions @ query[None], asked)
    both = jnp.stack([key, value])
    return queries, *_rows_of(params.encode @ both, params.positions @ both, tokens)


def _linear(map: Linear, x: Float[Array, "n length inputs"]) -> Float[Array, "n length outputs"]:
    return product(x, map.weight) + map.bias
