"""What is watched while the toy model trains."""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from .. import theory
from ..engine import Probe
from ..models import ToyAttention
from ..tasks import Truth


@functools.cache
def toy_probe(burst: int = 1) -> Probe:
    """The exact expected loss (no sampling noise), the attention on the relevant tokens and the projection of W on W*."""

    def probe(model: ToyAttention, truth: Truth) -> dict[str, Array]:
        sizes = (model.logits.shape[0], truth.weights.shape[0], burst, 0.0)
        cell = theory.Cell(*(jnp.float32(size) for size in sizes))
        return {
            "loss": theory.population_loss(theory.Parameters(model.logits, model.weights), truth.weights, cell),
            "attention": jnp.sum(model.attention[-burst:]),
            "alignment": jnp.sum(model.weights * truth.weights) / jnp.linalg.norm(truth.weights),
        }

    return probe
