"""Single-location linear regression (zucchet2025, Sections 2.1 and B.1)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._errors import InputError, check_numbers, unknown
from .._random import fold_in, normals, raw, uniform

Position = Literal["last", "fixed", "random"]
Special = Literal["basis", "draw"]

# Where the draws that are not tokens live: columns that no feature reaches.
_PLACES, _CHANCE = 1 << 30, (1 << 30) + (1 << 20)


class Truth(NamedTuple):
    """What one run has to learn: drawn once, the same for all its samples."""

    weights: Float[Array, "dim dim"]
    """W*, the target map."""
    special: Float[Array, " dim"]
    r"""$\\tilde x$, the token that is repeated across samples."""
    relevant: Bool[Array, " length"]
    """Which positions hold the relevant token; none where they are drawn for each sequence."""


class Batch(NamedTuple):
    tokens: Float[Array, "n length dim"]
    marks: Float[Array, "n length"] | None
    """The indicator feature: 1 at relevant tokens, else 0; None when the task does not show it."""
    target: Float[Array, "n dim"]
    relevant: Bool[Array, "n length"]
    """Which tokens are relevant, for measurement; the model does not see it."""


class Traits(NamedTuple):
    """The numbers that may differ between runs of one program; they may be traced."""

    dim: int | Int[Array, ""]
    burst: int | Int[Array, ""]
    repeat: float | Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class SingleLocation:
    """Sequences of normal tokens of variance 1/dim; the target is a linear map of the relevant one.

    With probability `repeat` the relevant token is the special token of the run, the same in all samples.

    **Arguments:**

    - `length`, `dim`: T tokens of dimension d.
    - `burst`: B, at how many positions the relevant token stands.
    - `repeat`: p, how often it is the special one.
    - `position`: the relevant token stands at the last `burst` positions (Section 2.1), at positions drawn once for a run
      (`"fixed"`), or drawn for each sequence (`"random"`, B.1).
    - `indicator`: whether tokens carry a feature that is 1 at all relevant ones (B.1).
    - `special`: the first basis vector, as in the theory (A.2), or one draw of the law of the tokens.
    """

    metric: ClassVar[str] = "loss"
    """What tells that a run has learned; see [`emergo.engine.Config`][]."""
    rises: ClassVar[bool] = False
    cadence: ClassVar[int] = 25
    """Steps between evaluations at first; see [`emergo.engine.next_evaluation`][]."""

    length: int
    dim: int
    burst: int = 1
    repeat: float = 0.0
    position: Position = "last"
    indicator: bool = False
    special: Special = "basis"

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("dim", 1), ("burst", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.length > _CHANCE - _PLACES or self.dim >= _PLACES:
            raise InputError(f"length must be at most {_CHANCE - _PLACES} and dim below {_PLACES}")
        if self.burst >= self.length:
            raise InputError(f"burst must be smaller than length, got burst {self.burst} with length {self.length}")
        check_numbers(self)
        if not (math.isfinite(self.repeat) and 0 <= self.repeat <= 1):
            raise InputError(f"repeat must be in [0, 1], got {self.repeat!r}")
        for name, known in (("position", get_args(Position)), ("special", get_args(Special))):
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)

    @property
    def inputs(self) -> int:
        """Features that a model reads, marks aside."""
        return self.dim

    @property
    def outputs(self) -> int:
        return self.dim

    @property
    def draws(self) -> int:
        """Random numbers that a sequence takes, about."""
        return (self.length + 1) * self.dim

    @property
    def marked(self) -> bool:
        return self.indicator

    @property
    def traits(self) -> Traits:
        return Traits(self.dim, self.burst, float(self.repeat))

    def hull(self, others: Sequence["SingleLocation"]) -> "SingleLocation":
        """A task that can stand for these as well, given their traits: one program for all."""
        everyone = [self, *others]
        repeat = float(any(t.repeat for t in everyone))
        return dataclasses.replace(self, dim=max(t.dim for t in everyone), burst=max(t.burst for t in everyone), repeat=repeat)

    def family(self) -> "SingleLocation":
        """The same for all tasks that can share a hull."""
        return dataclasses.replace(self, dim=1, burst=1, repeat=0.0)

    def without_repetition(self, burst: int | None = None) -> "SingleLocation":
        """The test distribution: the same task at repeat 0, and at another burst if one is given."""
        return dataclasses.replace(self, repeat=0.0, burst=self.burst if burst is None else burst)

    def truth(self, key: Array, traits: Traits | None = None) -> Truth:
        """Draws W* with entries of variance 1/dim (A.3.4), the special token and, where they are fixed, the positions.

        `traits` as in `sample`.
        """
        key, traits = raw(key), self.traits if traits is None else traits
        used = jnp.arange(self.dim) < traits.dim
        scale = jax.lax.rsqrt(jnp.float32(traits.dim))
        weights = jnp.where(used & used[:, None], scale * normals(key, 1, self.dim, self.dim)[0], 0)
        special = jnp.zeros(self.dim, jnp.float32).at[0].set(1.0)
        if self.special == "draw":
            special = jnp.where(used, scale * normals(fold_in(key, _PLACES), 1, 1, self.dim)[0, 0], 0)
        relevant = jnp.arange(self.length) >= self.length - traits.burst
        if self.position == "fixed":
            relevant = self._places(key, 1, traits.burst)[0]
        elif self.position == "random":
            relevant = jnp.zeros(self.length, bool)
        return Truth(weights, special, relevant)

    def _places(self, key: Array, n: int, burst: int | Int[Array, ""]) -> Bool[Array, "n length"]:
        """`burst` different positions a row, every set equally likely (Floyd's algorithm), for a `burst` up to the
        task's own."""
        chance = uniform(key, n, self.burst, first_column=_PLACES)
        chosen = jnp.full((n, self.burst), -1)
        for i in range(self.burst):
            top = self.length - burst + i
            pick = jnp.floor(chance[:, i] * (top + 1)).astype(jnp.int32)
            pick = jnp.where(jnp.any(chosen == pick[:, None], axis=1), top, pick)
            chosen = chosen.at[:, i].set(jnp.where(i < burst, pick, -1))
        return jnp.any(chosen[:, :, None] == jnp.arange(self.length), axis=1)

    def repeated(self, key: Array, tokens: Float[Array, "n dim"], truth: Truth, repeat: float | Float[Array, ""]) -> Array:
        """Puts the special token in the place of each with probability `repeat`."""
        if not self.repeat:
            return tokens
        return jnp.where(uniform(raw(key), len(tokens), 1, first_column=_CHANCE) < repeat, truth.special, tokens)

    def sample(self, key: Array, n: int, truth: Truth, traits: Traits | None = None) -> Batch:
        """Draws `n` sequences and their targets.

        With `traits` the task is only a hull for several tasks: they may have a smaller dim and burst and another repeat
        (unless the hull's is 0), and draw exactly what they draw on their own, padded with zero features.
        """
        key, traits = raw(key), self.traits if traits is None else traits
        columns = jnp.arange(self.dim)
        # Row `length` of a sequence is its relevant token.
        drawn = normals(key, n, self.length + 1, self.dim)
        if traits.dim is not self.dim:
            drawn = jnp.where(columns < traits.dim, drawn, 0)
        drawn = drawn * jax.lax.rsqrt(jnp.float32(traits.dim))
        token = self.repeated(key, drawn[:, -1], truth, traits.repeat)
        if self.position == "random":
            relevant = self._places(key, n, traits.burst)
        else:
            relevant = jnp.broadcast_to(truth.relevant, (n, self.length))
        tokens = jnp.where(relevant[:, :, None], token[:, None], drawn[:, :-1])
        marks = relevant.astype(jnp.float32) if self.indicator else None
        return Batch(tokens, marks, token @ truth.weights.T, relevant)

    def encode(self, batch: Batch) -> tuple[Float[Array, "n length dim"], Float[Array, "n length"] | None]:
        """What a model reads: tokens and marks."""
        return batch.tokens, batch.marks

    def losses(self, output: Float[Array, "n dim"], batch: Batch, traits: Traits) -> Float[Array, " n"]:
        """Half the squared error of each answer."""
        return 0.5 * jnp.sum((output.astype(jnp.float32) - batch.target) ** 2, -1)
