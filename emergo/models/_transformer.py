r"""The Transformer of zucchet2025, Section 2.4 and Table 1, with the options a reader will want to change.

Two forwards compute the same function. `Transformer.apply` is the plain one: every position, every attention map, every tap.
`Transformer.fast` computes only what the task reads, the output at the last position:

- The last layer has one query. With $n_t$ its input, $q_h\cdot k_{t,h} = n_t\cdot(W^K_h q_h) + q_h\cdot b^K_h$ and
  $\sum_t a_t v_{t,h} = (\sum_t a_t n_t) W^V_h + (\sum_t a_t)\, b^V_h$: keys and values of single tokens are never formed.
  (Rotary positions turn every key by an angle of its own, so that keys are formed there.)
- The first layer reads $x_t E + c_t$ (token, position), so that its maps compose with the embedding: $x_t (E W)$ costs
  inputs/width of $(x_t E) W$. With one layer both apply, and no token is ever embedded. With more, kernels of our own compose
  them on a GPU (`_stream_kernels.py`; without these it is faster when only the gradient is composed), and where sequences are
  short a CPU goes on and folds all maps of the attention (`_folded.py`).
- The gradient of the stream below the last layer is of few vectors (`_last_query.py`).
"""

import functools
import itertools
import math
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._contract import NO_TAP, Output, Spec
from .._errors import InputError
from .._pytree import option
from .._random import Key, fold_in, normals, raw, uniform
from ._attention import Attention, Queries, attend, attend_all, causal, cooled, near, rotate, score, sinusoids, weigh
from ._folded import folded, folds
from ._last_query import Kernels, Unformed, last_query
from ._model import Model, TapFunction, answers
from ._products import Linear, Scale
from ._stream import Embedded, Stream

Norm = Literal["none", "pre", "post"]
Initial = Literal["pytorch", "xavier", "normal"]
Inputs = Float[Array, "n length features"] | Int[Array, "n length"]
Rows = Float[Array, "*rows width"]
Below = Float[Array, "n length width"] | Unformed  # the stream that a layer reads


class TransformerLayer(NamedTuple):
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    bias: Float[Array, "heads length length"] | None  # a learned logit for every pair of positions
    temperature: Float[Array, " heads"] | None  # logarithms of the temperatures, where they are learned
    up: Linear | None
    down: Linear | None
    norms: tuple[Scale, Scale] | None  # of the attention and of the MLP


class TransformerParameters(NamedTuple):
    embed: Linear  # one row of the weight per input; indicator features come first
    positions: Float[Array, "length width"] | None  # where they are learned
    layers: tuple[TransformerLayer, ...]
    norm: Scale | None  # before the readout, with `norm="pre"`
    readout: Linear


class _Way(NamedTuple):
    """How `fast` computes what it does."""

    runs: int  # that are trained together on a GPU; else 0
    fused: bool  # as is best on a GPU
    composes: bool  # maps of the first layer with the embedding
    folds: bool  # all maps of the first attention
    kernels: Any  # the module with kernels of the stream below the first layer, where they apply
    mlp: tuple[Linear, Linear] | None  # that the last query is asked through
    last: Kernels  # for the last query


