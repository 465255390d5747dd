r"""The Transformer of zucchet2025 (Section 2.4 and Table 1), with options to change it.

This file is the plain definition: every position, every attention map, every tap. Training uses
an optimised path for this exact class where one is listed (`emergo/models/fast`).
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..core.contract import NO_TAP, Output, Readout, Spec
from ..core.errors import InputError
from ..core.pytree import option
from ..core.random import Key, fold_in, normals, raw, uniform
from ._attention import (
    FORMS,
    Attention,
    Form,
    Queries,
    attend,
    causal,
    form_of,
    near,
    rotate,
    score,
    sinusoids,
    weigh,
)
from ._layers import LayerNorm, Linear, RMSNorm, dropped
from ._model import Model, TapFunction, answers, check_heads, deferred
from ._products import at_least_fp32, embed, rows

Norm = Literal["none", "pre", "post"]
Initial = Literal["pytorch", "xavier", "normal"]
Inputs = Float[Array, "n length features"] | Int[Array, "n length"]
Rows = Float[Array, "*rows width"]
AnyNorm = LayerNorm | RMSNorm


class TransformerLayer(NamedTuple):
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    # The parameters of a built-in form of attention: a learned logit per pair of positions.
    bias: Float[Array, "heads length length"] | None
    temperature: Float[Array, " heads"] | None  # log temperatures, if learned
    up: Linear | None
    down: Linear | None
    norms: tuple[AnyNorm, AnyNorm] | None  # of the attention and of the MLP
    attention: Any = None  # the parameters of a user's form of attention
    gate: Linear | None = None  # multiplies the hidden features, with `activation="swiglu"`


class TransformerParameters(NamedTuple):
    embed: Linear  # one row of the weight per input; indicator features come first
    positions: Float[Array, "length width"] | None  # learned vectors
    layers: tuple[TransformerLayer, ...]
    norm: AnyNorm | None  # before the readout, with `norm="pre"`
    readout: Linear | None  # None: the transposed embedding


class Transformer(Model):
    r"""A Transformer that answers at the last position. The defaults follow zucchet2025.

    Inputs are features (n, length, inputs), or integer tokens (n, length), which select rows of
    the embedding.

    **Arguments:**

    - `layers`: number of layers.
    - `heads`: number of attention heads per layer; each has size width / heads.
    - `width`: size of the residual stream.
    - `mlp_factor`: hidden size of the MLPs divided by `width`.
    - `norm`: normalisation: none (as in the paper), before each sublayer (and before the readout),
      or after each skip connection.
    - `mask`: no mask, or causal attention.
    - `activation`: activation function of the MLPs. `"swiglu"`: the hidden features are multiplied
      by a gate, the SiLU of a further linear map (Shazeer 2020).
    - `attention`: how scores become weights: `"softmax"`; `"linear"`: scores divided by their
      number; `"sigmoid"` of each score minus the logarithm of their number; `"biased"`: a softmax
      with a learned bias per pair of positions; `"positional"`: a softmax of these biases alone;
      or a custom form, an [`emergo.Attention`][].
    - `initial`: `"pytorch"`: weights and biases uniform in ±1/√inputs; `"xavier"`: uniform, biases
      0; `"normal"`: N(0, 0.02²), biases 0.
    - `positions`: sinusoids added to the tokens (Vaswani et al. 2017), learned vectors added to
      them (initially N(0, 1)), `"rope"`: rotated queries and keys (Su et al. 2021), or none.
    - `skip`: use skip connections.
    - `mlp`: give every layer an MLP.
    - `temperature`: `"learned"`: divide the scores of each head by a learned positive number,
      initially 1.
    - `window`: positions attend only to positions fewer than `window` away, within the mask.
    - `top_k`: a query sees only the positions with its `top_k` largest scores.
    - `norm_type`: layer normalisation, or division by the root mean square.
    - `tied`: read out with the transposed embedding, without a bias.
    - `dropout`: dropout rate of the embedding and of what each attention and MLP adds; applied only
      if `tap.key` is set.

    docs/extending.md lists the taps with their shapes and their names in TransformerLens.

    >>> import jax, jax.numpy as jnp
    >>> model = em.Transformer(layers=1, heads=2, width=8, positions="rope")
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2))
    >>> without_mlp = lambda name, x: 0 * x if name == "layers.0.mlp" else x
    >>> output = model.apply(params, jnp.ones((5, 4, 3)), without_mlp)
    >>> output.value.shape, output.attention.shape, output.value_path.shape
    ((5, 2), (5, 1, 2, 4), (3, 2))
    """

    layers: int = option(default=2, low=1)
    heads: int = option(default=4, low=1)
    width: int = option(default=256, low=1)
    mlp_factor: int = option(default=4, low=1)
    norm: Norm = "none"
    mask: Literal["none", "causal"] = "none"
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    attention: Form | Attention = "softmax"
    initial: Initial = option(default="pytorch", at_start=True)
    positions: Literal["sinusoidal", "learned", "rope", "none"] = "sinusoidal"
    skip: bool = True
    mlp: bool = True
    temperature: Literal["fixed", "learned"] = "fixed"
    window: int | None = option(default=None, low=1)
    top_k: int | None = option(default=None, low=1)
    norm_type: Literal["layer", "rms"] = "layer"
    tied: bool = False
    dropout: float = option(default=0.0, low=0.0)
    pads = True

    def __post_init__(self) -> None:
        for name, form in FORMS.items():
            if type(self.attention) is type(form):
                object.__setattr__(self, "attention", name)
        check_heads(self, self.heads, self.width)
        if self.positions == "sinusoidal" and self.width % 2:
            raise InputError(
                f"Transformer.positions: sinusoids need an even width, got {self.width}"
            )
        if self.positions == "rope" and self.width // self.heads % 2:
            raise InputError("Transformer.positions: rope needs heads of an even size")
        if self.dropout >= 1:
            raise InputError(f"Transformer.dropout must be below 1, got {self.dropout!r}")

    @property
    def looks_ahead(self) -> bool:
        return self.mask == "none"

    def init(self, key: Array, spec: Spec) -> TransformerParameters:
        key = raw(key)
        if self.tied and spec.inputs != spec.outputs:
            raise InputError(
                f"Transformer.tied needs as many inputs as outputs, and the task has {spec.inputs} "
                f"inputs and {spec.outputs} outputs"
            )
        inputs, outputs = spec.used or (spec.inputs, spec.outputs)
        layers = self._init_layers(key, spec.length)
        # Row 0 is the bias and row 1 belongs to the first indicator, so that the rows of the
        # content are the same with and without indicators.
        first = 1 if spec.marks else 2
        drawn = self._draw(fold_in(key, 1), first + spec.inputs, self.width)
        drawn = self._scaled(drawn, inputs, self.width)
        content = jnp.where(jnp.arange(spec.inputs)[:, None] < inputs, drawn[first:], 0)
        embed = self._linear(content, drawn[0])
        readout = None
        if not self.tied:
            drawn = self._draw(fold_in(key, 2), spec.outputs, self.width + 1)
            drawn = self._scaled(drawn, self.width, outputs)
            drawn = jnp.where(jnp.arange(spec.outputs)[:, None] < outputs, drawn, 0)
            readout = self._linear(drawn[:, :-1].T, drawn[:, -1])
        positions = None
        if self.positions == "learned":
            positions = normals(fold_in(key, 3), 1, spec.length, self.width)[0]
        norm = self._init_norm() if self.norm == "pre" else None
        return TransformerParameters(embed, positions, layers, norm, readout)

    def _init_layers(self, key: Key, length: int) -> tuple[TransformerLayer, ...]:
        """Draw the linear maps of all layers from one table: random numbers compile slowly."""
        width = self.width
        hidden = self.width * self.mlp_factor
        shapes = 4 * [(width, width)] + self.mlp * [(width, hidden), (hidden, width)]
        shapes += [(width, hidden)] * (self.mlp and self.activation == "swiglu")
        counts = [(n_in + 1) * n_out // width for n_in, n_out in shapes] * self.layers
        table = self._draw(key, sum(counts), width)
        parts = iter(jnp.split(table, np.cumsum(counts)[:-1]))
        temperature = None
        if self.temperature == "learned":
            temperature = jnp.zeros(self.heads, jnp.float32)
        norms = None
        if self.norm != "none":
            norms = (self._init_norm(), self._init_norm())
        layers = []
        for i in range(self.layers):
            maps = []
            for n_in, n_out in shapes:
                drawn = self._scaled(next(parts), n_in, n_out).reshape(n_in + 1, n_out)
                maps.append(self._linear(drawn[:-1], drawn[-1]))
            query, keys, value, out, *mlp = maps
            up, down, gate = [*mlp, None, None, None][:3]
            own, bias = self._init_attention(fold_in(fold_in(key, 4), i), length)
            attention = (query, keys, value, out, bias, temperature)
            layers.append(TransformerLayer(*attention, up, down, norms, own, gate))
        return tuple(layers)

    def _init_norm(self) -> AnyNorm:
        kind = RMSNorm if self.norm_type == "rms" else LayerNorm
        return kind.identity(self.width)

    def _init_attention(self, key: Key, length: int) -> tuple[Any, Any]:
        """Return the parameters of a user's form of attention and of a built-in form."""
        typed = jax.random.wrap_key_data(key, impl="threefry2x32")
        drawn = form_of(self.attention).init(typed, self.heads, self.width // self.heads, length)
        return (None, drawn) if isinstance(self.attention, str) else (drawn, None)

    def _draw(self, key: Key, rows: int, columns: int) -> Float[Array, "rows columns"]:
        if self.initial == "normal":
            return normals(key, 1, rows, columns)[0]
        return 2 * uniform(key, rows, columns) - 1

    def _scaled(self, drawn: Array, inputs: int | Array, outputs: int | Array) -> Array:
        """Scale drawn numbers for a map with this many inputs and outputs."""
        if self.initial == "normal":
            return 0.02 * drawn
        if self.initial == "xavier":
            return jnp.sqrt(6 / jnp.float32(inputs + outputs)) * drawn
        return jnp.sqrt(1 / jnp.float32(inputs)) * drawn

    def _linear(self, weight: Array, bias: Array) -> Linear:
        return Linear(weight, bias if self.initial == "pytorch" else jnp.zeros_like(bias))

    def apply(
        self, params: TransformerParameters, inputs: Inputs, tap: TapFunction = NO_TAP
    ) -> Output:
        key = getattr(tap, "key", None)
        x = self._drop(tap("embed", self._embedded(params, inputs)), key, self.layers, 0)
        last_rows = []
        for i, layer in enumerate(params.layers):
            mixed, pattern = self._attend(layer, x, tap, f"layers.{i}")
            last_rows.append(pattern[:, :, -1])
            added = tap(f"layers.{i}.attention", layer.out(mixed))
            x = self._norm("post", layer, 0, self._skip(x) + self._drop(added, key, i, 0))
            if layer.up is not None and layer.down is not None:
                n = self._norm("pre", layer, 1, x)
                gate = None if layer.gate is None else layer.gate(n)
                added = tap(f"layers.{i}.mlp", layer.down(self._activate(layer.up(n), gate)))
                x = self._norm("post", layer, 1, self._skip(x) + self._drop(added, key, i, 1))
            x = tap(f"layers.{i}.output", x)
        return self._output(params, x, jnp.stack(last_rows, axis=1), tap)

    def _output(
        self,
        params: TransformerParameters,
        x: Float[Array, "n positions width"],
        attention: Float[Array, "n layers heads length"],
        tap: TapFunction,
    ) -> Output:
        """Return the output.

        **Arguments:**

        - `x`: the last residual stream, at least at the positions that are read.
        - `attention`: the attention of the last position in every layer.
        """
        read = answers(tap)
        x = x[:, -1] if read is None else x[:, x.shape[1] - read :]
        x = x if params.norm is None else params.norm(x)
        if deferred(tap):
            map = params.readout
            readout = Readout(params.embed.weight.T) if map is None else Readout(*map)
            return Output(None, attention, features=x, readout=readout)
        value = tap("value", self._read_out(params, x))
        return Output(value, attention, self.value_path(params))

    def _embedded(
        self, params: TransformerParameters, inputs: Inputs
    ) -> Float[Array, "n length width"]:
        """Return the residual stream below the first layer: tokens plus positions."""
        if jnp.issubdtype(inputs.dtype, jnp.integer):
            x = embed(params.embed.weight, inputs) + params.embed.bias
            return x + self._positions(params, inputs.shape[1], x.dtype)
        return params.embed(inputs) + self._positions(params, inputs.shape[1], inputs.dtype)

    def _activate(self, up: Rows, gate: Rows | None) -> Rows:
        """Return the hidden features of an MLP from the results of its first maps."""
        if gate is not None:
            return jax.nn.silu(gate) * up
        return jax.nn.gelu(up) if self.activation == "gelu" else jax.nn.relu(up)

    def _drop(self, x: Rows, key: Array | None, layer: int, place: int) -> Rows:
        """Apply dropout. The key of a step and the place decide which numbers are dropped."""
        if key is None or not self.dropout:
            return x
        zero = dropped(fold_in(fold_in(raw(key), layer), place), x.shape, self.dropout)
        return jnp.where(zero, 0, x / (1 - self.dropout))

    def _attend(
        self,
        layer: TransformerLayer,
        x: Float[Array, "n length width"],
        tap: TapFunction,
        name: str,
    ) -> tuple[Float[Array, "n length width"], Float[Array, "n heads length length"]]:
        """Return the mixed values of all positions, heads side by side, and attention patterns."""
        count, length = x.shape[:2]
        n = self._norm("pre", layer, 0, x)
        q = tap(f"{name}.queries", self._heads(layer.query(n)))
        k = tap(f"{name}.keys", self._heads(layer.key(n)))
        v = tap(f"{name}.values", self._heads(layer.value(n)))
        q = self._rotated(q, length)
        k = self._rotated(k, length)
        params = layer.bias if isinstance(self.attention, str) else layer.attention
        scores = score(self.attention, q, k, params, layer.temperature)
        scores = tap(f"{name}.scores", jnp.broadcast_to(scores, (count, *scores.shape[1:])))
        pattern = weigh(self.attention, scores, self._visible(length), self.top_k, params)
        pattern = tap(f"{name}.pattern", pattern)
        mixed = tap(f"{name}.mixed", attend(pattern, v))
        return mixed.reshape(x.shape), pattern

    def value_path(self, params: TransformerParameters) -> Float[Array, "inputs outputs"]:
        r"""Return the linear map from a token to the output through the values alone.

        It leaves out attention weights, norms and MLPs: $\sum_\ell E\, W^V_\ell W^O_\ell\, U$.
        """
        params = jax.tree.map(lambda x: x.astype(at_least_fp32(x.dtype)), params)
        maps = sum(layer.value.weight @ layer.out.weight for layer in params.layers)
        weight = params.embed.weight
        return weight @ maps @ (weight.T if params.readout is None else params.readout.weight)

    def _skip(self, x: Rows) -> Rows | int:
        return x if self.skip else 0

    def _read_out(self, params: TransformerParameters, x: Rows) -> Float[Array, "*rows outputs"]:
        """Return the output of normalised features."""
        return rows(x, params.embed.weight.T) if params.readout is None else params.readout(x)

    def _norm(self, when: Norm, layer: TransformerLayer, sublayer: int, x: Array) -> Array:
        return layer.norms[sublayer](x) if self.norm == when and layer.norms else x

    def _heads(self, x: Rows) -> Float[Array, "*rows heads size"]:
        return x.reshape(*x.shape[:-1], self.heads, self.width // self.heads)

    def _visible(self, length: int) -> Bool[Array, "length length"] | None:
        """Return which positions each query sees; None: all of them."""
        if self.mask == "causal":
            return causal(length, self.window)
        return None if self.window is None else near(length, self.window)

    def _rotated(self, x: Queries, length: int) -> Queries:
        return rotate(x, length) if self.positions == "rope" else x

    def _positions(
        self, params: TransformerParameters, length: int, dtype: jnp.dtype
    ) -> Float[Array, "length width"]:
        """Return the vectors that are added to the tokens."""
        if params.positions is not None:
            return params.positions
        if self.positions == "sinusoidal":
            return sinusoids(length, self.width).astype(dtype)
        return jnp.zeros((length, self.width), dtype)


def as_features(params: TransformerParameters, inputs: Inputs) -> Float[Array, "n length features"]:
    """One-hot encode integer tokens; return features as they are."""
    weight = params.embed.weight
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        return jax.nn.one_hot(inputs, len(weight), dtype=weight.dtype)
    return inputs
