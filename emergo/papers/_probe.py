"""What is measured while the toy model trains."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from .. import theory
from ..models import ToyParameters
from ..tasks import Truth


@functools.cache
def toy_probe(burst: int = 1) -> Callable[[ToyParameters, Truth], dict[str, Array]]:
    """The exact expected loss (no sampling noise), the attention on the relevant tokens and the projection of W on W*."""

    def probe(params: ToyParameters, truth: Truth) -> dict[str, Array]:
        sizes = (params.logits.shape[0], truth.weights.shape[0], burst, 0.0)
        cell = theory.Cell(*(jnp.float32(size) for size in sizes))
        return {
            "loss": theory.population_loss(theory.Parameters(params.logits, params.weights), truth.weights, cell),
            "attention": jnp.sum(params.attention[-burst:]),
            "alignment": jnp.sum(params.weights * truth.weights) / jnp.linalg.norm(truth.weights),
        }

    return probe