class Transformer(Model):
    r"""A Transformer that answers at the last position; the defaults are those of zucchet2025, Table 1.

    Inputs are floats (n, length, inputs), or whole-number tokens (n, length), which are one-hot encoded.

    **Arguments:**

    - `layers`: the number of layers.
    - `width`: the features of a token between layers.
    - `heads`: the number of heads of a layer; they share the width: each has size width / heads.
    - `mlp_factor`: hidden features of an MLP over width.
    - `norm`: layer normalisation: none (as in the paper), before each part (and before the readout), or after each skip
      connection.
    - `mask`: none, or causal attention.
    - `activation`: the activation function of the MLPs.
    - `attention`: how scores become weights: by a softmax, linear attention, a sigmoid of each score, a softmax with learned
      biases by position, or a softmax of such biases alone.
    - `initial`: `"pytorch"`: weights and biases uniform in ±1/√inputs; `"xavier"`: uniform, biases 0; `"normal"`: N(0, 0.02²),
      biases 0.
    - `positions`: sinusoids added to the tokens (Vaswani et al. 2017), learned vectors added to them (initially N(0, 1)),
      `"rope"`: queries and keys rotated (Su et al. 2021), or nothing.
    - `skip`: whether there are skip connections.
    - `mlp`: whether layers have an MLP.
    - `temperature`: `"learned"`: the scores of every head are divided by a positive number that is learned, initially 1.
    - `window`: positions attend to those fewer than `window` away, within the mask; None: to all of them.
    - `top_k`: a query only sees the positions with its `top_k` largest scores; None: all of them.

    Its taps are listed in docs/extending.md, with their shapes and their names in TransformerLens.

    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8, positions="rope")
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> output = model.apply(params, jnp.ones((5, 4, 3)), lambda name, x: 0 * x if name == "layers.0.mlp" else x)
    >>> output.value.shape, output.attention.shape, output.value_path.shape
    ((5, 2), (5, 1, 2, 4), (3, 2))
    """

    layers: int = option(default=2, low=1)
    heads: int = option(default=4, low=1)
    width: int = option(default=256, low=1)
    mlp_factor: int = option(default=4, low=1)
    norm: Norm = "none"
    mask: Literal["none", "causal"] = "none"
    activation: Literal["relu", "gelu"] = "relu"
    attention: Attention = "softmax"
    initial: Initial = option(default="pytorch", at_start=True)
    positions: Literal["sinusoidal", "learned", "rope", "none"] = "sinusoidal"
    skip: bool = True
    mlp: bool = True
    temperature: Literal["fixed", "learned"] = "fixed"
    window: int | None = option(default=None, low=1)
    top_k: int | None = option(default=None, low=1)
    pads = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(f"Transformer.heads must divide width, got {self.heads} heads with width {self.width}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise InputError(f"Transformer.positions: sinusoids need an even width, got {self.width}")
        if self.positions == "rope" and self.width // self.heads % 2:
            raise InputError(f"Transformer.positions: rope needs heads of an even size, got {self.width // self.heads}")

    def init(self, key: Array, spec: Spec) -> TransformerParameters:
        """As long as the unused features of the inputs and of the targets are zero, so are the gradients of the padding."""
        key, width, hidden = raw(key), self.width, self.width * self.mlp_factor
        inputs, outputs = spec.used or (spec.inputs, spec.outputs)
        # One table for all that does not depend on the sizes of the task (a generator is slow to compile), and rows of their
        # own for what does.
        shapes = self.layers * (4 * [(width, width)] + self.mlp * [(width, hidden), (hidden, width)])
        counts = [(n_in + 1) * n_out // width for n_in, n_out in shapes]
        table, maps = self._draw(key, sum(counts), width), []
        for (n_in, n_out), count, end in zip(shapes, counts, itertools.accumulate(counts), strict=True):
            drawn = self._scaled(table, n_in, n_out)[end - count : end].reshape(n_in + 1, n_out)
            maps.append(Linear(drawn[:-1], self._offset(drawn[-1])))
        layers, each = [], len(maps) // self.layers
        for i in range(self.layers):
            query, keys, value, out, *mlp = maps[i * each : (i + 1) * each]
            up, down = mlp or (None, None)
            biased = self.attention in ("biased", "positional")
            bias = jnp.zeros((self.heads, spec.length, spec.length), jnp.float32) if biased else None
            temperature = jnp.zeros(self.heads, jnp.float32) if self.temperature == "learned" else None
            norms = (Scale.identity(width), Scale.identity(width)) if self.norm != "none" else None
            layers.append(TransformerLayer(query, keys, value, out, bias, temperature, up, down, norms))
        # Row 0 is the bias and row 1 the first mark's, so that content has the same rows with marks and without.
        first = 1 if spec.marks else 2
        drawn = self._scaled(self._draw(fold_in(key, 1), first + spec.inputs, width), inputs, width)
        embed = Linear(jnp.where(jnp.arange(spec.inputs)[:, None] < inputs, drawn[first:], 0), self._offset(drawn[0]))
        drawn = self._scaled(self._draw(fold_in(key, 2), spec.outputs, width + 1), width, outputs)
        drawn = jnp.where(jnp.arange(spec.outputs)[:, None] < outputs, drawn, 0)
        readout = Linear(drawn[:, :-1].T, self._offset(drawn[:, -1]))
        positions = normals(fold_in(key, 3), 1, spec.length, width)[0] if self.positions == "learned" else None
        norm = Scale.identity(width) if self.norm == "pre" else None
        return TransformerParameters(embed, positions, tuple(layers), norm, readout)

    def _draw(self, key: Key, rows: int, columns: int) -> Float[Array, "rows columns"]:
        return normals(key, 1, rows, columns)[0] if self.initial == "normal" else 2 * uniform(key, rows, columns) - 1

    def _scaled(self, drawn: Array, inputs: int | Array, outputs: int | Array) -> Array:
        """Initial numbers with the spread of a map of this many inputs and outputs."""
        if self.initial == "normal":
            return 0.02 * drawn
        spread = 6 / jnp.float32(inputs + outputs) if self.initial == "xavier" else 1 / jnp.float32(inputs)
        return jnp.sqrt(spread) * drawn

    def _offset(self, drawn: Array) -> Array:
        return drawn if self.initial == "pytorch" else jnp.zeros_like(drawn)

    def apply(self, params: TransformerParameters, inputs: Inputs, tap: TapFunction = NO_TAP) -> Output:
        tokens = _tokens(params, inputs)
        count, length = tokens.shape[:2]
        x = tap("embed", params.embed(tokens) + self._positions(params, length, tokens.dtype))
        last_rows = []
        for i, layer in enumerate(params.layers):
            name = f"layers.{i}"
            n = self._norm("pre", layer, 0, x)
            q = tap(f"{name}.queries", self._heads(layer.query(n)))
            k = tap(f"{name}.keys", self._heads(layer.key(n)))
            v = tap(f"{name}.values", self._heads(layer.value(n)))
            q, k = self._rotated(q, length), self._rotated(k, length)
            scores = score(self.attention, q, k, layer.bias, layer.temperature)
            scores = tap(f"{name}.scores", jnp.broadcast_to(scores, (count, *scores.shape[1:])))
            pattern = tap(f"{name}.pattern", weigh(self.attention, scores, self._visible(length), self.top_k))
            last_rows.append(pattern[:, :, -1])
            mixed = tap(f"{name}.mixed", attend(pattern, v))
            x = self._finish(layer, x, mixed.reshape(x.shape), tap, name)
        read = answers(tap)
        x = x[:, -1] if read is None else x[:, length - read :]
        value = tap("value", self._read_out(params, x))
        return Output(value, jnp.stack(last_rows, axis=1), self.value_path(params))

    def fast(self, params: TransformerParameters, inputs: Inputs, tap: TapFunction = NO_TAP) -> Output:
        """The output at the last position, by the cheapest exact way; with `tap.fused`, by the cheapest on a GPU. Of the taps,
        only `value` is there."""
        if answers(tap) is not None:
            return self.apply(params, inputs, tap)
        tokens = _tokens(params, inputs)
        count, length = tokens.shape[:2]
        way = self._way(params, tokens, getattr(tap, "fused", 0))
        below: Embedded | Below = Embedded.of(
            params.embed, tokens, self._positions(params, length, tokens.dtype), way.kernels.MULTIPLE if way.kernels else 8
        )
        last_rows = []
        for i, layer in enumerate(params.layers[:-1]):
            below, row = self._attend_all(layer, below, way)
            last_rows.append(row)
            if way.mlp is None or i < self.layers - 2:  # else the last query is asked through it
                below = self._with_mlp(layer, _formed(below), on_gpu=way.fused)
        layer = params.layers[-1]
        last, mixed, row = self._attend_last(layer, below, way)
        value = tap("value", self._read_out(params, self._finish(layer, last, mixed)))
        attention = [jnp.broadcast_to(r, (count, self.heads, length)) for r in (*last_rows, row)]
        return Output(value, jnp.stack(attention, axis=1), self.value_path(params))

    def _way(self, params: TransformerParameters, tokens: Float[Array, "n length features"], runs: int) -> _Way:
        """Which of the ways to the same numbers `fast` takes."""
        (_, length, features), width, kernels, fused = tokens.shape, self.width, None, runs > 0
        composes = self.norm != "pre" and features < width
        mlp, last = self._mlp_below(params), Kernels()
        if fused and self.layers > 1:
            from . import _mlp_kernel, _read_kernels  # here, since Pallas takes 0.3 s to import

            plain = self.attention == "softmax" and self.temperature == "fixed" and self.window is self.top_k is None
            reads = _read_kernels if plain and _read_kernels.applies(tokens.dtype, width, self.heads) else None
            applies = _mlp_kernel.applies(tokens.dtype, length, width, width * self.mlp_factor, self.heads)
            mlp = mlp if applies else None  # bytes decide, and only the kernel moves fewer
            last = Kernels(_mlp_kernel.mlp_back if mlp else None, reads)
        if fused and composes and self.skip and self.layers > 1:
            from . import _stream_kernels

            kernels = _stream_kernels if _stream_kernels.applies(tokens.dtype, length, width, features, runs) else None
        # Folded maps are products of maps, which 16 bits would round.
        can_fold = self.norm != "pre" and self._asks_stream and not fused and jnp.finfo(tokens.dtype).bits >= 32
        return _Way(runs, fused, composes, can_fold and folds(features, length, width, self.heads), kernels, mlp, last)

    def _attend_all(
        self, layer: TransformerLayer, below: Embedded | Below, way: _Way
    ) -> tuple[Below, Float[Array, "#n heads length"]]:
        """The stream behind the attention of all positions, and the weights of the last one."""
        embedded = below if isinstance(below, Embedded) else None
        if embedded is not None and way.folds:
            return self._attend_folded(layer, embedded)
        if way.fused and self.attention == "softmax":
            layer = _lean(layer, self.positions == "rope")
        q, k, v = map(self._heads, self._queries_keys_values(layer, below, way))
        count, length = q.shape[:2]
        q, k = self._rotated(q, length), self._rotated(k, length)
        bias = None if layer.bias is None else layer.bias[:, -1:]
        scores = score(self.attention, q[:, -1:], k, bias, layer.temperature)
        row = weigh(self.attention, scores, self._seen_last(length), self.top_k)[:, :, 0]
        how = (self._visible(length), way.fused and self.window is None, layer.temperature, self.top_k)
        mixed = attend_all(self.attention, q, k, v, layer.bias, *how).reshape(count, length, self.width)
        if embedded is None or way.kernels is None:
            return self._with_attention(layer, _formed(below), mixed, on_gpu=way.fused), row
        unformed = way.kernels.BehindAttention(way.kernels.Together(way.runs), embedded, layer.out, mixed)
        if way.mlp is not None and self.layers == 2:  # the last query is asked through all of it
            return unformed, row
        return self._norm("post", layer, 0, way.kernels.formed(unformed)), row

    def _queries_keys_values(self, layer: TransformerLayer, below: Embedded | Below, way: _Way) -> tuple[Array, ...]:
        maps = (layer.query, layer.key, layer.value)
        if isinstance(below, Embedded) and way.kernels is not None:
            return way.kernels.through(way.runs, below, maps)
        if isinstance(below, Embedded) and way.composes:
            return tuple(below.through(map, way.fused) for map in maps)
        n = self._norm("pre", layer, 0, _formed(below))
        return tuple(map.on_gpu(n) if way.fused else map(n) for map in maps)

    def _attend_folded(self, layer: TransformerLayer, embedded: Embedded) -> tuple[Array, Float[Array, "n heads length"]]:
        """The same in the first layer, by folded maps."""
        visible = self._visible(embedded.tokens.shape[1])

        def weigh_all(scores: Float[Array, "n length heads length"]) -> Float[Array, "n length heads length"]:
            scores = scores if layer.bias is None else scores + jnp.moveaxis(layer.bias, 0, 1)
            scores = scores if layer.temperature is None else scores / jnp.exp(layer.temperature)[:, None]
            return weigh(self.attention, scores, None if visible is None else visible[:, None], self.top_k)

        added, weights = folded(embedded, (layer.query, layer.key, layer.value, layer.out), self.heads, weigh_all)
        return self._norm("post", layer, 0, (embedded.stream() if self.skip else 0) + added), weights[:, -1]

    def _attend_last(
        self, layer: TransformerLayer, below: Embedded | Below, way: _Way
    ) -> tuple[Float[Array, "n width"], Float[Array, "n width"], Float[Array, "#n heads length"]]:
        """The last position of the stream, the mixture that its query takes, and its weights."""
        if isinstance(below, Embedded) and self.norm != "pre":
            last = below.last()
            return last, *self._one_query(layer, below, last)
        if not isinstance(below, Array | Embedded):
            last, taken, row = last_query(self._ask, self._weigh, way.last, layer, way.mlp, below)
            return last, self._values(layer, taken, row), row
        x = _formed(below)
        n, last = self._norm("pre", layer, 0, x), x[:, -1]
        if not self._asks_stream:
            return last, *self._one_query(layer, Stream(n), n[:, -1])
        asked, taken, row = last_query(self._ask, self._weigh, way.last, layer, way.mlp, n)
        return asked if n is x else last, self._values(layer, taken, row), row

    def value_path(self, params: TransformerParameters) -> Float[Array, "inputs outputs"]:
        r"""The linear map from a token to the output through the values alone, without attention weights, norms and MLPs:
        $\sum_\ell E\, W^V_\ell W^O_\ell\, U$."""
        params = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), params)
        maps = sum(layer.value.weight @ layer.out.weight for layer in params.layers)
        return params.embed.weight @ maps @ params.readout.weight

    def _one_query(
        self, layer: TransformerLayer, stream: Embedded | Stream, x: Float[Array, "n width"]
    ) -> tuple[Float[Array, "n width"], Float[Array, "#n heads length"]]:
        """The attention's output at the last position, and its weights."""
        if self.attention == "positional":
            scores = jnp.zeros((1, self.heads, 1), jnp.float32)
        elif self.positions == "rope":
            k = self._heads(stream.through(layer.key))
            q, k = self._rotated(self._heads(layer.query(x))[:, None], k.shape[1]), self._rotated(k, k.shape[1])
            scores = score(self.attention, q, k, None)[:, :, 0]
        else:
            probe, constant = self._ask(layer, x)
            scores = stream.against(probe) + constant
        weights = self._weigh(layer, scores)
        taken = stream.gather(jnp.broadcast_to(weights.astype(x.dtype), (len(x), *weights.shape[1:])))
        return self._values(layer, taken, weights), weights

    def _ask(self, layer: TransformerLayer, x: Float[Array, "n width"]) -> tuple[Array, Float[Array, "n heads 1"]]:
        """What the scores of a query are: inner products of the stream with the first of these, and the second."""
        q = self._heads(layer.query(x)) / math.sqrt(self.width // self.heads)
        constant = jnp.sum(q * self._heads(layer.key.bias), -1, keepdims=True)
        return jnp.einsum("nhs,whs->nhw", q, self._heads(layer.key.weight)), constant.astype(jnp.float32)

    def _weigh(self, layer: TransformerLayer, scores: Float[Array, "#n heads #length"]) -> Float[Array, "#n heads length"]:
        if layer.bias is not None:
            scores = scores + layer.bias[:, -1].astype(jnp.float32)
        scores = cooled(scores[:, :, None], layer.temperature)[:, :, 0]
        return weigh(self.attention, scores, self._seen_last(scores.shape[-1]), self.top_k)

    def _values(self, layer: TransformerLayer, taken: Array, weights: Float[Array, "#n heads length"]) -> Rows:
        """What a query takes from the stream, as values."""
        total = jnp.sum(weights, -1, keepdims=True).astype(taken.dtype)
        values = jnp.einsum("nhw,whs->nhs", taken, self._heads(layer.value.weight)) + total * self._heads(layer.value.bias)
        return values.reshape(len(taken), self.width)

    @property
    def _asks_stream(self) -> bool:
        """Whether scores are inner products of a query with the stream itself."""
        return self.positions != "rope" and self.attention != "positional"

    @property
    def _asks_through_mlp(self) -> bool:
        """Whether the last query can be asked through the MLP below it, as one map of the stream."""
        plain = self.norm == "none" and self.skip and self.mlp and self.activation == "relu"
        return plain and self.layers > 1 and self._asks_stream

    def _mlp_below(self, params: TransformerParameters) -> tuple[Linear, Linear] | None:
        below = params.layers[-2] if self._asks_through_mlp else None
        return None if below is None or below.up is None or below.down is None else (below.up, below.down)

    def _finish(self, layer: TransformerLayer, x: Rows, mixed: Rows, tap: TapFunction = NO_TAP, name: str = "") -> Rows:
        return self._with_mlp(layer, self._with_attention(layer, x, mixed, tap, name), tap, name)

    def _with_attention(
        self, layer: TransformerLayer, x: Rows, mixed: Rows, tap: TapFunction = NO_TAP, name: str = "", on_gpu: bool = False
    ) -> Rows:
        """Output map and skip connection."""
        added = tap(f"{name}.attention", layer.out.on_gpu(mixed) if on_gpu else layer.out(mixed))
        return self._norm("post", layer, 0, (x if self.skip else 0) + added)

    def _with_mlp(
        self, layer: TransformerLayer, x: Rows, tap: TapFunction = NO_TAP, name: str = "", on_gpu: bool = False
    ) -> Rows:
        """MLP and skip connection. A GPU writes hidden features behind their activation, and the output once."""
        if layer.up is not None and layer.down is not None:
            up, down = (layer.up.on_gpu, layer.down.on_gpu) if on_gpu else (layer.up, layer.down)
            act = jax.nn.gelu if self.activation == "gelu" else functools.partial(_relu, on_gpu)
            added = tap(f"{name}.mlp", down(act(up(self._norm("pre", layer, 1, x)))))
            x = self._norm("post", layer, 1, (x if self.skip else 0) + added)
        return tap(f"{name}.output", jax.lax.optimization_barrier(x) if on_gpu else x)

    def _read_out(self, params: TransformerParameters, x: Rows) -> Float[Array, "*rows outputs"]:
        return params.readout(x if params.norm is None else params.norm(x))

    def _norm(self, when: Norm, layer: TransformerLayer, part: int, x: Array) -> Array:
        return layer.norms[part](x) if self.norm == when and layer.norms else x

    def _heads(self, x: Rows) -> Float[Array, "*rows heads size"]:
        return x.reshape(*x.shape[:-1], self.heads, self.width // self.heads)

    def _visible(self, length: int) -> Bool[Array, "length length"] | None:
        nearby = None if self.window is None else near(length, self.window)
        return causal(length, self.window) if self.mask == "causal" else nearby

    def _seen_last(self, length: int) -> Bool[Array, "1 length"] | None:
        return None if self.window is None else causal(length, self.window)[-1:]  # without a window all, masked or not

    def _rotated(self, x: Queries, length: int) -> Queries:
        return rotate(x, length) if self.positions == "rope" else x

    def _positions(self, params: TransformerParameters, length: int, dtype: jnp.dtype) -> Float[Array, "length width"]:
        """What is added to the tokens."""
        if params.positions is not None:
            return params.positions
        sinusoidal = self.positions == "sinusoidal"
        return sinusoids(length, self.width).astype(dtype) if sinusoidal else jnp.zeros((length, self.width), dtype)


def _formed(below: Embedded | Below) -> Float[Array, "n length width"]:
    """The stream of all positions."""
    return below.stream() if isinstance(below, Embedded) else cast(Array, below)


def _tokens(params: TransformerParameters, inputs: Inputs) -> Float[Array, "n length features"]:
    weight = params.embed.weight
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        return jax.nn.one_hot(inputs, len(weight), dtype=weight.dtype)
    if inputs.shape[-1] != len(weight):
        raise InputError(f"the parameters are for tokens of {len(weight)} features, got inputs of shape {inputs.shape}")
    return inputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _relu(apart: bool, x: Array) -> Array:
    return _relu_forward(apart, x)[0]


def _relu_forward(apart: bool, x: Array) -> tuple[Array, Array]:
    """Only the output is kept; `apart`: in memory, so that XLA does not compute it again from the input where it is read."""
    y = jnp.maximum(x, 0)
    y = jax.lax.optimization_barrier(y) if apart else y
    return y, y


_relu.defvjp(_relu_forward, lambda apart, y, g: (jnp.where(y > 0, g, 0),))


def _lean(layer: TransformerLayer, rotates: bool) -> TransformerLayer:
    """The same layer without two of its biases, which are passes over all tokens. Softmax does not see what all keys share
    (where keys are rotated, they share nothing); and as its weights sum to 1, the bias of the values can go through the output
    map as it is."""
    key, value, out = layer.key, layer.value, layer.out
    none = jnp.zeros_like(key.bias)
    lean = out._replace(bias=out.bias + value.bias @ out.weight)
    return layer._replace(key=key if rotates else key._replace(bias=none), value=value._replace(bias=none), out=lean)
