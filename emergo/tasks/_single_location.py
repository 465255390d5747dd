"""Single-location linear regression (zucchet2025, Sections 2.1 and B.1)."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..core.contract import Batch, Below, Output, Spec
from ..core.errors import InputError
from ..core.pytree import option, per_run
from ..core.random import fold_in, normals, raw, uniform
from ._task import Task, Variant, attention_probe, half_squared_error

# Columns of the random table for draws that are not tokens. No feature has such a large index.
_POSITIONS = 1 << 30
_CHANCE = (1 << 30) + (1 << 20)


class Truth(NamedTuple):
    """The target of a run, drawn once for all of its sequences."""

    weights: Float[Array, "dim dim"]  # W*, the target map
    special: Float[Array, " dim"]  # the token that is repeated across sequences
    # Mask of the relevant positions; all False if they are drawn for each sequence.
    relevant: Bool[Array, " length"]


class SingleLocation(Task):
    """Regression on sequences of normal tokens with variance 1/dim.

    The target is a linear map of the relevant token. That token is, with probability `repeat`, the
    special token of the run, the same in all sequences. The test set has no such repetition. If
    `burst` is above 1 and positions are random, the loss at a burst of 1 is measured as well.

    **Arguments:**

    - `length`: T, the number of tokens of a sequence.
    - `dim`: d, the number of features of a token. Tasks of several dims can share a program.
    - `burst`: B, the number of positions that hold the relevant token; smaller than `length`.
    - `repeat`: p, the probability that the relevant token is the special one.
    - `position`: positions of the relevant token: the last `burst` positions (`"last"`, Section
      2.1), positions drawn once per run (`"fixed"`), or positions drawn for each sequence
      (`"random"`, B.1), which needs `indicator`.
    - `indicator`: give tokens a further feature, the first one, that is 1 at relevant tokens and 0
      at others (B.1).
    - `special`: the special token: the first basis vector (`"basis"`, as in A.2), a draw from the
      distribution of the other tokens (`"draw"`), or such a draw with a random sign per sequence
      (`"signed"`), which has the same second moments and mean zero, so that no constant output
      helps.

    >>> import jax
    >>> task = em.SingleLocation(length=4, dim=2, burst=2)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.relevant[0].tolist()
    [False, False, True, True]
    """

    learned = Below("loss", 0.1)

    length: int = option(low=2)
    dim: int = option(low=1, padded=True)
    burst: int = option(default=1, low=1, padded=True)
    repeat: float = per_run(default=0.0, low=0, high=1)
    position: Literal["last", "fixed", "random"] = "last"
    indicator: bool = False
    special: Literal["basis", "draw", "signed"] = "basis"

    def __post_init__(self) -> None:
        if self.burst >= self.length:
            raise InputError(
                f"SingleLocation.burst must be smaller than length, got burst {self.burst} with "
                f"length {self.length}"
            )
        if self.position == "random" and not self.indicator:
            raise InputError(
                "SingleLocation.position 'random' cannot be learned without the indicator feature; "
                "set indicator, or position 'fixed' or 'last'"
            )

    @property
    def spec(self) -> Spec:
        marks = int(self.indicator)
        dim = self.real("dim")
        used = None if dim is self.dim else (dim + marks, dim)
        return Spec(self.length, self.dim + marks, self.dim, marks=marks, used=used)

    def truth(self, key: Array) -> Truth:
        """Draw W* with entries of variance 1/dim (A.3.4), the special token and fixed positions."""
        key = raw(key)
        dim = self.real("dim")
        used = jnp.arange(self.dim) < dim
        scale = jax.lax.rsqrt(jnp.float32(dim))
        weights = jnp.where(used & used[:, None], scale * normals(key, 1, self.dim, self.dim)[0], 0)
        special = jnp.eye(1, self.dim, dtype=jnp.float32)[0]
        if self.special != "basis":
            drawn = normals(fold_in(key, _POSITIONS), 1, 1, self.dim)[0, 0]
            special = jnp.where(used, scale * drawn, 0)
        relevant = jnp.arange(self.length) >= self.length - self.real("burst")
        if self.position == "fixed":
            relevant = self._positions(key, 1)[0]
        elif self.position == "random":
            relevant = jnp.zeros(self.length, bool)
        return Truth(weights, special, relevant)

    def batch(self, key: Array, n: int, truth: Truth) -> Batch:
        """Draw `n` sequences.

        In a program for several dims, a run draws the same numbers as alone, padded with zeros.
        """
        key = raw(key)
        dim = self.real("dim")
        # Row `length` of a sequence is its relevant token.
        drawn = normals(key, n, self.length + 1, self.dim)
        if dim is not self.dim:
            drawn = jnp.where(jnp.arange(self.dim) < dim, drawn, 0)
        drawn = drawn * jax.lax.rsqrt(jnp.float32(dim))
        token = self.repeated(key, drawn[:, -1], truth)
        relevant = jnp.broadcast_to(truth.relevant, (n, self.length))
        if self.position == "random":
            relevant = self._positions(key, n)
        inputs = jnp.where(relevant[:, :, None], token[:, None], drawn[:, :-1])
        if self.indicator:
            first = jnp.arange(self.dim + 1) == 0
            padded = jnp.pad(inputs, ((0, 0), (0, 0), (1, 0)))
            inputs = jnp.where(first, relevant[:, :, None], padded)
        return Batch(inputs, token @ truth.weights.T, relevant)

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        return half_squared_error(output, batch)

    def at_test(self) -> "SingleLocation":
        """Return the task without repetition across sequences."""
        return self.replace(repeat=0.0)

    def variants(self) -> Mapping[str, Variant]:
        """Return `single`: test sequences with the relevant token at one position only."""
        if self.position != "random" or self.burst == 1:
            return {}
        return {"single": Variant(self.at_test().replace(burst=1))}

    def probes(self) -> tuple[Any, ...]:
        return (attention_probe, alignment_probe)

    def repeated(
        self, key: Array, tokens: Float[Array, "n dim"], truth: Truth
    ) -> Float[Array, "n dim"]:
        """Replace each relevant token with the special one, with probability `repeat`."""
        special = truth.special
        if self.special == "signed":
            # The sign comes from the replaced token, which nothing else depends on.
            special = jnp.where(tokens[:, :1] < 0, -special, special)
        chance = uniform(raw(key), len(tokens), 1, first_column=_CHANCE)
        return jnp.where(chance < self.repeat, special, tokens)

    def _positions(self, key: Array, n: int) -> Bool[Array, "n length"]:
        """Draw, in each row, as many different positions as the run's burst.

        Floyd's algorithm: step i draws from the first `top + 1` positions, and takes `top` itself
        if the drawn position is already chosen. Every set of positions is equally likely.
        """
        burst = self.real("burst")
        chance = uniform(key, n, self.burst, first_column=_POSITIONS)
        chosen = jnp.full((n, self.burst), -1)
        for i in range(self.burst):
            top = self.length - burst + i
            pick = jnp.floor(chance[:, i] * (top + 1)).astype(jnp.int32)
            pick = jnp.where(jnp.any(chosen == pick[:, None], axis=1), top, pick)
            chosen = chosen.at[:, i].set(jnp.where(i < burst, pick, -1))
        return jnp.any(chosen[:, :, None] == jnp.arange(self.length), axis=1)


def alignment_probe(
    params: Any, output: Output, batch: Batch, truth: Truth, step: Any
) -> dict[str, Array]:
    """Measure the cosine between W* and the value path of the model."""
    if output.value_path is None:
        return {}
    path = output.value_path[-len(truth.weights) :]  # without the rows of the marks
    norms = jnp.linalg.norm(path) * jnp.linalg.norm(truth.weights)
    return {"alignment": jnp.sum(path * truth.weights.T) / norms}
