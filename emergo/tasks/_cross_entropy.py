"""The cross-entropy of tokens, also without the logits of a whole batch.

A language model with a vocabulary of thousands has far more logits than activations. If its output
has `features` and `readout` instead of `value`, we apply the readout to some rows at a time, reduce
their logits to one number per row, and compute the logits again in the backward pass. This costs
one more product with the readout, and saves the memory of all logits in fp32, several times over.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..core.chunks import in_chunks
from ..core.contract import Output, Readout
from ..core.errors import InputError

_CHUNKS = 4
"""Smallest number of chunks, so that a batch with few logits does not have them all at once."""


def widened(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Convert to at least fp32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def token_losses(output: Output, target: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Return the cross-entropy of every token, in nats.

    **Arguments:**

    - `output`: the output of a model, with a value or with features and a readout.
    - `target`: the right token of every row of the output.
    """
    if output.features is None or output.readout is None:
        return cross_entropy(widened(_value(output)), target)
    features = output.features.reshape(-1, output.features.shape[-1])
    return _losses(features, output.readout, target.reshape(-1)).reshape(target.shape)


def answer_tokens(output: Output) -> Int[Array, "*rows"]:
    """Return the most likely token of every row."""
    if output.features is None or output.readout is None:
        return jnp.argmax(_value(output), -1)
    readout = output.readout
    features = output.features.reshape(-1, output.features.shape[-1])
    (rows,) = in_chunks((features,), readout.weight.shape[1], _CHUNKS)
    best = jax.lax.map(lambda row: jnp.argmax(readout(row), -1), rows)
    return best.reshape(-1)[: len(features)].reshape(output.features.shape[:-1])


def _value(output: Output) -> Array:
    if output.value is None:
        raise InputError("an em.Output needs a value, or features and a readout")
    return output.value


@jax.custom_vjp
def _losses(
    features: Float[Array, "rows width"], readout: Readout, target: Int[Array, " rows"]
) -> Float[Array, " rows"]:
    return _losses_forward(features, readout, target)[0]


def _losses_forward(
    features: Float[Array, "rows width"], readout: Readout, target: Int[Array, " rows"]
) -> tuple[Array, tuple[Array, Readout, Array, Array]]:
    """Return the losses, and what the backward pass needs.

    That includes the logarithm of the sum of exponentials of every row, by chunk.
    """

    def of_chunk(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        logits = readout(chunk[0])
        top, total = _normaliser(logits)
        return _loss(logits, chunk[1], top, total), top + total

    chunks = in_chunks((features, target), readout.weight.shape[1], _CHUNKS)
    losses, sums = jax.lax.map(of_chunk, chunks)
    return losses.reshape(-1)[: len(target)], (features, readout, target, sums)


def _losses_backward(
    saved: tuple[Array, Readout, Array, Array], g: Float[Array, " rows"]
) -> tuple[Array, Readout, None]:
    """Compute the logits of every chunk again.

    The gradient of a row's loss by its logits is the difference of the probabilities and the
    one-hot target. Operands of products have the type of the features; sums are wider.
    """
    features, readout, target, sums = saved
    weight, bias = readout
    width, classes = weight.shape
    wide = jnp.promote_types(features.dtype, jnp.float32)
    product = functools.partial(jnp.matmul, preferred_element_type=wide)

    def of_chunk(
        totals: tuple[Array, Array], chunk: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], Array]:
        of_weight, of_bias = totals
        rows, target, g, total = chunk
        logits = readout(rows)
        by_logit = (jnp.exp(logits - total) - _is(target, logits)) * g[:, None]
        low = by_logit.astype(features.dtype)
        totals = (of_weight + product(rows.T, low), of_bias + jnp.sum(by_logit, 0))
        return totals, product(low, weight.T).astype(features.dtype)

    zeros = (jnp.zeros((width, classes), wide), jnp.zeros(classes, wide))
    chunks = in_chunks((features, target, g), classes, _CHUNKS)
    (of_weight, of_bias), by_row = jax.lax.scan(of_chunk, zeros, (*chunks, sums))
    of_features = by_row.reshape(-1, width)[: len(features)]
    biased = None if bias is None else of_bias.astype(bias.dtype)
    return of_features, Readout(of_weight.astype(weight.dtype), biased), None


_losses.defvjp(_losses_forward, _losses_backward)


@jax.custom_jvp
def cross_entropy(
    logits: Float[Array, "*rows classes"], target: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Return minus the log-probability of each target, in nats.

    The derivative is written by hand, so that it needs one pass over the logits.
    """
    return _loss(logits, target, *_normaliser(logits))


def _normaliser(logits: Float[Array, "*rows classes"]) -> tuple[Array, Array]:
    """Return the largest logit, and the log of the sum of exponentials relative to it."""
    top = jnp.max(logits, -1, keepdims=True)
    return top, jnp.log(jnp.sum(jnp.exp(logits - top), -1, keepdims=True))


def _loss(logits: Array, target: Array, top: Array, total: Array) -> Array:
    """Return the cross-entropy. Differences with the largest logit keep small losses precise."""
    right = jnp.sum(jnp.where(_is(target, logits), logits - top, 0), -1)
    return total[..., 0] - right


@cross_entropy.defjvp
def _cross_entropy_jvp(
    given: tuple[Array, Array], turned: tuple[Array, Array]
) -> tuple[Array, Array]:
    logits, target = given
    top, total = _normaliser(logits)
    log_chances = logits - top - total
    change = jnp.sum((jnp.exp(log_chances) - _is(target, logits)) * turned[0], -1)
    return _loss(logits, target, top, total), change


def _is(
    target: Int[Array, "*rows"], logits: Float[Array, "*rows classes"]
) -> Bool[Array, "*rows classes"]:
    return target[..., None] == jnp.arange(logits.shape[-1])
