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
from ._task import Task, Variant, attention_probe, half_squared_error, hardness_repeated

Position = Literal["last", "fixed", "random"]

# Where the draws that are not tokens live: columns that no feature reaches.
_POSITIONS = 1 << 30
_CHANCE = (1 << 30) + (1 << 20)


class Truth(NamedTuple):
    """What one run has to learn: drawn once, the same for all its sequences."""

    weights: Float[Array, "dim dim"]  # W*, the target map
    special: Float[Array, " dim"]  # the token that is repeated across sequences
    relevant: Bool[
        Array, " length"
    ]  # which positions hold the relevant token; none where they are drawn for each sequence


class SingleLocation(Task):
    """Sequences of normal tokens of variance 1/dim; the target is a linear map of the relevant one.

    With probability `repeat` the relevant token is the special token of the run, the same in all
    sequences. The test set has no such repetition; where `burst` is above 1 and positions are
    random, the loss at a burst of 1 is measured as well.

    **Arguments:**

    - `length`: T, the number of tokens of a sequence.
    - `dim`: d, the number of features of a token. Tasks of several dims can share a program.
    - `burst`: B, the number of positions that hold the relevant token; smaller than `length`.
    - `repeat`: p, the probability that the relevant token is the special one.
    - `position`: where the relevant token stands: at the last `burst` positions (`"last"`, Section
      2.1), at positions drawn once for a run (`"fixed"`), or at positions drawn for each sequence
      (`"random"`, B.1), which needs `indicator`.
    - `indicator`: whether tokens carry a further feature, the first one, that is 1 at relevant
      tokens and 0 at others (B.1).
    - `special`: what the special token is: the first basis vector, as in the theory (A.2), a draw
      from the distribution of the other tokens (`"draw"`), or such a draw whose sign is drawn anew
      for each sequence (`"signed"`): the same second moments, but a mean of zero, so that no
      constant answers it.

    >>> import jax
    >>> task = em.SingleLocation(length=4, dim=2, burst=2)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.relevant[0].tolist()
    [False, False, True, True]
    """

    learned = Below("loss", 0.1)
    forecast_probes = True

    length: int = option(low=2)
    dim: int = option(low=1, padded=True)
    burst: int = option(default=1, low=1, padded=True)
    repeat: float = per_run(default=0.0, low=0, high=1)
    position: Position = "last"
    indicator: bool = False
    special: Literal["basis", "draw", "signed"] = "basis"

    def __post_init__(self) -> None:
        for name, most in (("length", _CHANCE - _POSITIONS), ("dim", _POSITIONS - 1)):
            if getattr(self, name) > most:
                raise InputError(
                    f"SingleLocation.{name} must be at most {most}, got {getattr(self, name)}"
                )
        if self.burst >= self.length:
            sizes = f"burst {self.burst} with length {self.length}"
            raise InputError(f"SingleLocation.burst must be smaller than length, got {sizes}")
        if self.position == "random" and not self.indicator:
            advice = "set indicator, or position 'fixed' or 'last'"
            raise InputError(
                f"SingleLocation.position 'random' cannot be learned without the indicator "
                f"feature; {advice}"
            )

    @property
    def spec(self) -> Spec:
        marks = int(self.indicator)
        dim = self.real("dim")
        used = None if dim is self.dim else (dim + marks, dim)
        return Spec(self.length, self.dim + marks, self.dim, marks=marks, used=used)

    def truth(self, key: Array) -> Truth:
        """Draws W* with entries of variance 1/dim (A.3.4), the special token and, where they are
        fixed, the positions."""
        key = raw(key)
        dim = self.real("dim")
        used = jnp.arange(self.dim) < dim
        scale = jax.lax.rsqrt(jnp.float32(dim))
        weights = jnp.where(used & used[:, None], scale * normals(key, 1, self.dim, self.dim)[0], 0)
        special = jnp.zeros(self.dim, jnp.float32).at[0].set(1.0)
        if self.special != "basis":
            special = jnp.where(
                used, scale * normals(fold_in(key, _POSITIONS), 1, 1, self.dim)[0, 0], 0
            )
        relevant = jnp.arange(self.length) >= self.length - self.real("burst")
        if self.position == "fixed":
            relevant = self._positions(key, 1)[0]
        elif self.position == "random":
            relevant = jnp.zeros(self.length, bool)
        return Truth(weights, special, relevant)

    def batch(self, key: Array, n: int, truth: Truth) -> Batch:
        """Draws `n` sequences. In a program for several tasks a run draws what it draws alone,
        padded with zero features."""
        key = raw(key)
        dim = self.real("dim")
        # Row `length` of a sequence is its relevant token.
        drawn = normals(key, n, self.length + 1, self.dim)
        if dim is not self.dim:
            drawn = jnp.where(jnp.arange(self.dim) < dim, drawn, 0)
        drawn = drawn * jax.lax.rsqrt(jnp.float32(dim))
        token = self.repeated(key, drawn[:, -1], truth)
        anew = self.position == "random"
        relevant = (
            self._positions(key, n) if anew else jnp.broadcast_to(truth.relevant, (n, self.length))
        )
        inputs = jnp.where(relevant[:, :, None], token[:, None], drawn[:, :-1])
        if self.indicator:
            first = jnp.arange(self.dim + 1) == 0
            inputs = jnp.where(
                first, relevant[:, :, None], jnp.pad(inputs, ((0, 0), (0, 0), (1, 0)))
            )
        return Batch(inputs, token @ truth.weights.T, relevant)

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        return half_squared_error(output, batch)

    def at_test(self) -> "SingleLocation":
        """The same task without repetition across sequences."""
        return self.replace(repeat=0.0)

    def variants(self) -> Mapping[str, Variant]:
        """`single`: the sequences of the test set with the relevant token at one position only."""
        if self.position != "random" or self.burst == 1:
            return {}
        return {"single": Variant(self.at_test().replace(burst=1))}

    def probes(self) -> tuple[Any, ...]:
        return (attention_probe, alignment_probe)

    def hardness(self) -> tuple[float, ...]:
        return hardness_repeated(self, self.burst, self.repeat)

    def repeated(
        self, key: Array, tokens: Float[Array, "n dim"], truth: Truth
    ) -> Float[Array, "n dim"]:
        """Replaces each of these relevant tokens with the special one, with probability
        `repeat`."""
        special = truth.special
        if (
            self.special == "signed"
        ):  # the sign of the token that it replaces, which nothing else sees
            special = jnp.where(tokens[:, :1] < 0, -special, special)
        return jnp.where(
            uniform(raw(key), len(tokens), 1, first_column=_CHANCE) < self.repeat, special, tokens
        )

    def _positions(self, key: Array, n: int) -> Bool[Array, "n length"]:
        """In each row as many different positions as the run's burst, every set equally likely
        (Floyd's algorithm)."""
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
    """The cosine between W* and the map from a token to the output through values alone, where the
    model has one."""
    if output.value_path is None:
        return {}
    path = output.value_path[-len(truth.weights) :]  # without the rows of the marks
    norms = jnp.linalg.norm(path) * jnp.linalg.norm(truth.weights)
    return {"alignment": jnp.sum(path * truth.weights.T) / norms}
