r"""The Transformer of zucchet2025, Section 2.4 and Table 1, with the options a reader will want to change.

Two forwards compute the same function. `Transformer.forward` is the plain one: every position, every attention map.
`Transformer.answer` computes only what the task reads, the output at the last position:

- The last layer has one query. With $n_t$ its input, $q_h\cdot k_{t,h} = n_t\cdot(W^K_h q_h) + q_h\cdot b^K_h$ and
  $\sum_t a_t v_{t,h} = (\sum_t a_t n_t) W^V_h + (\sum_t a_t)\, b^V_h$: keys and values of single tokens are never formed.
- The first layer reads $x_t E + m_t e + c_t$ (token, mark, position), so that its maps compose with the embedding: $x_t (E W)$
  costs dim/width of $(x_t E) W$. With one layer both apply, and no token is ever embedded. With more, a GPU is faster when only
  the gradient is composed.
"""

import dataclasses
import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import InputError, check_numbers, unknown
from .._random import Key, fold_in, normals, raw, uniform
from ._attention import Attention, attend, attend_all, score, weigh

Norm = Literal["none", "pre", "post"]
Mask = Literal["none", "causal"]
Activation = Literal["relu", "gelu"]
Initial = Literal["pytorch", "xavier", "normal"]
Positions = Literal["sinusoidal", "learned", "none"]


