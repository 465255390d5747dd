"""Where batches come from: a finite dataset, shuffled anew in every epoch, or fresh data in every step."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from .._errors import InputError
from .._random import fold_in, raw, uniform
from ._markov import ChainTruth, MarkovChain

# Streams of one key. Steps and epochs count from 0 within theirs.
_DATA, _ONLINE, _SHUFFLE = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Supply:
    """The training data of a run, a function of (key, step).

    **Arguments:**

    - `size`: how many sequences there are in all; None: every step draws new ones.
    - `batch`: how many a step uses; all of them where there are fewer.
    """

    size: int | None = 9000
    batch: int = 3000

    def __post_init__(self) -> None:
        for name in ("batch",) if self.size is None else ("batch", "size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")

    @property
    def width(self) -> int:
        """How many sequences a step uses."""
        return self.batch if self.size is None else min(self.batch, self.size)

    def dataset(self, task: MarkovChain, key: Array, truth: ChainTruth) -> Int[Array, "size length"] | None:
        """All sequences of a finite supply; a smaller one is the beginning of a larger one. None where data is fresh."""
        return None if self.size is None else task.sample(fold_in(raw(key), _DATA), self.size, truth)

    def rows(self, key: Array, step: int | Int[Array, ""]) -> Int[Array, " width"]:
        """Which sequences of the dataset a step uses.

        An epoch goes through a permutation of its own in `size // width` steps; what is left over then waits for the next one.
        """
        assert self.size is not None, "fresh data has no rows"
        steps = self.size // self.width
        chance = uniform(fold_in(fold_in(raw(key), _SHUFFLE), step // steps), self.size, 1)[:, 0]
        shuffled = jnp.argsort(chance).astype(jnp.int32)
        return jnp.take(shuffled.reshape(-1), (step % steps) * self.width + jnp.arange(self.width))

    def at(
        self,
        task: MarkovChain,
        key: Array,
        step: int | Int[Array, ""],
        truth: ChainTruth,
        dataset: Int[Array, "size length"] | None,
    ) -> Int[Array, "width length"]:
        """The batch of a step; `dataset` is what [`emergo.tasks.Supply.dataset`][] gave."""
        if dataset is None:
            return task.sample(fold_in(fold_in(raw(key), _ONLINE), step), self.width, truth)
        return dataset[self.rows(key, step)]
