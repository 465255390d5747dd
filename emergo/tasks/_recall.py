"""In-context associative recall (zucchet2025, Sections 3.1 and C.1)."""

from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.contract import Above, Batch, Output, Spec, probe
from ..core.errors import InputError
from ..core.heads import head_scores
from ..core.pytree import Schedule, option, per_run
from ..core.random import raw, uniform
from ._cross_entropy import cross_entropy, widened
from ._task import Task, Variant, attention_probe, stacked_patterns


class Recall(Task):
    """Sequences of key-value pairs, followed by a query: one of the keys.

    The model must answer with the value of the query. Every sequence has its own mapping from keys
    to values; different keys have different values. Keys and values share one vocabulary. In the
    test set the query is in the context once, and nothing is repeated. If training differs from
    that, the loss and the accuracy on the training distribution are measured as well.

    **Arguments:**

    - `pairs`: N_pairs, the number of pairs; a sequence has 2 pairs + 1 tokens.
    - `vocabulary`: N_tokens, the number of different tokens; larger than `pairs`. Tasks of several
      vocabularies can share a program.
    - `burst`: B, the mean number of pairs of the context whose key is the query; above 0 and at
      most `pairs`.
    - `repeat`: p, the probability that the query is one of two tokens that are the same in all
      sequences. These are tokens 0 and 1, since all tokens are equivalent before training.
    - `placement`: the rule for the pairs whose key is the query. `"once"`: one pair, drawn
      uniformly, as in the test set. `"chance"`: each pair with probability B/N_pairs, as in C.1; if
      chance selects no pair, one pair drawn uniformly. `"chance or none"`: the same, but sequences
      without the query stay as they are.

    The paper does not specify what happens if chance selects no pair. At B = 1 this affects a third
    of the sequences, which without the query could only be guessed. With `"chance"` the mean number
    of pairs is 1.37 for B = 1 and 2.13 for B = 2.

    >>> import jax
    >>> task = em.Recall(pairs=2, vocabulary=8)
    >>> batch = task.batch(jax.random.key(0), 3, ())
    >>> batch.inputs.shape, batch.target.shape
    ((3, 5), (3,))
    """

    learned = Above("accuracy", 0.9)

    pairs: int = option(low=1)
    vocabulary: int = option(low=3, padded=True)
    burst: float = per_run(default=1.0)
    repeat: float = per_run(default=0.0, low=0, high=1)
    placement: Literal["once", "chance", "chance or none"] = "once"

    def __post_init__(self) -> None:
        if self.vocabulary <= self.pairs:
            raise InputError(
                f"Recall.vocabulary must be larger than pairs, so that keys differ, got "
                f"{self.vocabulary} with {self.pairs} pairs"
            )
        bursts = self.burst.extremes() if isinstance(self.burst, Schedule) else (self.burst,)
        once = self.placement == "once"
        if not all(burst == 1 if once else 0 < burst <= self.pairs for burst in bursts):
            raise InputError(
                f"Recall.burst must be above 0 and at most pairs ({self.pairs}), and 1 with "
                f"placement 'once', got {self.burst!r}; choose placement 'chance'"
            )

    @property
    def length(self) -> int:
        """Return the number of tokens of a sequence."""
        return 2 * self.pairs + 1

    @property
    def spec(self) -> Spec:
        size = self.real("vocabulary")
        used = None if size is self.vocabulary else (size, size)
        return Spec(self.length, self.vocabulary, self.vocabulary, used=used)

    def truth(self, key: Array) -> tuple[()]:
        """Return no truth, because every mapping is in its context."""
        return ()

    def batch(self, key: Array, n: int, truth: tuple[()] = ()) -> Batch:
        """Draw `n` sequences: key, value, key, value, ..., query.

        The relevant tokens are the values of the query in the context.
        """
        pairs = self.pairs
        vocabulary = self.real("vocabulary")
        drawn = uniform(raw(key), n, 3 * pairs + 4)
        for_keys, for_values, for_pairs, rest = jnp.split(
            drawn, (pairs, 2 * pairs + 1, 3 * pairs + 1), axis=1
        )
        size = jnp.where(rest[:, 0] < self.repeat, self.repeated_tokens(), vocabulary)
        query = jnp.floor(rest[:, 1] * size).astype(jnp.int32)
        asked = jnp.arange(pairs) == jnp.floor(rest[:, 2] * pairs).astype(jnp.int32)[:, None]
        if self.placement != "once":
            chosen = for_pairs < self.burst / pairs
            lost = ~jnp.any(chosen, 1, keepdims=True)
            asked = jnp.where(lost & (self.placement == "chance"), asked, chosen)
        # The other keys are drawn from the vocabulary without the query.
        other = _different(for_keys, vocabulary - 1)
        keys = jnp.where(asked, query[:, None], other + (other >= query[:, None]))
        values = _different(for_values, vocabulary)  # the first one belongs to the query
        shown = jnp.where(asked, values[:, :1], values[:, 1:])
        context = jnp.stack([keys, shown], axis=-1).reshape(n, 2 * pairs)
        relevant = jnp.stack([jnp.zeros_like(asked), asked], axis=-1).reshape(n, 2 * pairs)
        tokens = jnp.concatenate([context, query[:, None]], 1)
        return Batch(tokens, values[:, 0], jnp.pad(relevant, ((0, 0), (0, 1))))

    def repeated_tokens(self) -> int:
        """Return how many tokens, from token 0 on, are repeated across sequences."""
        return 2

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        """Return the cross-entropy of each answer, in nats."""
        return cross_entropy(self._logits(output), batch.target)

    def metrics(
        self, output: Output, batch: Batch, truth: tuple[()] = ()
    ) -> Mapping[str, Float[Array, " n"]]:
        """Return `accuracy`: 1 if the most likely token is correct, else 0."""
        right = jnp.argmax(self._logits(output), -1) == batch.target
        return {"accuracy": right.astype(jnp.float32)}

    def _logits(self, output: Output) -> Float[Array, "n vocabulary"]:
        """Return the output, with -inf for tokens beyond the run's own vocabulary."""
        real = jnp.arange(self.vocabulary) < self.real("vocabulary")
        return jnp.where(real, widened(output.value), -jnp.inf)

    def at_test(self) -> "Recall":
        """Return the task with the query once in the context, drawn from all tokens."""
        return self.replace(burst=1.0, repeat=0.0, placement="once")

    def variants(self) -> Mapping[str, Variant]:
        """Return `repeated`, the training distribution, if it differs from the test set."""
        if self.placement == "once" and isinstance(self.repeat, int | float) and self.repeat == 0:
            return {}
        return {"repeated": Variant(self, fold=1)}

    def probes(self) -> tuple[Any, ...]:
        return (attention_probe, circuits_probe)

    def check_threshold(self, number: float) -> None:
        if self.pairs > 1 and not 1 / self.pairs < number <= 1:
            raise InputError(
                f"the threshold of Recall is an accuracy, and guessing one of the context's values "
                f"is right with probability 1/{self.pairs}; choose a threshold above that and at "
                f"most 1, got {number!r}"
            )


