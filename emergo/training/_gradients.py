"""A probe that measures the gradients of the maps of attention layers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..core.contract import Batch, Output, probe
from ..core.errors import InputError

_PATHS = {"query": "query_key", "key": "query_key", "value": "value_output", "out": "value_output"}


@probe(gradients=True)
def gradient_probe(
    params: PyTree,
    output: Output,
    batch: Batch,
    truth: PyTree,
    step: ArrayLike,
    gradients: tuple[PyTree, PyTree],
) -> dict[str, Array]:
    """Measure the training gradient of each attention layer, and how well two halves of a batch
    agree on it.

    The maps of a layer form two paths: queries and keys form the scores (`query_key`), values and
    outputs form what is read (`value_output`).

    - `gradient_{path}_{layer}`: the norm of the gradient of the batch, the mean of both halves.
    - `agreement_{path}_{layer}`: the cosine between the gradients of the halves; 0 if one is zero.
      In the flow of the theory (docs/theory.md) it grows while the loss is still flat, and it needs
      no labels of the relevant tokens.

    The parameters of the model must name the maps `query`, `key`, `value` and `out`, in numbered
    layers. Maps without a number in their path belong to layer 0. Each evaluation costs as much as
    one training step.

    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4)
    >>> config = em.Config(task, model, steps=25, threshold=None, probes=(em.gradient_probe,))
    >>> (result,) = em.train([em.Run(config, seed=0)])
    >>> [name for name in result.curves if name.startswith("agreement")]
    ['agreement_query_key_0', 'agreement_value_output_0']
    """
    first, second = (flat_paths(gradient) for gradient in gradients)
    if not first:
        raise InputError(
            f"gradient_probe needs a model whose parameters have one of the names "
            f"{', '.join(_PATHS)}"
        )
    curves = {}
    for path, layer in sorted(first):
        one = first[path, layer]
        two = second[path, layer]
        curves[f"gradient_{path}_{layer}"] = _unit((one + two) / 2)[1]
        curves[f"agreement_{path}_{layer}"] = cosine(one, two)
    return curves


def flat_paths(params: PyTree) -> dict[tuple[str, int], Float[Array, " numbers"]]:
    """Concatenate the numbers of parameters, or of their gradient, by path and layer."""
    leaves: dict[tuple[str, int], list[Array]] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [jax.tree_util.keystr((key,), simple=True) for key in keys]
        layer = next((int(name) for name in names if name.isdecimal()), 0)
        path = next((_PATHS[name] for name in names if name in _PATHS), None)
        if path is not None:
            leaves.setdefault((path, layer), []).append(leaf.ravel())
    return {place: jnp.concatenate(parts) for place, parts in leaves.items()}


def _unit(x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Return a vector divided by its norm (zeros for zeros), and the norm.

    It is first divided by its largest number, so that the squares of small gradients do not vanish.
    """
    largest = jnp.max(jnp.abs(x))
    scaled = x / jnp.where(largest > 0, largest, 1)
    norm = jnp.linalg.norm(scaled)
    return scaled / jnp.where(norm > 0, norm, 1), largest * norm


def cosine(one: Float[Array, " n"], two: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the cosine between two vectors; 0 if one of them is zero."""
    return jnp.sum(_unit(one)[0] * _unit(two)[0])
