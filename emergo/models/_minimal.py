r"""The minimal attention of yuksel2026: one-hot tokens and positions, full-size queries and values, and nothing else.

The input of position t is $x_t = \mathrm{onehot}(\text{token}) \oplus \mathrm{onehot}(t)$, of size D = vocabulary + length. A
head has scores $x_i^\top W_Q x_t / \sqrt D$ (the key map is the identity) and adds $\sum_i a_{ti} W_V x_i$; heads are summed.
The prediction is the first `vocabulary` coordinates of the output.

Two forwards compute the same function. `MinimalAttention.forward` is the plain one: dense products, every position, every
attention map. `MinimalAttention.answer` computes what the task reads: products with one-hot inputs are look-ups, and the last
layer has only the queries and outputs that are compared.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._errors import InputError, check_numbers, unknown
from .._random import fold_in, raw, uniform
from ._products import look_up, pick

Start = Literal["xavier", "small"]


class MinimalLayer(NamedTuple):
    query: Float[Array, "heads size size"]
    """W_Q: (head, coordinate of the key, coordinate of the query)."""
    value: Float[Array, "heads size outputs"]
    """W_V: (head, coordinate of the input, coordinate of the output). The last layer keeps the outputs that are read."""


MinimalParameters = tuple[MinimalLayer, ...]


class Attended(NamedTuple):
    """What the plain forward returns."""

    logits: Float[Array, "n length vocabulary"]
    attention: Float[Array, "n layers heads length length"]
    """Weights from each position (fourth axis) to each (fifth)."""


def visible(length: int, context: int | Int[Array, ""] | None) -> Bool[Array, "length length"]:
    """Which positions each one sees: itself and those before it, the last `context` of them."""
    behind = jnp.arange(length)[:, None] - jnp.arange(length)
    return (behind >= 0) & (behind < (length if context is None else context))


def _each(function: Callable[[MinimalLayer], Any], layer: MinimalLayer) -> Any:
    """What a function of heads gives for all of them; in 64 bits for one after another, so that equal heads stay equal.

    A product over all heads at once may round those at its edge otherwise. In fp32 that was not seen, and a loop costs time.
    """
    if layer.query.dtype != jnp.float64:
        return function(layer)

    def one(head: MinimalLayer) -> Any:
        return jax.tree.map(lambda a: a[0], function(MinimalLayer(*(a[None] for a in head))))

    return jax.lax.map(one, layer)


@dataclasses.dataclass(frozen=True)
class MinimalAttention:
    """The options of the minimal model; parameters are separate: `init` draws them.

    **Arguments:**

    - `length`: how many positions are read: for a [`emergo.tasks.MarkovChain`][] one fewer than its sequences have.
    - `vocabulary`, `heads`, `layers`: sizes. Layers but the last put out all coordinates.
    - `start`: `"small"`: values 0 and queries uniform in ± `scale` (Fig. 1); `"xavier"`: both uniform in ± √(6/2D). At scale 0
      all heads are the same.
    - `context`: how many positions a query sees, itself among them; None: all before it.
    """

    length: int
    vocabulary: int = 50
    heads: int = 3
    layers: int = 1
    start: Start = "small"
    scale: float = 1e-9
    context: int | None = None

    def __post_init__(self) -> None:
        names = ("length", "vocabulary", "heads", "layers", *(() if self.context is None else ("context",)))
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_numbers(self)
        if self.start not in get_args(Start):
            raise unknown("start", str(self.start), get_args(Start))
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise InputError(f"scale must be finite and not negative, got {self.scale!r}")

    @property
    def size(self) -> int:
        """D, coordinates of an input."""
        return self.vocabulary + self.length

    @property
    def width(self) -> int:
        """Features of the stream, as other models call them: D."""
        return self.size

    def init(self, key: Array, scale: float | Array | None = None) -> MinimalParameters:
        """Draws the parameters; `scale` may be traced and stands in for the option of that name."""
        scale = self.scale if scale is None else scale
        bound, found = math.sqrt(3 / self.size), []
        for layer in range(self.layers):
            outputs = self.vocabulary if layer == self.layers - 1 else self.size

            def draw(place: int, columns: int) -> Array:
                chance = uniform(fold_in(raw(key), place), self.heads * self.size, self.size)[:, :columns]
                return (2 * chance - 1).reshape(self.heads, self.size, columns)

            query = draw(2 * layer, self.size)
            if self.start == "xavier":
                found.append(MinimalLayer(bound * query, bound * draw(2 * layer + 1, outputs)))
            else:
                found.append(MinimalLayer(scale * query, jnp.zeros((self.heads, self.size, outputs), jnp.float32)))
        return tuple(found)

    def forward(self, parameters: MinimalParameters, tokens: Int[Array, "n length"]) -> Attended:
        """The plain forward."""
        one_hot = jax.nn.one_hot(tokens, self.vocabulary)
        place = jnp.broadcast_to(jnp.eye(self.length), (len(tokens), self.length, self.length))
        x, maps = jnp.concatenate([one_hot, place], -1), []
        for layer in parameters:
            mixed, attention = _each(functools.partial(self._plain, x=x), layer)
            maps.append(jnp.swapaxes(attention, 0, 1))
            x = jnp.sum(mixed, 0)
        return Attended(x, jnp.stack(maps, axis=1))

    def _plain(self, layer: MinimalLayer, x: Float[Array, "n length size"]) -> tuple[Array, Array]:
        """What each head adds, and its attention."""
        queries = jnp.einsum("hkc,ntc->hntk", layer.query, x, precision="highest")
        scores = jnp.einsum("hntk,nik->hnti", queries, x, precision="highest")
        attention = self._weigh(scores, self.length)
        values = jnp.einsum("nic,hco->hnio", x, layer.value, precision="highest")
        return jnp.einsum("hnti,hnio->hnto", attention, values, precision="highest"), attention

    def answer(
        self,
        parameters: MinimalParameters,
        tokens: Int[Array, "n length"],
        last: int,
        context: Int[Array, ""] | None = None,
    ) -> Float[Array, "n last vocabulary"]:
        """Logits at the `last` positions, those that the task compares; `context` stands in for the option."""
        first, *rest = parameters
        queries = last if not rest else self.length
        x = jnp.sum(_each(functools.partial(self._first, tokens=tokens, last=queries, context=context), first), 0)
        for i, layer in enumerate(rest):
            asked = last if i == len(rest) - 1 else self.length
            if x.dtype == jnp.float64:
                x = jnp.sum(_each(lambda one, x=x, asked=asked: self._dense(one, x, asked, context)[None], layer), 0)
            else:
                x = self._dense(layer, x, asked, context)
        return x

    def _weigh(
        self, scores: Float[Array, "*rows queries length"], last: int, context: Int[Array, ""] | None = None
    ) -> Float[Array, "*rows queries length"]:
        seen = visible(self.length, self.context if context is None else context)[self.length - last :]
        return jax.nn.softmax(jnp.where(seen, scores / math.sqrt(self.size), -jnp.inf), -1)

    def _first(
        self, layer: MinimalLayer, tokens: Int[Array, "n length"], last: int, context: Int[Array, ""] | None
    ) -> Float[Array, "heads n last outputs"]:
        """What each head of the first layer adds, whose input is one-hot, at its last positions."""
        vocabulary = self.vocabulary
        by_query = jnp.swapaxes(layer.query, 1, 2)
        queries = look_up(by_query[:, :vocabulary], tokens[:, self.length - last :])
        queries = queries + by_query[:, None, vocabulary + self.length - last :]
        attention = self._weigh(pick(queries[..., :vocabulary], tokens) + queries[..., vocabulary:], last, context)
        values = look_up(layer.value[:, :vocabulary], tokens) + layer.value[:, None, vocabulary:]
        return jnp.einsum("hnti,hnio->hnto", attention, values, precision="highest")

    def _dense(
        self, layer: MinimalLayer, x: Float[Array, "n length size"], last: int, context: Int[Array, ""] | None
    ) -> Float[Array, "n last outputs"]:
        """A later layer: the key map moves to the queries, and values behind the weighted sum."""
        dot = functools.partial(jnp.einsum, precision="highest")
        scores = dot("hntk,nik->hnti", dot("hkc,ntc->hntk", layer.query, x[:, self.length - last :]), x)
        mixed = dot("hnti,nic->hntc", self._weigh(scores, last, context), x)
        return dot("hntc,hco->nto", mixed, layer.value)
