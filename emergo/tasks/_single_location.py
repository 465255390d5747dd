"""Single-location linear regression (zucchet2025, Section 2.1)."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._errors import InputError


class Truth(NamedTuple):
    """What one run has to learn: drawn once, the same for all its samples."""

    weights: Float[Array, "dim dim"]
    """W*, the target map."""
    special: Float[Array, " dim"]
    r"""$\\tilde x$, the token that is repeated across samples."""


class Batch(NamedTuple):
    tokens: Float[Array, "n length dim"]
    target: Float[Array, "n dim"]


@dataclasses.dataclass(frozen=True)
class SingleLocation:
    """Sequences of normal tokens of variance 1/dim; the target is a linear map of the relevant one.

    The relevant token is the last, and stands at the last `burst` positions. With probability `repeat` it is the special
    token of the run, the same in all samples.
    """

    length: int
    dim: int
    burst: int = 1
    repeat: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("dim", 1), ("burst", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.burst >= self.length:
            raise InputError(f"burst must be smaller than length, got burst {self.burst} with length {self.length}")
        if not (isinstance(self.repeat, float | int) and math.isfinite(self.repeat) and 0 <= self.repeat <= 1):
            raise InputError(f"repeat must be in [0, 1], got {self.repeat!r}")

    @property
    def relevant(self) -> Bool[Array, " length"]:
        """Which positions hold the relevant token."""
        return jnp.arange(self.length) >= self.length - self.burst

    def truth(self, key: Array) -> Truth:
        """Draws W* with entries of variance 1/dim (A.3.4). The special token is the first basis vector (A.2)."""
        weights = jax.random.normal(key, (self.dim, self.dim), jnp.float32) / jnp.sqrt(self.dim)
        return Truth(weights, jnp.zeros(self.dim, jnp.float32).at[0].set(1.0))

    def normals(self, key: Array, shape: tuple[int, ...]) -> tuple[Float[Array, "..."], Array]:
        """Standard normals of the task's one draw a batch, and the key that decides which samples repeat.

        One draw, and no second key unless it is needed: on a CPU the generator is most of what there is to compile.
        """
        key_normals, key_repeat = jax.random.split(key) if self.repeat else (key, key)
        return jax.random.normal(key_normals, shape, jnp.float32), key_repeat

    def relevant_tokens(self, normals: Float[Array, "n dim"], key: Array, truth: Truth) -> Float[Array, "n dim"]:
        """The relevant token of each sample, from standard normals and the key of [`normals`][]."""
        fresh = normals / jnp.sqrt(jnp.float32(self.dim))
        if not self.repeat:
            return fresh
        return jnp.where(jax.random.bernoulli(key, self.repeat, (len(normals), 1)), truth.special, fresh)

    def sample(self, key: Array, n: int, truth: Truth) -> Batch:
        """Draws `n` sequences and their targets."""
        normals, key = self.normals(key, (n, self.length - self.burst + 1, self.dim))
        relevant = self.relevant_tokens(normals[:, -1], key, truth)
        others = normals[:, :-1] / jnp.sqrt(jnp.float32(self.dim))
        copies = jnp.broadcast_to(relevant[:, None], (n, self.burst, self.dim))
        return Batch(jnp.concatenate([others, copies], axis=1), relevant @ truth.weights.T)