@probe(reads=["layers.*.pattern"])
def circuits_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """Measure the parts of an induction head, by layer and head (Fig. 17).

    Defined for sequences with the query once in the context.

    - `copying`: attention from the relevant value to its key.
    - `selecting`: attention from the query to the relevant value.
    - `previous`: attention to the previous token, mean over positions.
    - `induction`: attention to the successors of earlier occurrences of a token, mean over the
      tokens that have occurred before.
    """
    patterns = stacked_patterns(output)
    if patterns is None or batch.relevant is None:
        return {}
    value = jnp.argmax(batch.relevant, 1)
    rows = jnp.arange(len(value))
    scores = head_scores(patterns, batch.inputs)
    return {
        "copying": patterns[rows, :, :, value, value - 1].mean(0),
        "selecting": patterns[rows, :, :, -1, value].mean(0),
        "previous": scores["previous_token_head"],
        "induction": scores["induction_head"],
    }


def _different(
    chance: Float[Array, "n count"], size: int | Int[Array, ""]
) -> Int[Array, "n count"]:
    """Draw `count` different numbers below `size` in each row, uniformly over all sequences.

    These are the first steps of the Fisher-Yates shuffle: step i swaps slots i and r_i ≥ i, and the
    drawn number is the content of slot r_i before the swap. A table of all slots would be large.
    Instead we trace every number back: the content of slot x before step i was moved there from
    slot j in the last step j < i with r_j = x, or else is x itself. One loop over j, from the last
    step to the first, traces the numbers of all steps i at once.
    """
    count = chance.shape[1]
    steps = jnp.arange(count, dtype=jnp.int32)
    picks = steps + jnp.floor(chance * (size - steps)).astype(jnp.int32)
    at = picks
    for j in range(count - 2, -1, -1):
        at = jnp.where((steps > j) & (picks[:, j : j + 1] == at), j, at)
    return at
