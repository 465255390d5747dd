r"""Stochastic gradient descent on the toy model, many seeds as one program.

Two ways to draw the data give the same law of the training path:

- `"tokens"` draws every token of every sequence: $n\,T\,d$ normals a step.
- `"statistics"` draws only what the gradient reads: $2nd + T$ normals a step. Given the attention, a sample enters the
  gradient through the relevant token, the weighted sum $u$ of the others, and the projections of the others on
  $g = W^\top(y - y^*)$. $u$ is normal; given $u$, and so $g$, the projections are jointly normal with a known mean and
  covariance; and only their mean over the batch is used, which is normal again. `docs/theory.md` has the algebra.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._errors import InputError, unknown
from .._random import fold_in, normals, raw
from ..models import ToyAttention
from ..tasks import SingleLocation, Truth

Draws = Literal["statistics", "tokens"]
Probe = Callable[[ToyAttention, Truth], dict[str, Array]]


class Curves(NamedTuple):
    """What the probe saw during training."""

    step: Int[np.ndarray, " evaluations"]
    values: dict[str, Float[np.ndarray, "seeds evaluations"]]


def _gradient_from_tokens(model: ToyAttention, truth: Truth, task: SingleLocation, key: Array, batch: int) -> ToyAttention:
    data = task.sample(key, batch, truth)

    def loss(model: ToyAttention) -> Float[Array, ""]:
        return 0.5 * jnp.mean(jnp.sum((jax.vmap(model)(data.tokens) - data.target) ** 2, axis=-1))

    return jax.grad(loss)(model)


def _gradient_from_statistics(model: ToyAttention, truth: Truth, task: SingleLocation, key: Array, batch: int) -> ToyAttention:
    size = batch * task.dim
    pairs = -(-(2 * size + task.length) // 2)
    drawn = normals(raw(key), 2, 1, pairs).ravel()
    attention, relevant = model.attention, truth.relevant
    total = jnp.sum(jnp.where(relevant, attention, 0))
    # The attention on the others is its norm times a unit vector, which stays exact when the norm underflows.
    shares = jax.nn.softmax(model.logits, where=~relevant)
    norm = (1 - total) * jnp.linalg.norm(shares)
    unit = shares / jnp.linalg.norm(shares)

    token, direction = drawn[: 2 * size].reshape(2, batch, task.dim) / jnp.sqrt(jnp.float32(task.dim))
    token = task.repeated(key, token, truth, task.repeat)
    noise = norm * direction  # u
    seen = total * token + noise
    error = seen @ model.weights.T - token @ truth.weights.T
    pull = error @ model.weights  # g, one row a sample

    # Mean over the batch of g . x_t: for a relevant t, exact; for another, its mean given u plus a normal rest.
    rest = drawn[2 * size : 2 * size + task.length]
    rest = rest - unit * jnp.sum(unit * rest)
    scale = jnp.sqrt(jnp.sum(pull**2) / task.dim) / batch
    given_sum = unit * jnp.mean(jnp.sum(pull * direction, -1))
    by_attention = jnp.where(relevant, jnp.mean(jnp.sum(pull * token, -1)), given_sum + scale * rest)
    by_logits = attention * (by_attention - jnp.sum(attention * by_attention))
    return ToyAttention(by_logits, error.T @ seen / batch)


_GRADIENTS = {"statistics": _gradient_from_statistics, "tokens": _gradient_from_tokens}


def _start(task: SingleLocation, seeds: Int[Array, " seeds"], scale: float) -> tuple[Truth, ToyAttention]:
    """The truth and the initial model of every seed. Not compiled as a whole: its draws are shared between tasks of one dim."""

    def one(seed):
        key_truth, key_model = (fold_in(fold_in(raw(jax.random.key(seed)), 0), i) for i in range(2))
        model = ToyAttention.init(key_model, task.length, task.dim)
        return task.truth(key_truth), ToyAttention(model.logits, scale * model.weights)

    return jax.vmap(one)(seeds)


@eqx.filter_jit
def _advance(task, draws, batch, steps, probe, seeds, truths, models, first, learning_rate):
    """`steps` steps of every seed from step `first` on, then the probe."""

    def one(seed, truth, model):
        stream = fold_in(raw(jax.random.key(seed)), 1)

        def step(model, count):
            gradient = _GRADIENTS[draws](model, truth, task, fold_in(stream, count), batch)
            return jax.tree.map(lambda x, g: x - learning_rate * g, model, gradient), None

        model, _ = jax.lax.scan(step, model, first + jnp.arange(steps))
        return model, probe(model, truth)

    return jax.vmap(one)(seeds, truths, models)


def train_toy(
    task: SingleLocation,
    probe: Probe,
    *,
    seeds: int = 5,
    steps: int = 1000,
    every: int = 10,
    batch: int = 32,
    learning_rate: float = 1.0,
    initial_scale: float = 1.0,
    draws: Draws = "statistics",
    progress: Callable[[int], None] = lambda step: None,
) -> Curves:
    """Trains one toy model per seed by plain stochastic gradient descent, all of them as one compiled program.

    A seed changes the target, the initial weights and the data (A.3.4); its randomness is a function of (seed, step) and
    does not depend on the seeds beside it. Products are fp32.

    **Arguments:**

    - `task`: a [`emergo.tasks.SingleLocation`][].
    - `probe`: maps (model, truth) to named scalars; it is evaluated every `every` steps. Keep it at module level (or
      otherwise the same object), or every call compiles anew.
    - `seeds`: how many seeds, from 0 on.
    - `initial_scale`: of the initial weights; 0 is Assumption 4 of A.1.
    - `draws`: `"statistics"` or `"tokens"`; see the top of this module.
    - `progress`: called with the number of steps done.

    **Returns:**

    [`emergo.engine.Curves`][]: the steps of evaluation and, by name, an array with one row a seed.
    """
    for name, value in (("seeds", seeds), ("steps", steps), ("every", every), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if not (np.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate must be positive, got {learning_rate:g}")
    if draws not in get_args(Draws):
        raise unknown("draws", draws, get_args(Draws))
    ids = jnp.arange(seeds, dtype=jnp.int32)
    with jax.default_matmul_precision("highest"):
        truths, models = _start(task, ids, initial_scale)
        rate = jnp.float32(learning_rate)
        at, rows = [0], [jax.jit(jax.vmap(probe))(models, truths)]
        while at[-1] < steps:
            count = min(every, steps - at[-1])
            first = jnp.int32(at[-1])
            models, seen = _advance(task, draws, batch, count, probe, ids, truths, models, first, rate)
            at.append(at[-1] + count)
            rows.append(seen)
            progress(at[-1])
    values = {name: np.stack([np.asarray(row[name], np.float64) for row in rows], axis=1) for name in rows[0]}
    return Curves(np.array(at), values)