def _rows(x: Float[Array, "*rows inputs"], weight: Float[Array, "inputs outputs"]) -> Float[Array, "*rows outputs"]:
    """A product over all rows as one axis: XLA's CPU products are half as fast over two."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], -1)


def _rows_back(x: Float[Array, "*rows inputs"], g: Float[Array, "*rows outputs"]) -> Float[Array, "inputs outputs"]:
    """The gradient of `_rows` by its weight."""
    return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])


class Linear(NamedTuple):
    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        return _rows(x, self.weight) + self.bias


class Scale(NamedTuple):
    """Layer normalisation with a learned gain and offset."""

    gain: Float[Array, " width"]
    offset: Float[Array, " width"]

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        return normal.astype(x.dtype) * self.gain + self.offset


class Layer(NamedTuple):
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    bias: Float[Array, "heads length length"] | None
    """A learned logit for every pair of positions, where the attention has one."""
    up: Linear | None
    down: Linear | None
    norms: tuple[Scale, Scale] | None
    """Of the attention and of the MLP."""


class Parameters(NamedTuple):
    embed: Linear
    mark: Float[Array, " width"] | None
    """What the indicator feature adds to a token."""
    positions: Float[Array, "length width"] | None
    """Learned positions; None where they are sinusoidal or absent."""
    layers: tuple[Layer, ...]
    norm: Scale | None
    """Before the readout, with `norm="pre"`."""
    readout: Linear


class Seen(NamedTuple):
    """What the plain forward returns."""

    outputs: Float[Array, "n length outputs"]
    attention: Float[Array, "n layers heads length length"]
    """Weights from each position (fourth axis) to each (fifth)."""


class Watched(NamedTuple):
    """What the last position puts out, and where it looks."""

    output: Float[Array, "n outputs"]
    attention: Float[Array, "n layers heads length"]


@dataclasses.dataclass(frozen=True)
class Transformer:
    """The options of a Transformer; the defaults are those of zucchet2025, Table 1. Parameters are separate: `init` draws them.

    **Arguments:**

    - `heads`: they share the width: each has width / heads features.
    - `mlp_factor`: hidden features of an MLP over width.
    - `norm`: layer normalisation: none (as in the paper), before each part (and before the readout), or after each skip
      connection.
    - `mask`: none, or causal attention.
    - `attention`: see [`emergo.models.Attention`][].
    - `initial`: `"pytorch"`: weights and biases uniform in ±1/√inputs; `"xavier"`: uniform, biases 0; `"normal"`: N(0, 0.02²),
      biases 0.
    - `positions`: what is added to the tokens: sinusoids (Vaswani et al. 2017), learned (initially N(0, 1)), or nothing.
    - `skip`, `mlp`: whether there are skip connections and MLPs.
    """

    layers: int = 2
    heads: int = 4
    width: int = 256
    mlp_factor: int = 4
    norm: Norm = "none"
    mask: Mask = "none"
    activation: Activation = "relu"
    attention: Attention = "softmax"
    initial: Initial = "pytorch"
    positions: Positions = "sinusoidal"
    skip: bool = True
    mlp: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "mlp_factor"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_numbers(self)
        if self.width % self.heads:
            raise InputError(f"heads must divide width, got {self.heads} heads with width {self.width}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise InputError(f"sinusoidal positions need an even width, got {self.width}")
        choices = (Norm, Mask, Activation, Attention, Initial, Positions)
        for name, kind in zip(("norm", "mask", "activation", "attention", "initial", "positions"), choices, strict=True):
            if getattr(self, name) not in get_args(kind):
                raise unknown(name, str(getattr(self, name)), get_args(kind))

    def init(
        self,
        key: Array,
        length: int,
        features: int,
        outputs: int,
        marks: bool = False,
        used: tuple[int | Array, int | Array] | None = None,
    ) -> Parameters:
        """Draws the parameters for sequences of `length` tokens with `features` features (one more with `marks`).

        `used` says how many features and outputs there really are, and may be traced: the parameters are then those of the
        smaller model, padded with zeros. As long as the other features of the tokens and of the targets are zero, so are the
        gradients of the padding.
        """
        key, width, hidden = raw(key), self.width, self.width * self.mlp_factor
        inputs, readable = (features, outputs) if used is None else used
        # One table for all that does not depend on the sizes of the task, and rows of their own for what does.
        rows = _Rows(key, self.initial, self.layers * (4 * (width + 1) + (2 * hidden + self.mlp_factor + 1) * self.mlp), width)
        layers = []
        for _ in range(self.layers):
            query, keys, value, out = (rows.linear(width, width) for _ in range(4))
            # A table of logits starts at 0: attention starts uniform, or as the content says.
            biased = self.attention in ("biased", "positional")
            bias = jnp.zeros((self.heads, length, length), jnp.float32) if biased else None
            up, down = (rows.linear(width, hidden), rows.linear(hidden, width)) if self.mlp else (None, None)
            norms = (_unit(width), _unit(width)) if self.norm != "none" else None
            layers.append(Layer(query, keys, value, out, bias, up, down, norms))
        drawn = _Rows(fold_in(key, 1), self.initial, features + 2, width).scaled(inputs + marks, width)
        mark = drawn[1] if marks else None
        embed = Linear(jnp.where(jnp.arange(features)[:, None] < inputs, drawn[2:], 0), self._offset(drawn[0]))
        drawn = _Rows(fold_in(key, 2), self.initial, outputs, width + 1).scaled(width, readable)
        drawn = jnp.where(jnp.arange(outputs)[:, None] < readable, drawn, 0)
        readout = Linear(drawn[:, :-1].T, self._offset(drawn[:, -1]))
        positions = normals(fold_in(key, 3), 1, length, width)[0] if self.positions == "learned" else None
        return Parameters(embed, mark, positions, tuple(layers), _unit(width) if self.norm == "pre" else None, readout)

    def _offset(self, drawn: Array) -> Array:
        return drawn if self.initial == "pytorch" else jnp.zeros_like(drawn)

    def forward(
        self,
        parameters: Parameters,
        tokens: Float[Array, "n length features"],
        marks: Float[Array, "n length"] | None = None,
    ) -> Seen:
        """The plain forward: outputs at all positions, and the attention of every layer and head."""
        length = tokens.shape[1]
        x = parameters.embed(tokens) + self._places(parameters, length, tokens.dtype)
        if parameters.mark is not None:
            x = x + _marks(marks)[..., None] * parameters.mark
        maps = []
        for layer in parameters.layers:
            n = self._before(layer, 0, x)
            q, k, v = (self._heads(part(n)) for part in (layer.query, layer.key, layer.value))
            weights = weigh(self.attention, score(self.attention, q, k, layer.bias), self._visible(length))
            maps.append(jnp.broadcast_to(weights, (len(tokens), *weights.shape[1:])))
            x = self._finish(layer, x, attend(weights, v).reshape(*x.shape))
        if parameters.norm is not None:
            x = parameters.norm(x)
        return Seen(parameters.readout(x), jnp.stack(maps, axis=1))

    def answer(
        self,
        parameters: Parameters,
        tokens: Float[Array, "n length features"],
        marks: Float[Array, "n length"] | None = None,
        fused: bool = False,
    ) -> Float[Array, "n outputs"]:
        """The output at the last position, by the cheapest exact way; `fused`: by the cheapest on a GPU."""
        return self.watch(parameters, tokens, marks, fused).output

    def watch(
        self,
        parameters: Parameters,
        tokens: Float[Array, "n length features"],
        marks: Float[Array, "n length"] | None = None,
        fused: bool = False,
    ) -> Watched:
        """As `answer`, with the attention weights of the last position in every layer, which cost next to nothing."""
        count, length, features = tokens.shape
        seen = _Embedded.of(parameters, tokens, marks, self._places(parameters, length, tokens.dtype))
        x: Array | None = None  # the stream of all positions, once a layer has been computed
        composes = self.norm != "pre"
        rows = []
        for layer in parameters.layers[:-1]:
            layer = _lean(layer) if fused and self.attention == "softmax" else layer
            below = seen.stream() if x is None else x
            maps = (layer.query, layer.key, layer.value)
            if x is None and composes and features < self.width:
                q, k, v = (self._heads(seen.through(map, fused)) for map in maps)
            else:
                n = self._before(layer, 0, below)
                q, k, v = (self._heads(map(n)) for map in maps)
            rows.append(weigh(self.attention, score(self.attention, q[:, -1:], k, _row(layer)), None)[:, :, 0])
            mixed = attend_all(self.attention, q, k, v, layer.bias, self._visible(length), fused)
            x = self._finish(layer, below, mixed.reshape(count, length, self.width))
        layer = parameters.layers[-1]
        last = seen.last() if x is None else x[:, -1]
        source = seen if x is None and composes else _Stream(self._before(layer, 0, seen.stream() if x is None else x))
        mixed, row = self._one_query(layer, source, self._before(layer, 0, last))
        y = self._finish(layer, last, mixed)
        if parameters.norm is not None:
            y = parameters.norm(y)
        maps = [jnp.broadcast_to(r, (count, self.heads, length)) for r in (*rows, row)]
        return Watched(parameters.readout(y), jnp.stack(maps, axis=1))

    def value_path(self, parameters: Parameters) -> Float[Array, "features outputs"]:
        r"""The linear map from a token to the output through the values alone: $\sum_\ell E\, W^V_\ell W^O_\ell\, U$.

        It leaves out attention weights, norms and MLPs: what the output would read from a token that was attended to.
        """
        maps = sum(layer.value.weight @ layer.out.weight for layer in parameters.layers)
        return parameters.embed.weight @ maps @ parameters.readout.weight

    def _one_query(
        self, layer: Layer, source: "_Embedded | _Stream", x: Float[Array, "n width"]
    ) -> tuple[Float[Array, "n width"], Float[Array, "#n heads length"]]:
        """The attention's output at the last position, without keys and values of single tokens; and its weights."""
        size = self.width // self.heads
        if self.attention == "positional" and layer.bias is not None:
            scores = layer.bias[None, :, -1].astype(jnp.float32)
        else:
            q = self._heads(layer.query(x))
            probe = jnp.einsum("nhs,whs->nhw", q, self._heads(layer.key.weight))
            constant = jnp.sum(q * self._heads(layer.key.bias), -1, keepdims=True).astype(jnp.float32)
            scores = (source.against(probe) + constant) / math.sqrt(size)
            if layer.bias is not None:
                scores = scores + layer.bias[:, -1].astype(jnp.float32)
        weights = weigh(self.attention, scores, None)  # the last position sees all, masked or not
        total = jnp.sum(weights, -1, keepdims=True).astype(x.dtype)
        taken = source.gather(jnp.broadcast_to(weights.astype(x.dtype), (len(x), *weights.shape[1:])))
        values = jnp.einsum("nhw,whs->nhs", taken, self._heads(layer.value.weight)) + total * self._heads(layer.value.bias)
        return values.reshape(x.shape), weights

    def _finish(self, layer: Layer, x: Float[Array, "*rows width"], mixed: Float[Array, "*rows width"]) -> Array:
        """Output map, skip connection and MLP."""
        x = self._after(layer, 0, (x if self.skip else 0) + layer.out(mixed))
        if layer.up is None or layer.down is None:
            return x
        act = _relu if self.activation == "relu" else jax.nn.gelu
        return self._after(layer, 1, (x if self.skip else 0) + layer.down(act(layer.up(self._before(layer, 1, x)))))

    def _before(self, layer: Layer, part: int, x: Array) -> Array:
        return layer.norms[part](x) if self.norm == "pre" and layer.norms else x

    def _after(self, layer: Layer, part: int, x: Array) -> Array:
        return layer.norms[part](x) if self.norm == "post" and layer.norms else x

    def _heads(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows heads size"]:
        return x.reshape(*x.shape[:-1], self.heads, self.width // self.heads)

    def _visible(self, length: int) -> Array | None:
        return jnp.tril(jnp.ones((length, length), bool)) if self.mask == "causal" else None

    def _places(self, parameters: Parameters, length: int, dtype: jnp.dtype) -> Array:
        if parameters.positions is not None:
            return parameters.positions
        if self.positions == "none":
            return jnp.zeros((length, self.width), dtype)
        rate = jnp.exp(jnp.arange(0, self.width, 2, jnp.float32) * (-math.log(10_000) / self.width))
        angle = jnp.arange(length, dtype=jnp.float32)[:, None] * rate
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, self.width).astype(dtype)


class _Embedded(NamedTuple):
    """The stream below the first layer, x E + c, kept in its parts.

    x holds the token, its mark, a constant 1 and zeros to a multiple of 8; E the matching rows: embedding, mark, bias. So the
    gradients of all three are one matrix product, and no sum over tokens is left.
    """

    tokens: Float[Array, "n length columns"]
    embed: Float[Array, "columns width"]
    places: Float[Array, "length width"]
    one: Float[Array, " columns"]
    """Which column is the constant."""

    @classmethod
    def of(cls, parameters: Parameters, tokens: Array, marks: Array | None, places: Array) -> "_Embedded":
        embed, mark = parameters.embed, parameters.mark
        columns = [tokens] if mark is None else [tokens, _marks(marks)[..., None]]
        rows = [embed.weight] if mark is None else [embed.weight, mark[None]]
        spare = -(embed.weight.shape[0] + len(rows)) % 8
        ones, zeros = jnp.ones((*tokens.shape[:-1], 1), tokens.dtype), jnp.zeros((*tokens.shape[:-1], spare), tokens.dtype)
        rows += [embed.bias[None], jnp.zeros((spare, embed.weight.shape[1]), embed.weight.dtype)]
        one = (jnp.arange(tokens.shape[-1] + len(columns) + spare) == tokens.shape[-1] + len(columns) - 1).astype(tokens.dtype)
        return cls(jnp.concatenate([*columns, ones, zeros], -1), jnp.concatenate(rows), places, one)

    def stream(self) -> Float[Array, "n length width"]:
        return _rows(self.tokens, self.embed) + self.places

    def through(self, map: Linear, on_gpu: bool) -> Float[Array, "n length outputs"]:
        """The stream through a map, composed: (x E + c) W + b as x (E W + 1 b) + c W; `on_gpu` in the gradient only."""
        return _composed_back(self, map) if on_gpu else _composed(self, map)

    def last(self) -> Float[Array, "n width"]:
        return self.tokens[:, -1] @ self.embed + self.places[-1]

    def against(self, probe: Float[Array, "n heads width"]) -> Float[Array, "n heads length"]:
        """Inner products of the stream with `probe`, in fp32."""
        return _wide("nhf,ntf->nht", probe @ self.embed.T, self.tokens) + _wide("nhw,tw->nht", probe, self.places)

    def gather(self, weights: Float[Array, "n heads length"]) -> Float[Array, "n heads width"]:
        """Sums of the stream with `weights`."""
        return jnp.einsum("nht,ntf->nhf", weights, self.tokens) @ self.embed + jnp.einsum("nht,tw->nhw", weights, self.places)


def _composed(seen: _Embedded, map: Linear) -> Float[Array, "n length outputs"]:
    return _rows(seen.tokens, seen.embed @ map.weight + seen.one[:, None] * map.bias) + seen.places @ map.weight


@jax.custom_vjp
def _composed_back(seen: _Embedded, map: Linear) -> Float[Array, "n length outputs"]:
    """Composed in the gradient only. On a GPU the sum with c W takes longer than the product with W, and the stream is there
    already for the skip connection."""
    return map(seen.stream())


def _composed_backward(kept: tuple[_Embedded, Linear], g: Float[Array, "n length outputs"]) -> tuple[_Embedded, Linear]:
    """By hand: the sum of g over sequences that c W asks for is slower on a GPU than the product (x E + c)^T g."""
    seen, map = kept
    by_map = _rows_back(seen.tokens, g)
    by_weight = _rows_back(seen.stream(), g)
    by_tokens, by_places = _rows(g, (seen.embed @ map.weight).T), g.sum(0) @ map.weight.T  # dropped where nothing asks for them
    return _Embedded(by_tokens, by_map @ map.weight.T, by_places, by_map @ map.bias), Linear(by_weight, seen.one @ by_map)


_composed_back.defvjp(lambda seen, map: (_composed_back(seen, map), (seen, map)), _composed_backward)


class _Stream(NamedTuple):
    x: Float[Array, "n length width"]

    def against(self, probe: Float[Array, "n heads width"]) -> Float[Array, "n heads length"]:
        return _wide("nhw,ntw->nht", probe, self.x)

    def gather(self, weights: Float[Array, "n heads length"]) -> Float[Array, "n heads width"]:
        return jnp.einsum("nht,ntw->nhw", weights, self.x)


def _wide(what: str, a: Array, b: Array) -> Array:
    return jnp.einsum(what, a, b, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _relu(x: Array) -> Array:
    return jnp.maximum(x, 0)


def _relu_forward(x: Array) -> tuple[Array, Array]:
    # Only the output is kept: with the input kept too, XLA writes the sum inside out apart.
    y = jnp.maximum(x, 0)
    return y, y


_relu.defvjp(_relu_forward, lambda y, g: (jnp.where(y > 0, g, 0),))


def _lean(layer: Layer) -> Layer:
    """The same layer without two of its biases, which are passes over all tokens. Softmax does not see what all keys share; and
    as its weights sum to 1, the bias of the values can go through the output map as it is."""
    key, value, out = layer.key, layer.value, layer.out
    none = jnp.zeros_like(key.bias)
    lean = Linear(out.weight, out.bias + value.bias @ out.weight)
    return layer._replace(key=Linear(key.weight, none), value=Linear(value.weight, none), out=lean)


def _row(layer: Layer) -> Array | None:
    """The logits of the last position."""
    return None if layer.bias is None else layer.bias[:, -1:]


def _marks(marks: Array | None) -> Array:
    if marks is None:
        raise InputError("this model was made for marked tokens (the indicator feature), but marks is None")
    return marks


def _unit(width: int) -> Scale:
    return Scale(jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32))


class _Rows:
    """Initial numbers, drawn at once (a generator is slow to compile) and handed out a few rows at a time."""

    def __init__(self, key: Key, initial: Initial, rows: int, width: int) -> None:
        self._initial: Initial = initial
        self._rows = normals(key, 1, rows, width)[0] if initial == "normal" else 2 * uniform(key, rows, width) - 1
        self._next = 0

    def scaled(self, inputs: int | Array, outputs: int | Array) -> Array:
        """All of them, with the spread of a map of this many inputs and outputs."""
        if self._initial == "normal":
            return 0.02 * self._rows
        spread = 6 / jnp.float32(inputs + outputs) if self._initial == "xavier" else 1 / jnp.float32(inputs)
        return jnp.sqrt(spread) * self._rows

    def linear(self, inputs: int, outputs: int) -> Linear:
        width = self._rows.shape[1]
        count = (inputs + 1) * outputs // width
        drawn = self.scaled(inputs, outputs)[self._next : self._next + count].reshape(inputs + 1, outputs)
        self._next += count
        return Linear(drawn[:-1], drawn[-1] if self._initial == "pytorch" else jnp.zeros(outputs, jnp.float32))
