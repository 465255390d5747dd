"""A probe that compares a run with predictors of restricted context (Figs. 3, 5, 13, 15 and 18)."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.contract import Batch, Output
from ...core.errors import InputError
from ...core.pytree import Pytree
from ...tasks import divergence
from ...training import Run, Trained, train


class ContextPredictors(Pytree):
    """A probe: the exact KL divergence from predictors that see only the last tokens, as
    `kl_contexts`.

    A predictor is the run's model from the run's initial parameters, trained beforehand for as many
    steps as the run.

    - `contexts`: the number of tokens that each predictor sees.
    - `fresh`: train predictors on fresh data in every step, instead of on the run's own sequences
      as in the paper. The paper treats every window of a sequence as a separate sequence, with
      positions counted from the window's start; here each query sees that many positions back, and
      positions are counted from the start of the sequence.
    """

    # Version 0.1 stored a run with predictors under a separate identity; records rely on it.
    part_of_run: ClassVar[bool] = True
    curves: ClassVar[tuple[str, ...]] = ("kl_contexts",)

    contexts: tuple[int, ...]
    fresh: bool = True

    def __post_init__(self) -> None:
        check_numbers("ContextPredictors.contexts", self.contexts, "numbers of tokens", 1)

    def prepare(self, run: Run) -> dict[str, Array]:
        """Train the predictors and return their log-probabilities on the run's test set."""
        config = run.config
        length = run.config.task.spec.length
        if (
            getattr(config.model, "layers", None) != 1
            or getattr(config.model, "context", 0) is not None
        ):
            raise InputError(
                "ContextPredictors need a model of one layer that sees the whole context"
            )
        if max(self.contexts) > length:
            numbers = f"numbers from 1 to {length}"
            raise InputError(
                f"ContextPredictors.contexts must be {numbers} for this task, got {self.contexts!r}"
            )
        config = config.replace(
            n_train=None if self.fresh else config.n_train, probes=(), threshold=None
        )
        return {"log_probs": _predictions(config, run.seed, self.contexts)}

    def __call__(
        self,
        params: Any,
        output: Output,
        batch: Batch,
        truth: Any,
        step: Any,
        prepared: dict[str, Array],
    ) -> dict:
        student = jax.nn.log_softmax(output.value, -1)
        return {
            "kl_contexts": jax.vmap(lambda one: divergence(one, student).mean())(
                prepared["log_probs"]
            )
        }


def check_numbers(where: str, values: Sequence[Any], what: str, least: int) -> None:
    """Raise `InputError` unless all values are whole numbers of at least `least`."""
    if not values or not all(type(value) is int and value >= least for value in values):
        raise InputError(f"{where} must be {what}, each at least {least}, got {values!r}")


@functools.lru_cache(maxsize=16)
def _predictions(
    config: Any, seed: int, contexts: tuple[int, ...]
) -> Float[Array, "contexts n answers outputs"]:
    """Return the log-probabilities of every predictor.

    The cache lets runs that differ only in their number of training sequences share predictors.
    """
    runs = [Run(config.replace(model__context=context, n_test=32), seed) for context in contexts]
    last: dict[str, Trained] = {}

    def keep(trained: Trained) -> None:
        last[trained.run.identity] = trained

    train(runs, keep=[], snapshot=keep)
    inputs = Trained(Run(config, seed), 0, None).batch(config.n_test).inputs
    return jax.nn.log_softmax(
        jnp.stack([last[run.identity].forward(inputs).value for run in runs]), -1
    )
