"""A probe of gradients: how large they are in the maps of each attention layer, and how well two halves of a batch agree."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._contract import Batch, Output, probe
from .._errors import InputError

_PATHS = {"query": "query_key", "key": "query_key", "value": "value_output", "out": "value_output"}


@probe(gradients=True)
def gradient_probe(
    params: PyTree, output: Output, batch: Batch, truth: PyTree, step: ArrayLike, gradients: tuple[PyTree, PyTree]
) -> dict[str, Array]:
    """The size of the training gradient, and its agreement between the two halves of a batch, by layer, for the maps that form
    the scores (`query_key`) and those that form what is read (`value_output`).

    `gradient_{path}_{layer}` is the norm of the gradient of the batch, the mean of both halves; `agreement_{path}_{layer}` the
    cosine between the halves' gradients, 0 where one has none. In the flow of the theory (docs/theory.md) that agreement grows
    while the loss is still flat, and it needs no labels of what is relevant.

    It works for every model whose parameters name these maps `query`, `key`, `value` and `out` (weights and biases) in numbered
    layers; those with no number on their path are in layer 0. It costs as much as one step of training in each evaluation.

    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4)
    >>> (result,) = em.train([em.Run(em.Config(task, model, steps=25, threshold=None, probes=(em.gradient_probe,)), seed=0)])
    >>> [name for name in result.curves if name.startswith("agreement")]
    ['agreement_query_key_0', 'agreement_value_output_0']
    """
    first, second = (flat_paths(gradient) for gradient in gradients)
    if not first:
        named = ", ".join(_PATHS)
        raise InputError(f"gradient_probe needs a model whose parameters have one of the names {named}; this one has none")
    curves = {}
    for path, layer in sorted(first):
        one, two = first[path, layer], second[path, layer]
        curves[f"gradient_{path}_{layer}"] = _norm((one + two) / 2)
        curves[f"agreement_{path}_{layer}"] = cosine(one, two)
    return curves


def flat_paths(params: PyTree) -> dict[tuple[str, int], Float[Array, " numbers"]]:
    """By path (`query_key`, `value_output`) and layer, all numbers of its maps in parameters, or in a gradient of them."""
    leaves: dict[tuple[str, int], list[Array]] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        if (place := path_and_layer(keys)) is not None:
            leaves.setdefault(place, []).append(leaf.ravel())
    return {place: jnp.concatenate(parts) for place, parts in leaves.items()}


def path_and_layer(keys: tuple[Any, ...]) -> tuple[str, int] | None:
    """Where a leaf of the parameters belongs, by the names on the way to it; None: to no map of an attention layer."""
    names = [jax.tree_util.keystr((key,), simple=True) for key in keys]
    layer = next((int(name) for name in names if name.isdecimal()), 0)
    return next(((_PATHS[name], layer) for name in names if name in _PATHS), None)


def _unit(x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """A vector over its norm (zeros for zeros), and the norm. It is first divided by its largest number, so that the squares of
    small gradients do not vanish."""
    largest = jnp.max(jnp.abs(x))
    scaled = x / jnp.where(largest > 0, largest, 1)
    norm = jnp.linalg.norm(scaled)
    return scaled / jnp.where(norm > 0, norm, 1), largest * norm


def _norm(x: Float[Array, " n"]) -> Float[Array, ""]:
    return _unit(x)[1]


def cosine(one: Float[Array, " n"], two: Float[Array, " n"]) -> Float[Array, ""]:
    """The cosine between two vectors; 0 where one of them is zero."""
    return jnp.sum(_unit(one)[0] * _unit(two)[0])
