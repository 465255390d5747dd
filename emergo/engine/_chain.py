"""Training on the Markov chain of yuksel2026: its batches, loss, probes and cost.

Runs of one program may differ in the strengths of the groups and in the start of their parameters: both are in what a run
starts with, and in no later operation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._random import fold_in
from ..models import ChainModel, ChainTransformer, MinimalAttention
from ..tasks import ChainTruth, MarkovChain, divergence

MAPS = 64
"""Test sequences whose attention is looked at."""
_DROPOUT = 3  # a stream of its own, beside those of `Supply`


def dropout_key(stream: Array, step: Int[Array, ""]) -> Array:
    """What dropout draws from in a step."""
    return fold_in(fold_in(stream, _DROPOUT), step)


def predictions(
    task: MarkovChain,
    model: ChainModel,
    parameters: object,
    tokens: Int[Array, "n length"],
    key: Array | None = None,
    window: Int[Array, ""] | None = None,
    step: Int[Array, ""] | None = None,
) -> Float[Array, "n generated vocabulary"]:
    """A student's log-probabilities of every generated token; with the dropout of a step of training, if it has any, where a
    key is given; seeing no more than `window` tokens, where that is given."""
    read = tokens[:, :-1]
    if isinstance(model, ChainTransformer):
        logits = model.answer(parameters, read, task.generated, key, window, step)  # pyright: ignore[reportArgumentType]
    else:
        logits = model.answer(parameters, read, task.generated, window)  # pyright: ignore[reportArgumentType]
    return jax.nn.log_softmax(logits, -1)


class Restricted(NamedTuple):
    """Trained predictors that see a part of the context only."""

    parameters: Any
    """With a leading axis over the windows."""
    windows: Int[Array, " windows"]


def probe(
    task: MarkovChain,
    model: ChainModel,
    parameters: object,
    tokens: Int[Array, "n length"],
    truth: ChainTruth,
    others: Restricted | None = None,
) -> dict[str, Array]:
    """What is watched of a student on its test set; with `others`, its divergence from these as well."""
    student = predictions(task, model, parameters, tokens)
    divergences = task.divergences(truth, tokens, student)
    teacher = task.teacher(truth, tokens)
    more = {}
    if others is not None:
        theirs = jax.vmap(lambda p, window: predictions(task, model, p, tokens, window=window))(*others)
        more["restricted"] = jax.vmap(lambda one: divergence(one, student).mean())(theirs)
    return more | {
        "loss": task.cross_entropy(tokens, student),
        "teacher_loss": task.cross_entropy(tokens, teacher),
        "excess": divergences[-1],
        "divergences": divergences,
        "lags": _by_lag(task, model.forward(parameters, tokens[:MAPS, :-1]).attention),  # pyright: ignore[reportArgumentType]
    }


def _by_lag(task: MarkovChain, maps: Float[Array, "n layers heads length length"]) -> Float[Array, "layers heads window"]:
    """Attention to the token that lies 0, 1, ... before the query, mean over the positions that are compared."""
    queries = jnp.arange(task.given - 1, task.length - 1)
    by_lag = [maps[..., queries, queries - lag].mean((0, -1)) for lag in range(task.groups.window)]
    return jnp.stack(by_lag, -1)


def chain_operations(task: MarkovChain, model: ChainModel, batch: int) -> float:
    """Floating-point operations of one step, as `step_operations` counts them: products of the folded forward and backward."""
    length, asked, size = task.length - 1, task.generated, task.vocabulary
    if isinstance(model, MinimalAttention):
        # The first layer: weighted values forward and twice back; three products with one-hot matrices back.
        queries = asked if model.layers == 1 else length
        outputs = size if model.layers == 1 else model.size
        total = 6 * queries * length * outputs + 2 * size * (length * outputs + queries * model.size + queries * length)
        dense = model.size**2 * 4 + 4 * length * model.size
        return batch * model.heads * (total + 3 * (model.layers - 1) * length * dense)
    # The first block's look-ups: products with one-hot matrices back, for queries and what they are added to, keys and values.
    width, later = model.width, model.layers - 1
    queries, first = later * length + asked, length if later else asked
    per_query = 2 * width * (width + 2 * length + 2 * model.hidden)
    mapped = 2 * width * width * (queries - first + 2 * later * length)
    return batch * (3 * (queries * per_query + mapped + 2 * asked * width * size) + 4 * size * width * (first + length))


def chain_parameters(model: ChainModel) -> float:
    """How many there are, but for biases."""
    if isinstance(model, MinimalAttention):
        return 2 * model.layers * model.heads * model.size**2
    return model.layers * (4 * model.width**2 + 2 * model.width * model.hidden) + 150 * model.width


def chain_bytes(task: MarkovChain, model: ChainModel, batch: int, samples: int | None) -> float:
    """A guess of the memory of one run."""
    length, asked = task.length - 1, task.generated
    if isinstance(model, MinimalAttention):
        kept = model.layers * model.heads * (asked * model.size + length * model.size + 3 * asked * length)
    else:
        kept = model.layers * (12 * length * model.width + 3 * length * model.hidden + 3 * model.heads * asked * length)
    return 4 * (6 * chain_parameters(model) + 1.2 * batch * (kept + 6 * asked * task.vocabulary) + (samples or 0) * task.length)
