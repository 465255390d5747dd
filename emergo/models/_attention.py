"""Forms of attention behind one interface, masks and positional encodings."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..core.errors import InputError, naming
from ..core.pytree import Pytree
from ._products import at_least_fp32

Form = Literal["softmax", "linear", "sigmoid", "biased", "positional"]
Queries = Float[Array, "n queries heads size"]
Keys = Float[Array, "n length heads size"]
Weights = Float[Array, "#n heads queries length"]
Visible = Bool[Array, "*queries length"] | None
Temperature = Float[Array, " heads"] | None  # logarithms of temperatures


class Attention(Pytree):
    """A form of attention: how queries and keys become attention weights. This class is softmax.

    A subclass changes `scores`, `weights` or both, and may have options and parameters. Use it as
    `em.Transformer(attention=MyAttention())`; the built-in forms have the same interface. It trains
    with `Transformer.apply`, not with an optimised path.

    >>> import jax, jax.numpy as jnp
    >>> class Gated(em.Attention):
    ...     start: float = em.per_run(1.0)
    ...     def init(self, key, heads, size, length):
    ...         return {"gate": jnp.full(heads, self.start)}
    ...     def weights(self, params, scores, visible):
    ...         softmax = super().weights(params, scores, visible)
    ...         return softmax * jax.nn.sigmoid(params["gate"])[:, None, None]
    >>> em.Transformer(layers=1, heads=2, width=8, attention=Gated(2.0))
    Transformer(layers=1, heads=2, width=8, attention=Gated(start=2.0))
    """

    def init(self, key: Array, heads: int, size: int, length: int) -> Any:
        """Draw the parameters of one layer: a pytree of arrays, or None for no parameters.

        **Arguments:**

        - `heads`, `size`: the number of heads, and the size of each.
        - `length`: the length of the sequences.
        """
        return None

    def scores(self, params: Any, queries: Queries, keys: Keys) -> Weights:
        """Return scores (n, heads, queries, length), before the mask."""
        wide = at_least_fp32(queries.dtype)
        scores = jnp.einsum("nqhs,nkhs->nhqk", queries, keys, preferred_element_type=wide)
        return scores / math.sqrt(queries.shape[-1])

    def weights(
        self, params: Any, scores: Float[Array, "*rows length"], visible: Visible
    ) -> Float[Array, "*rows length"]:
        """Return attention weights of the shape of the scores.

        **Arguments:**

        - `visible`: True for positions that a query sees; (queries, length), or the shape of
          the scores. Other positions should get weight 0.
        """
        if visible is not None:
            scores = jnp.where(visible, scores, -jnp.inf)
        return jax.nn.softmax(scores, axis=-1)


class _Linear(Attention):
    """q·k/(√size · visible positions): no exponential, no competition between tokens."""

    def weights(self, params: Any, scores: Array, visible: Visible) -> Array:
        weights = scores / _count(scores, visible)
        return weights if visible is None else jnp.where(visible, weights, 0)


class _Sigmoid(Attention):
    """Sigmoid of q·k/√size - log(visible positions): in [0, 1], no competition."""

    def weights(self, params: Any, scores: Array, visible: Visible) -> Array:
        count = jnp.asarray(_count(scores, visible), scores.dtype)
        weights = jax.nn.sigmoid(scores - jnp.log(count))
        return weights if visible is None else jnp.where(visible, weights, 0)


class _Biased(Attention):
    """Softmax over j of q·k/√size + a learned logit of (i, j)."""

    def init(self, key: Array, heads: int, size: int, length: int) -> Array:
        return jnp.zeros((heads, length, length), jnp.float32)

    def scores(self, params: Any, queries: Queries, keys: Keys) -> Weights:
        scores = super().scores(params, queries, keys)
        return scores if params is None else scores + params.astype(scores.dtype)


class _Positional(_Biased):
    """Softmax over j of the learned logit of (i, j) alone, as in zucchet2025, Eq. 2."""

    def scores(self, params: Any, queries: Queries, keys: Keys) -> Weights:
        return params[None].astype(at_least_fp32(queries.dtype))


FORMS: dict[str, Attention] = {
    "softmax": Attention(),
    "linear": _Linear(),
    "sigmoid": _Sigmoid(),
    "biased": _Biased(),
    "positional": _Positional(),
}


def form_of(form: Form | Attention) -> Attention:
    """Return a form by its name; a form as it is."""
    return FORMS[form] if isinstance(form, str) else form


def _count(scores: Array, visible: Visible) -> Any:
    """Return how many positions each query sees."""
    return scores.shape[-1] if visible is None else jnp.sum(visible, -1, keepdims=True)


def causal(
    length: int, context: int | Int[Array, ""] | None = None
) -> Bool[Array, "length length"]:
    """Return a mask: a position sees itself and earlier ones, at most `context` in all."""
    behind = jnp.arange(length)[:, None] - jnp.arange(length)
    return (behind >= 0) & (behind < (length if context is None else context))


def near(length: int, window: int) -> Bool[Array, "length length"]:
    """Return a mask: a position sees all positions fewer than `window` away, on both sides."""
    return jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)) < window


def score(
    form: Form | Attention, q: Queries, k: Keys, params: Any, temperature: Temperature = None
) -> Weights:
    """Return scores of queries against all positions, in at least fp32.

    **Arguments:**

    - `params`: the parameters of the form in this layer.
    """
    shape = (len(q), q.shape[2], q.shape[1], k.shape[1])
    where = f"{type(form).__name__}.scores"
    with naming(where):
        scores = form_of(form).scores(params, q, k)
    _check_shape(where, scores, shape)
    return cooled(scores, temperature)


def _check_shape(where: str, got: Any, shape: tuple[int, ...]) -> None:
    """Require an array of this shape; its first axis may have size 1."""
    if getattr(got, "shape", None) not in (shape, (1, *shape[1:])):
        shown = f"shape {got.shape}" if hasattr(got, "shape") else f"a {type(got).__name__}"
        raise InputError(
            f"{where} must return shape (n, heads, queries, length), here {shape}, got {shown}"
        )


def cooled(scores: Weights, temperature: Temperature) -> Weights:
    """Divide scores by the temperature of their head."""
    if temperature is None:
        return scores
    return scores / jnp.exp(temperature.astype(scores.dtype))[:, None, None]


def weigh(
    form: Form | Attention,
    scores: Float[Array, "*rows length"],
    visible: Visible,
    top_k: int | None = None,
    params: Any = None,
) -> Float[Array, "*rows length"]:
    """Return attention weights.

    **Arguments:**

    - `form`: the form of attention.
    - `scores`: scores; the last axis is the position.
    - `visible`: mask of visible positions; None: all.
    - `top_k`: if given, every query sees only the visible positions with its `top_k` largest
      scores, including ties with the last of them. The selection is not differentiated.
    - `params`: the parameters of the form in this layer.
    """
    if top_k is not None:
        seen = scores if visible is None else jnp.where(visible, scores, -jnp.inf)
        largest, _ = jax.lax.top_k(jax.lax.stop_gradient(seen), min(top_k, scores.shape[-1]))
        visible = (seen >= largest[..., -1:]) & (seen > -jnp.inf)
    if isinstance(form, str):
        return FORMS[form].weights(params, scores, visible)
    if visible is None:
        visible = jnp.ones(scores.shape[-2:], bool)
    where = f"{type(form).__name__}.weights"
    with naming(where):
        weights = form.weights(params, scores, visible)
    _check_shape(where, weights, scores.shape)
    return weights


def attend(weights: Weights, v: Keys) -> Queries:
    """Return weighted sums of values."""
    weights = jnp.broadcast_to(weights.astype(v.dtype), (len(v), *weights.shape[1:]))
    return jnp.einsum("nhqk,nkhs->nqhs", weights, v)


def _angles(length: int, size: int) -> Float[Array, "length half"]:
    r"""Return the angles $t \cdot 10000^{-2i/\mathrm{size}}$ of positions t, for i < size/2."""
    rate = jnp.exp(jnp.arange(0, size, 2, jnp.float32) * (-math.log(10_000) / size))
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rate


def sinusoids(length: int, width: int) -> Float[Array, "length width"]:
    """Return alternating sines and cosines (Vaswani et al. 2017, Section 3.5)."""
    angle = _angles(length, width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)


def rotate(x: Queries, length: int) -> Queries:
    """Apply rotary positions (RoPE; Su et al. 2021, Eq. 34) to the last positions of `length`.

    Features 2i and 2i + 1 are rotated by the i-th angle of their position. So a score depends on
    two positions only through their difference.
    """
    angle = _angles(length, x.shape[-1])[length - x.shape[1] :, None]
    cosine = jnp.cos(angle)
    sine = jnp.sin(angle)
    even = x[..., ::2]
    odd = x[..., 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
