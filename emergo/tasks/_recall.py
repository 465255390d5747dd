"""In-context associative recall (zucchet2025, Sections 3.1 and C.1): pairs of a key and its value, then a key to recall."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._errors import InputError, check_numbers, unknown
from .._random import raw, uniform

Placement = Literal["once", "chance", "chance or none"]


class RecallTruth(NamedTuple):
    """What one run has to learn beyond the task itself: nothing, every mapping is in its context."""


class RecallTraits(NamedTuple):
    """The numbers that may differ between runs of one program; they may be traced."""

    vocabulary: int | Int[Array, ""]
    burst: float | Float[Array, ""]
    repeat: float | Float[Array, ""]


class RecallBatch(NamedTuple):
    tokens: Int[Array, "n length"]
    """Key, value, key, value, ..., query."""
    target: Int[Array, " n"]
    """The value of the query."""
    relevant: Bool[Array, "n pairs"]
    """Which pairs have the query as their key, for measurement; the model does not see it."""


@dataclasses.dataclass(frozen=True)
class Recall:
    """Sequences of `pairs` pairs of tokens, a key and its value, followed by a key; its value is to be named.

    Every sequence has its own mapping of keys to values, which maps different keys to different values. Keys and values are of
    one vocabulary.

    **Arguments:**

    - `pairs`, `vocabulary`: N_pairs and N_tokens; a sequence has 2 pairs + 1 tokens.
    - `burst`: B, how often the query is a key of the context on average.
    - `repeat`: p, how often the query is one of two tokens that are the same in all samples (tokens 0 and 1: before training,
      no token differs from another).
    - `placement`: at how many places of the context the query stands.
      `"once"`: one, drawn uniformly; no repetition, and the law of the test sets.
      `"chance"`: each of the places with probability B/N_pairs, as in C.1; where chance places it nowhere, at one drawn
      uniformly. The paper does not say what it does then; at B = 1 that is a third of the sequences, and without the query
      they have no answer but a guess. This makes B = 1 a mean of 1.37 places, and B = 2 one of 2.13.
      `"chance or none"`: those sequences stay as they are.
    """

    metric: ClassVar[str] = "accuracy"
    """What tells that a run has learned; see [`emergo.engine.Config`][]."""
    rises: ClassVar[bool] = True
    cadence: ClassVar[int] = 25
    """Steps between evaluations at first; see [`emergo.engine.next_evaluation`][]."""

    pairs: int
    vocabulary: int
    burst: float = 1.0
    repeat: float = 0.0
    placement: Placement = "once"

    def __post_init__(self) -> None:
        for name, least in (("pairs", 1), ("vocabulary", 3)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        check_numbers(self)
        if self.vocabulary <= self.pairs:
            raise InputError(
                f"vocabulary must be larger than pairs, so that keys differ, got {self.vocabulary} with {self.pairs} pairs"
            )
        if self.placement not in get_args(Placement):
            raise unknown("placement", str(self.placement), get_args(Placement))
        if not (math.isfinite(self.burst) and 0 < self.burst <= self.pairs):
            raise InputError(f"burst must be above 0 and at most pairs, got {self.burst!r} with {self.pairs} pairs")
        if self.placement == "once" and self.burst != 1:
            raise InputError(f"placement 'once' has a burst of 1, got {self.burst!r}; choose placement 'chance'")
        if not (math.isfinite(self.repeat) and 0 <= self.repeat <= 1):
            raise InputError(f"repeat must be in [0, 1], got {self.repeat!r}")

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return 2 * self.pairs + 1

    @property
    def inputs(self) -> int:
        """Features that a model reads: tokens are one-hot."""
        return self.vocabulary

    @property
    def outputs(self) -> int:
        return self.vocabulary

    @property
    def draws(self) -> int:
        """Random numbers that a sequence takes."""
        return 3 * self.pairs + 4

    @property
    def marked(self) -> bool:
        return False

    @property
    def traits(self) -> RecallTraits:
        return RecallTraits(self.vocabulary, self.burst, self.repeat)

    @property
    def repeats(self) -> bool:
        """Whether training differs from the test set, where nothing is repeated."""
        return self.placement != "once" or self.repeat > 0

    def hull(self, others: Sequence["Recall"]) -> "Recall":
        """A task that can stand for these as well, given their traits: one program for all."""
        everyone = [self, *others]
        repeat = float(any(t.repeat for t in everyone))
        return dataclasses.replace(
            self, vocabulary=max(t.vocabulary for t in everyone), burst=max(t.burst for t in everyone), repeat=repeat
        )

    def family(self) -> "Recall":
        """The same for all tasks that can share a hull."""
        return dataclasses.replace(self, vocabulary=self.pairs + 2, burst=1.0, repeat=0.0)

    def without_repetition(self) -> "Recall":
        """The law of the test sets: the query once in the context, and any token."""
        return dataclasses.replace(self, burst=1.0, repeat=0.0, placement="once")

    def truth(self, key: Array, traits: RecallTraits | None = None) -> RecallTruth:
        """What is the same in all samples of a run."""
        return RecallTruth()

    def sample(self, key: Array, n: int, truth: RecallTruth | None = None, traits: RecallTraits | None = None) -> RecallBatch:
        """Draws `n` sequences and their targets.

        With `traits` the task is only a hull for several tasks, which draw exactly what they draw on their own.
        """
        traits, pairs = self.traits if traits is None else traits, self.pairs
        drawn = uniform(raw(key), n, self.draws)
        for_keys, for_values, for_places, rest = jnp.split(drawn, (pairs, 2 * pairs + 1, 3 * pairs + 1), axis=1)
        size = jnp.where(rest[:, 0] < traits.repeat, 2, traits.vocabulary)
        query = jnp.floor(rest[:, 1] * size).astype(jnp.int32)
        here = jnp.arange(pairs) == jnp.floor(rest[:, 2] * pairs).astype(jnp.int32)[:, None]
        if self.placement != "once":
            chosen = for_places < traits.burst / pairs
            lost = ~jnp.any(chosen, 1, keepdims=True)
            here = jnp.where(lost & (self.placement == "chance"), here, chosen)
        # Keys other than the query: the tokens without it, counted through.
        other = _different(for_keys, traits.vocabulary - 1)
        keys = jnp.where(here, query[:, None], other + (other >= query[:, None]))
        values = _different(for_values, traits.vocabulary)  # the first is that of the query
        shown = jnp.where(here, values[:, :1], values[:, 1:])
        context = jnp.stack([keys, shown], axis=-1).reshape(n, 2 * pairs)
        return RecallBatch(jnp.concatenate([context, query[:, None]], 1), values[:, 0], here)

    def encode(self, batch: RecallBatch) -> tuple[Float[Array, "n length vocabulary"], None]:
        """What a model reads: one-hot tokens, and no marks."""
        return jax.nn.one_hot(batch.tokens, self.vocabulary, dtype=jnp.float32), None

    def logits(self, output: Float[Array, "n vocabulary"], traits: RecallTraits) -> Float[Array, "n vocabulary"]:
        """Outputs in fp32, with those that are no token of this run out of the way."""
        return jnp.where(jnp.arange(self.vocabulary) < traits.vocabulary, output.astype(jnp.float32), -jnp.inf)

    def losses(self, output: Float[Array, "n vocabulary"], batch: RecallBatch, traits: RecallTraits) -> Float[Array, " n"]:
        """The cross-entropy of each answer."""
        logits = self.logits(output, traits)
        right = jnp.take_along_axis(logits, batch.target[:, None], 1)[:, 0]
        return jax.nn.logsumexp(logits, axis=-1) - right

    def correct(self, output: Float[Array, "n vocabulary"], batch: RecallBatch, traits: RecallTraits) -> Bool[Array, " n"]:
        """Whether the likeliest token is the right one."""
        return jnp.argmax(self.logits(output, traits), -1) == batch.target


def _different(chance: Float[Array, "n count"], size: int | Int[Array, ""]) -> Int[Array, "n count"]:
    """`count` different numbers below `size` a row, every sequence of them equally likely.

    The first steps of Fisher and Yates's shuffle: step i swaps places i and r_i ≥ i, and its number is what was at r_i.
    Instead of a table of all places, each number is traced back: what is at place x before step i came there at the last
    step j < i with r_j = x, from place j. One pass down through j does this for all i at once.
    """
    count = chance.shape[1]
    steps = jnp.arange(count)
    picks = steps + jnp.floor(chance * (size - steps)).astype(jnp.int32)
    at = picks
    for j in range(count - 2, -1, -1):
        at = jnp.where((steps > j) & (picks[:, j : j + 1] == at), j, at)
    return at
