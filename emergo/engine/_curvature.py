r"""What is left of a plateau, from two checkpoints of a run: the growth of attention between them and the curvature there.

The theory (`docs/theory.md`, "The time left") says $R(g/\lambda)/\lambda$ with the Mills ratio R, the growth rate g of
attention, and $\lambda = \sqrt{\mu(\mu - g)}$, where $\mu$ is the fastest that a small change of the parameters grows: of
gradient descent the learning rate times minus the most negative eigenvalue of the Hessian; of Adam that of
$D^{-1/2}HD^{-1/2}$, where D are the roots of its second moments. Lanczos' method finds it from products with vectors.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._attention import attention_mass
from .._contract import Batch, Tap
from .._errors import InputError
from ..models import Model
from ..tasks import Task
from ..theory import local_rate, remaining_time
from ._gradients import path_and_layer
from ._interventions import Intervention
from ._parameters import Trained
from ._program import arithmetic, products

_CHUNK = 512  # sequences whose Hessian is held in memory at once
Vector = Float[Array, " parameters"]


class Remaining(NamedTuple):
    """What two checkpoints say of the time left. Rates are per step; what they do not tell is `nan`."""

    steps: float  # from the later checkpoint until attention takes off
    growth: float  # g, of the largest attention on relevant tokens
    curvature: float  # mu, the growth rate of the fastest small change
    rate: float  # lambda


def remaining_steps(earlier: Trained, later: Trained, n: int = 4096, iterations: int = 30) -> Remaining:
    """The steps left of a plateau, from the parameters of a run at two steps of it.

    - `earlier`, `later`: checkpoints of one run, on the plateau.
    - `n`: the training sequences over which the loss is averaged; fewer than some thousands have curvature of their own.
    - `iterations`: of Lanczos' method, each of which costs as much as two or three steps of training on these sequences.

    Attention is that of the layer and head which has most of it on the relevant tokens at the later step: the task must mark
    them. `nan` steps mean that curvature and growth are not those of a plateau.

    On the toy model this is right within a third. On Transformers it is not to be trusted: what is most negative there is the
    curvature of products of maps, such as values and `out`, which is ten times that of the escape (`docs/theory.md`).
    """
    if earlier.run.identity != later.run.identity or earlier.step >= later.step:
        raise InputError("remaining_steps takes two checkpoints of one run, the earlier one first")
    before, after = (_attention(trained) for trained in (earlier, later))
    head = np.unravel_index(np.argmax(after), after.shape)
    growth = float(np.log(after[head] / before[head]) / (later.step - earlier.step))
    curvature = escape_rate(later, n, iterations)
    rate = float(local_rate(growth, curvature))
    return Remaining(float(remaining_time(growth, rate)), growth, curvature, rate)


def _attention(trained: Trained, n: int = 1024) -> Float[np.ndarray, "layers heads"]:
    """The mean attention of the last position on the relevant tokens."""
    batch = trained.batch(n)
    attention = trained.forward(batch).attention
    if attention is None or batch.relevant is None:
        config = trained.run.config
        named = type(config.model if attention is None else config.task).__name__
        raise InputError(f"{named} has no attention on relevant tokens, whose growth tells how much of a plateau is left")
    return np.asarray(attention_mass(attention, batch.relevant), np.float64)


def escape_rate(trained: Trained, n: int = 4096, iterations: int = 30) -> float:
    r"""$\mu$: the rate per step at which the fastest small change of the maps of attention grows, from the expected training
    loss over `n` sequences.

    The maps are the parameters named `query`, `key`, `value` and `out`, as in [`emergo.engine.gradient_probe`][]; of a model
    that has none, all parameters. Of Adam, whose second moments are not kept with the parameters, they are the mean squares of
    gradients of batches at this step. Momentum and clipping are left out: on a plateau they change no slow rate.
    """
    config = trained.run.config
    optimizer = trained.now(config.optimizer)
    if optimizer.label not in ("sgd", "adam", "adamw"):
        raise InputError(f"the curvature that {optimizer.label} sees is not known; it is for sgd, adam and adamw")
    epsilon = None if optimizer.label == "sgd" else float(str(dict(optimizer.options).get("eps", 1e-8)))
    with arithmetic(config.precision), products("fp32"):
        parts = trained.now((config.task, config.model, config.interventions))
        params, data = jax.tree.map(jnp.asarray, trained.params), trained.batch(config.n_train or n, training=True)
        lowest = _lowest(parts, params, data, jnp.int32(trained.step), epsilon, config.batch, iterations)
        return -float(optimizer.learning_rate) * float(lowest)


@functools.partial(jax.jit, static_argnames=("epsilon", "batch", "iterations"))
def _lowest(
    parts: tuple[Task, Model, tuple[Intervention, ...]],
    params: PyTree,
    data: Batch,
    step: Array,
    epsilon: float | None,
    batch: int,
    iterations: int,
) -> Float[Array, ""]:
    """The lowest eigenvalue of the Hessian of the mean loss over the data in the maps of attention; with an `epsilon`, of the
    Hessian that Adam sees with batches of this size."""
    from matfree.decomp import tridiag_sym

    task, model, interventions = parts
    flat, unravel = ravel_pytree(params)

    def gradient(y: Vector, part: Batch) -> Vector:
        def loss(y: Vector) -> Array:
            tap = Tap(task.spec, step=step, changes=interventions, batch=part)
            way = model.apply if interventions else model.fast
            return jnp.mean(task.loss(way(unravel(y), part.inputs, tap), part))

        return jax.grad(loss)(y)

    inside = [path_and_layer(keys) is not None for keys, _ in jax.tree_util.tree_leaves_with_path(params)]
    inside = inside if any(inside) else [True] * len(inside)
    leaves, structure = jax.tree.flatten(params)
    scale = ravel_pytree(structure.unflatten([jnp.full_like(x, own) for x, own in zip(leaves, inside, strict=True)]))[0]
    if epsilon is not None:
        squares = _mean_over(lambda part: gradient(flat, part) ** 2, data, batch)
        scale = scale * (jnp.sqrt(squares) + epsilon) ** -0.5

    def product(vector: Vector) -> Vector:
        """Of the Hessian, as the optimizer sees it, with a vector; by two backward passes, which every model has."""
        along = scale * vector
        return scale * _mean_over(lambda part: jax.grad(lambda y: jnp.vdot(gradient(y, part), along))(flat), data, _CHUNK)

    start = jnp.where(scale > 0, jax.random.normal(jax.random.key(0), flat.shape, flat.dtype), 0)
    return jnp.linalg.eigvalsh(tridiag_sym(min(iterations, len(flat)))(product, start).J_small)[0]


def _mean_over(function: Callable[[Batch], Vector], data: Batch, size: int) -> Vector:
    """The mean of a function of batches over all whole batches of this size in the data, or of one of all of it."""
    n = len(data.inputs)
    size = min(size, n)
    parts = jax.tree.map(lambda x: x[: n // size * size].reshape(n // size, size, *x.shape[1:]), data)

    def add(total: Vector, part: Batch) -> tuple[Vector, None]:
        return total + function(part), None

    shape = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    return jax.lax.scan(add, jnp.zeros(shape.shape, shape.dtype), parts)[0] / (n // size)
