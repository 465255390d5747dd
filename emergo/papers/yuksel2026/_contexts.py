"""Predictors of restricted context, trained before the run that is compared with them (Figs. 3, 5, 13, 15 and 18)."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._contract import Batch, Output
from ..._errors import InputError
from ..._pytree import Pytree
from ...engine import Run, Trained, train
from ...tasks import divergence


class ContextPredictors(Pytree):
    """A probe: the exact KL from predictors that see only the last tokens to the run, as `kl_contexts`.

    A predictor is the same model from the same start, trained beforehand for as many steps.

    - `contexts`: how many tokens each predictor sees.
    - `fresh`: whether predictors are trained on fresh data in every step, or on the run's own sequences, as published. (There
      every window of a sequence is one of its own, with positions counted from its start; here a query sees so many positions
      back, and positions are those of the sequence.)
    """

    part_of_run: ClassVar[bool] = True  # in the first version such a run was one of its own, and so are its records
    curves: ClassVar[tuple[str, ...]] = ("kl_contexts",)

    contexts: tuple[int, ...]
    fresh: bool = True

    def __post_init__(self) -> None:
        if not self.contexts or not all(isinstance(c, int) and not isinstance(c, bool) and c >= 1 for c in self.contexts):
            raise InputError(f"ContextPredictors.contexts must be numbers of tokens, each at least 1, got {self.contexts!r}")

    def prepare(self, run: Run) -> dict[str, Array]:
        """What the predictors say on the run's test set."""
        config, length = run.config, run.config.task.spec.length
        if getattr(config.model, "layers", None) != 1 or getattr(config.model, "context", 0) is not None:
            raise InputError("ContextPredictors need a model of one layer that sees the whole context")
        if max(self.contexts) > length:
            numbers = f"numbers from 1 to {length}"
            raise InputError(f"ContextPredictors.contexts must be {numbers} for this task, got {self.contexts!r}")
        config = config.replace(n_train=None if self.fresh else config.n_train, probes=(), threshold=None)
        return {"log_probs": _predictions(config, run.seed, self.contexts)}

    def __call__(self, params: Any, output: Output, batch: Batch, truth: Any, step: Any, prepared: dict[str, Array]) -> dict:
        student = jax.nn.log_softmax(output.value, -1)
        return {"kl_contexts": jax.vmap(lambda one: divergence(one, student).mean())(prepared["log_probs"])}


@functools.lru_cache(maxsize=16)
def _predictions(config: Any, seed: int, contexts: tuple[int, ...]) -> Float[Array, "contexts n answers outputs"]:
    """Log-probabilities by every predictor; runs that differ in the number of training sequences share them."""
    runs = [Run(config.replace(model__context=context, n_test=32), seed) for context in contexts]
    last: dict[str, Trained] = {}

    def keep(run: Run, step: int, params: Any) -> None:
        last[run.identity] = Trained(run, step, params)

    train(runs, keep=[], snapshot=keep)
    inputs = Trained(Run(config, seed), 0, None).batch(config.n_test).inputs
    return jax.nn.log_softmax(jnp.stack([last[run.identity].forward(inputs).value for run in runs]), -1)
