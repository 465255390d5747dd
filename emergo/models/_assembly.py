r"""A Transformer of one layer whose components are switches, from the toy model to the paper's.

With all switches off it is the toy model with a learned vector on tokens; with all on it is
[`emergo.models.Transformer`][] with one layer. Switches are numbers of a run, so that all these
models share a program.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.contract import NO_TAP, Output, Spec
from ..core.errors import InputError
from ..core.pytree import option, per_run
from ..core.random import fold_in, raw, uniform
from ._attention import sinusoids
from ._layers import Linear
from ._model import Model, TapFunction, check_heads


class AssemblyParameters(NamedTuple):
    embed: Linear  # the indicator's row comes first
    vector: Float[Array, " width"]
    query: Linear
    key: Float[Array, "width keys"]
    value: Linear
    out: Linear
    up: Linear | None
    down: Linear | None
    readout: Linear


class Assembly(Model):
    r"""One layer of attention, read at the last position, in which every component has a switch.

    A switch is 1 (on) or 0 (off). Inputs are features (n, length, inputs), the first of which is an
    indicator.

    **Arguments:**

    - `width`, `heads`, `mlp_factor`: as in [`emergo.models.Transformer`][].
    - `mlp`: an MLP after attention. Static, since it is half of the work.
    - `embed`: a learned embedding; off: features are the first entries of the stream.
    - `keep_content`, `keep_mark`: scale the initial embedding of the content, or of the indicator,
      so that its size in the stream does not depend on the number of inputs.
    - `queries`: scores are products of queries and keys; off: of tokens and a learned vector,
      initially 0.
    - `maps`: linear maps from the attended stream to the outputs: 1 (readout), 2 (values and
      readout) or 3 (with the map after values).
    - `biases`, `skip`: biases of all maps; skip connections.
    - `positions`: scale of the sinusoids added to tokens.
    - `scale`: scale of the initial readout.
    - `key_size`: size of the queries and keys of each head, by default width / heads. Static; with
      a number, queries cannot be switched off.

    >>> import jax, jax.numpy as jnp
    >>> model = em.models.Assembly(width=8, positions=0.0)
    >>> params = model.init(jax.random.key(0), em.Spec(length=4, inputs=3, outputs=2, marks=1))
    >>> model.apply(params, jnp.ones((5, 4, 3))).value.shape
    (5, 2)
    """

    REFERENCE: ClassVar = 8
    """The dim at which a scaled embedding starts like PyTorch's."""

    width: int = option(default=64, low=1)
    heads: int = option(default=1, low=1)
    mlp: bool = True
    mlp_factor: int = option(default=4, low=1)
    embed: float = per_run(default=1.0, low=0, high=1)
    keep_content: float = per_run(default=0.0, low=0, high=1)
    keep_mark: float = per_run(default=0.0, low=0, high=1)
    queries: float = per_run(default=1.0, low=0, high=1)
    maps: float = per_run(default=3.0, low=1, high=3)
    biases: float = per_run(default=1.0, low=0, high=1)
    skip: float = per_run(default=1.0, low=0, high=1)
    positions: float = per_run(default=1.0, low=0)
    scale: float = per_run(default=1.0, low=0)
    key_size: int | None = option(default=None, low=1)
    pads = True
    precisions = ("fp32",)

    def __post_init__(self) -> None:
        check_heads(self, self.heads, self.width)
        if self.key_size is not None and self.queries == 0:
            raise InputError(
                f"Assembly.key_size is the size of queries and keys, which queries=0 switches off; "
                f"leave it out or set queries=1, got {self.key_size}"
            )

    @property
    def size(self) -> int:
        """The size of the queries and keys of a head."""
        return self.width // self.heads if self.key_size is None else self.key_size

    def init(self, key: Array, spec: Spec) -> AssemblyParameters:
        """Draw weights and biases uniform in ±1/√inputs, as PyTorch does."""
        words = raw(key)
        if spec.inputs > self.width:
            raise InputError(
                f"Assembly.width must be at least the number of inputs, {spec.inputs}, which are "
                f"entries of the stream without an embedding; got {self.width}"
            )
        inputs, outputs = spec.used or (spec.inputs, spec.outputs)
        width = self.width
        hidden = width * self.mlp_factor
        keys = self.heads * self.size

        def linear(fold: int, n_in: int, n_out: int, used: int | Array | None = None) -> Linear:
            drawn = 2 * uniform(fold_in(words, fold), n_in + 1, n_out) - 1
            drawn = drawn * jax.lax.rsqrt(jnp.float32(n_in if used is None else used))
            return Linear(drawn[1:], drawn[0])

        embed = linear(0, spec.inputs, width, inputs)
        row = jnp.arange(spec.inputs)[:, None]
        kept = jnp.sqrt(jnp.float32(inputs) / (self.REFERENCE + 1))
        switch = jnp.where(row == 0, self.keep_mark, self.keep_content)
        weight = jnp.where(row < inputs, embed.weight, 0) * jnp.where(switch > 0, kept, 1.0)
        readout = linear(1, width, spec.outputs)
        column = jnp.arange(spec.outputs) < outputs
        return AssemblyParameters(
            Linear(weight, embed.bias),
            jnp.zeros(width, jnp.float32),
            linear(2, width, keys),
            linear(3, width, keys).weight,
            linear(4, width, width),
            linear(5, width, width),
            linear(6, width, hidden) if self.mlp else None,
            linear(7, hidden, width) if self.mlp else None,
            Linear(
                self.scale * jnp.where(column, readout.weight, 0),
                jnp.where(column, readout.bias, 0),
            ),
        )

    def apply(
        self,
        params: AssemblyParameters,
        inputs: Float[Array, "n length inputs"],
        tap: TapFunction = NO_TAP,
    ) -> Output:
        p = params
        features = inputs.shape[2]
        identity = jnp.eye(self.width, dtype=jnp.float32)
        size = self.size
        embed = jnp.where(self.embed > 0, p.embed.weight, identity[:features])
        key = p.key
        value = jnp.where(self.maps > 1.5, p.value.weight, identity)
        out = jnp.where(self.maps > 2.5, p.out.weight, identity)
        stream_bias = self.biases * self.embed * p.embed.bias
        places = self.positions * sinusoids(inputs.shape[1], self.width)

        # Only the last position is computed. Keys and values are linear in tokens, so that the maps
        # act on the query and on the weighted sum instead of on every token.
        last = inputs[:, -1] @ embed + stream_bias + places[-1]
        query = last @ p.query.weight + self.biases * p.query.bias
        if self.key_size is None:  # else queries are on
            key = jnp.where(self.queries > 0, key, jnp.sqrt(jnp.float32(size)) * identity)
            query = jnp.where(self.queries > 0, query, p.vector)
        by_head = query.reshape(-1, self.heads, size)
        read = jnp.einsum("nhs,dhs->nhd", by_head, key.reshape(self.width, self.heads, size))
        read = read / jnp.sqrt(jnp.float32(size))
        scores = jnp.einsum("nhf,ntf->nht", read @ embed.T, inputs) + read @ places.T
        scores = tap("layers.0.scores", scores[:, :, None])
        pattern = tap("layers.0.pattern", jax.nn.softmax(scores, -1))
        weights = pattern[:, :, 0]
        mixed = jnp.einsum("nht,ntf->nhf", weights, inputs) @ embed + weights @ places
        values = jnp.einsum(
            "nhd,dhs->nhs", mixed + stream_bias, value.reshape(self.width, self.heads, -1)
        )
        values = values.reshape(-1, self.width) + self.biases * p.value.bias
        x = self.skip * last + values @ out + self.biases * p.out.bias
        if p.up is not None and p.down is not None:
            hidden = jax.nn.relu(x @ p.up.weight + self.biases * p.up.bias)
            x = self.skip * x + hidden @ p.down.weight + self.biases * p.down.bias
        answer = x @ p.readout.weight + self.biases * p.readout.bias
        path = embed @ value @ out @ p.readout.weight
        return Output(
            tap("value", answer), pattern.reshape(-1, 1, self.heads, inputs.shape[1]), path
        )
