"""Language modelling: the next token of real text, with controlled repetition."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..core.attention import attention_entropy
from ..core.contract import Above, Batch, Output, Spec, probe
from ..core.errors import InputError
from ..core.pytree import Schedule, option, per_run
from ..core.random import Key, fold_in, permuted, raw, uniform
from ._corpus import TEXT, corpus_name, find_corpora, is_loaded, save_corpus
from ._cross_entropy import answer_tokens, token_losses
from ._task import Task, Variant, head_probe, stacked_patterns
from ._tokenizer import (
    BYTES,
    decode,
    encode,
    find_tokenizers,
    save_tokenizer,
    streams,
    tokenizer_name,
)

Sequences = Int[Array, "n whole"]  # length + 1 tokens each: the inputs and one more target
# Numbers that are folded into the data key.
_EPOCH = 0
_REPEATS = 1
UNCOUNTED = -1  # the target of a position that is not predicted
_RARE = 10  # tokens this many times rarer than the average token are not copied


class Text(Task):
    """Real text, of which every next token has to be predicted.

    Sequences are windows of `length` tokens of a corpus, in a random order of the run's own. Within
    an epoch no window is read twice, except those of a subset that is repeated on purpose.
    Validation documents are never read in training, and nothing is repeated in them.

    **Arguments:**

    - `source`: a text file or a folder of text files, in UTF-8, or an array of tokens. None: the
      source code of Python's standard library. The task holds a hash of the content.
    - `length`: number of tokens of a sequence.
    - `vocabulary`: 256: tokens are bytes. Other numbers: byte-level BPE of so many tokens, trained
      on the training documents (needs the package `tokenizers`). For an array: a number above its
      largest token.
    - `copy`: the probability that a sequence repeats its beginning.
    - `copy_after`: `"half"`: the second half repeats the first half, so attention to a fixed
      distance copies it. `"random"`: tokens repeat after a random number of tokens, from a quarter
      to half of `length`, and only their content tells from where to copy.
    - `subset_share`: the share of sequences that come from a small fixed subset of the corpus:
      `subset_size` windows, the last ones in the order of the run.
    - `phrase_repeats`: the mean number of times that a phrase of a sequence is repeated at random
      places of the sequence, at most `(length + 1) // phrase_length - 2`.
    - `phrase_length`: number of tokens of a phrase.
    - `tokenizer`: the name of the tokenizer, with a hash; set by the task.

    The curves are `loss` and `accuracy` on validation text, `loss_by_position`, `in_context` (the
    mean loss of the second eighth of the positions minus that of the last eighth), the entropy and
    the head scores of attention, `loss_copied` and `accuracy_copied` on random tokens that repeat
    after a random number of tokens, and `new_share`, the share of training tokens that are new in
    the first epoch. A run has learned when it copies half of the random tokens.

    >>> import jax
    >>> task = em.Text(list(range(64)) * 8 + [5], length=16, vocabulary=64)
    >>> batch = task.from_corpus(task.data(), jax.random.key(0), 0, 3, ())
    >>> batch.inputs.shape, bool((batch.inputs[:, 1:] == batch.target[:, :-1]).all())
    ((3, 16), True)
    """

    learned = Above("accuracy_copied", 0.5)
    predicts_next = True

    source: Any = option(default=None, convert=corpus_name)
    length: int = option(default=128, low=8)
    vocabulary: int = option(default=BYTES, low=2)
    copy: float = per_run(default=0.0, low=0, high=1)
    subset_share: float = per_run(default=0.0, low=0, high=1)
    subset_size: int = per_run(default=64, low=1)
    phrase_repeats: float = per_run(default=0.0, low=0)
    phrase_length: int = option(default=8, low=2)
    copy_after: Literal["half", "random"] = "half"
    tokenizer: str = ""

    def __post_init__(self) -> None:
        name = tokenizer_name(self.source, self.vocabulary, self.tokenizer)
        object.__setattr__(self, "tokenizer", name)
        given = self.phrase_repeats
        repeats = max(given.extremes() if isinstance(given, Schedule) else (given,))
        if repeats > 0 and 4 * self.phrase_length > self.length:
            raise InputError(
                f"Text.phrase_length must be at most a quarter of length ({self.length}), got "
                f"{self.phrase_length}"
            )
        if repeats > max(self._slots - 1, 0):
            raise InputError(
                f"Text.phrase_repeats: {repeats:g} does not fit: at most {self._slots - 1} "
                f"repetitions of {self.phrase_length} tokens fit into {self.length}"
            )
        if is_loaded(self.source):
            self._check_size(*map(len, self._streams()))

    def _check_size(self, training: int, validation: int) -> None:
        """Raise an `InputError` if one of these numbers of tokens is too small."""
        for part, size in (("training", training), ("validation", validation)):
            if size <= self.length:
                raise InputError(
                    f"Text.source: the corpus is too small: its {part} documents have {size:,} "
                    f"tokens, and one sequence needs {self.length + 1}"
                )
        if validation > training:
            raise InputError(
                f"Text.source: one document is most of the corpus, and it is for validation "
                f"({validation:,} tokens; {training:,} are for training); divide it into files"
            )

    @property
    def spec(self) -> Spec:
        size = self.vocabulary
        return Spec(self.length, size, size, answers=self.length, deferred=True)

    def truth(self, key: Array) -> tuple[()]:
        """Return no truth, because all runs learn the same text."""
        return ()

    def _streams(self) -> tuple[np.ndarray, np.ndarray]:
        return streams(self.source, self.vocabulary, self.tokenizer)

    def data(self) -> dict[str, np.ndarray]:
        """Return the tokens for training and for validation, and those that are copied in tests."""
        training, validation = self._streams()
        counts = np.bincount(training, minlength=self.vocabulary)
        common = np.flatnonzero(counts * self.vocabulary * _RARE >= len(training))
        return {"training": training, "validation": validation, "common": common.astype(np.int32)}

    def epoch(self, batch: int) -> int:
        """Return the number of steps after which a run reads the text again."""
        return max((len(self._streams()[0]) - 1) // self.length // batch, 1)

    def save_data(self, folder: Path) -> None:
        save_corpus(self.source, folder)
        save_tokenizer(self.source, self.tokenizer, folder)

    def from_corpus(self, data: Any, key: Array, step: Any, n: int, truth: tuple[()] = ()) -> Batch:
        """Draw `n` windows: of training text with repetition, or of validation text without."""
        if step is None:
            windows = _Windows.of(data["validation"], self.length, n, "n_test")
            return _batch(windows.read(permuted(raw(key), windows.count, jnp.arange(n))))
        windows = _Windows.of(data["training"], self.length, n, "batch")
        steps = windows.count // n
        order = fold_in(fold_in(raw(key), _EPOCH), step // steps)
        fresh = permuted(order, windows.count, step % steps * n + jnp.arange(n))
        chance = uniform(fold_in(fold_in(raw(key), _REPEATS), step), n, 6 + self._slots)
        subset = self._subset(raw(key), windows, chance[:, 1])
        rows = jnp.where(chance[:, 0] < self.subset_share, subset, fresh)
        tokens = self._with_phrases(windows.read(rows), chance[:, 4:])
        period = jnp.full(n, self.length // 2)
        if self.copy_after == "random":
            period = _random_period(self.length, chance[:, 3])
        return _batch(_copied(tokens, period, chance[:, 2] < self.copy))

    def _subset(
        self, key: Key, windows: "_Windows", chance: Float[Array, " n"]
    ) -> Int[Array, " n"]:
        """Draw windows of the fixed subset, the last ones in the order of the first epoch."""
        size = jnp.minimum(self.subset_size, windows.count)
        place = windows.count - 1 - jnp.floor(chance * size).astype(jnp.int32)
        return permuted(fold_in(fold_in(key, _EPOCH), 0), windows.count, place)

    @property
    def _slots(self) -> int:
        """The number of places of a sequence that hold a whole phrase, whatever the offset."""
        return (self.length + 1) // self.phrase_length - 1

    def _with_phrases(self, tokens: Sequences, chance: Float[Array, "n columns"]) -> Sequences:
        """Repeat one phrase of each sequence at some of its places.

        The places lie on a grid of phrases with a random offset. Each one except the original
        becomes a copy with the same probability.
        """
        size = self.phrase_length
        slots = self._slots
        if slots < 2:
            return tokens
        offset = jnp.floor(chance[:, :1] * size).astype(jnp.int32)
        original = jnp.floor(chance[:, 1:2] * slots).astype(jnp.int32)
        position = jnp.arange(self.length + 1)
        slot = (position - offset) // size
        is_copy = chance[:, 2:] < self.phrase_repeats / (slots - 1)
        inside = (slot >= 0) & (slot < slots)
        chosen = jnp.take_along_axis(is_copy, jnp.clip(slot, 0, slots - 1), 1)
        source = offset + original * size + (position - offset) % size
        return jnp.where(inside & chosen, jnp.take_along_axis(tokens, source, 1), tokens)

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        """Return the cross-entropy of the next tokens in nats, mean over positions."""
        return _mean_counted(_token_losses(output, batch), batch.target)

    def metrics(
        self, output: Output, batch: Batch, truth: tuple[()] = ()
    ) -> Mapping[str, Float[Array, " n"]]:
        """Return `accuracy`, the share of tokens whose most likely prediction is correct."""
        right = answer_tokens(output) == batch.target
        return {"accuracy": _mean_counted(right.astype(jnp.float32), batch.target)}

    @property
    def new_share(self) -> Any:
        """Return the expected share of new tokens in training: read neither before nor repeated.

        The first time that the subset is read is left out. A run whose shares sum to S over the
        steps of its first epoch has read about S x batch x length different tokens of the corpus.
        """
        half = self.length // 2
        period = half if self.copy_after == "half" else (self.length // 4 + half) / 2
        share = (1 - self.subset_share) * (1 - self.copy * (1 - period / self.length))
        if self._slots < 2:
            return share
        return share * (1 - self.phrase_repeats * self.phrase_length / (self.length + 1))

    def _share_probe(
        self, params: Any, output: Output, batch: Batch, truth: Any, step: Any
    ) -> dict[str, Array]:
        return {"new_share": jnp.asarray(self.new_share, jnp.float32)}

    def probes(self) -> tuple[Any, ...]:
        return (position_probe, self._share_probe, entropy_probe, head_probe)

    def at_test(self) -> "Text":
        """Return the task without repetition."""
        return self.replace(copy=0.0, subset_share=0.0, subset_size=1, phrase_repeats=0.0)

    def variants(self) -> Mapping[str, Variant]:
        """Return `copied`: random tokens that repeat."""
        test = self.at_test()
        names = ("source", "length", "vocabulary", "phrase_length", "tokenizer")
        copied = _Copied(**{name: getattr(test, name) for name in names})
        return {"copied": Variant(copied, fold=1)}

    def check_threshold(self, number: float) -> None:
        if not 0 < number <= 1:
            raise InputError(
                f"the threshold of Text is the accuracy of copying; choose a number above 0 and at "
                f"most 1, got {number!r}"
            )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        self._need_text()
        return encode(text, self.source, self.tokenizer)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens; invalid UTF-8 becomes replacement characters."""
        self._need_text()
        return decode([int(token) for token in tokens], self.source, self.tokenizer)

    def _need_text(self) -> None:
        if not self.source.startswith(TEXT):
            raise InputError("the corpus was given as tokens, so emergo does not know their text")


class _Copied(Text):
    """Random tokens that repeat after a random number of tokens. The repeats are predicted.

    Rare tokens are left out, because a model that copies may not know them yet.
    """

    def from_corpus(self, data: Any, key: Array, step: Any, n: int, truth: tuple[()] = ()) -> Batch:
        common = jnp.asarray(data["common"])
        chance = uniform(raw(key), n, self.length + 2)
        drawn = common[jnp.floor(chance[:, 1:] * len(common)).astype(jnp.int32)]
        period = _random_period(self.length, chance[:, 0])
        batch = _batch(_copied(drawn, period, jnp.ones(n, bool)))
        # The first copied token cannot be foreseen, because it follows an end that is not marked.
        foreseen = jnp.arange(self.length) >= period[:, None]
        return batch._replace(target=jnp.where(foreseen, batch.target, UNCOUNTED))


@dataclasses.dataclass(frozen=True)
class _Windows:
    """The windows of a stream of tokens. The last target of one is the first input of the next."""

    tokens: Any  # one axis
    length: int
    count: int

    @classmethod
    def of(cls, tokens: Any, length: int, n: int, what: str) -> "_Windows":
        count = (len(tokens) - 1) // length
        if n > count:
            raise InputError(
                f"Text.source: the corpus is too small: {what} is {n}, and there are {count:,} "
                f"different sequences of {length} tokens"
            )
        return cls(tokens, length, count)

    def read(self, rows: Int[Array, " n"]) -> Sequences:
        place = rows[:, None] * self.length + jnp.arange(self.length + 1)
        return jnp.asarray(self.tokens)[place].astype(jnp.int32)


def _batch(tokens: Sequences) -> Batch:
    """Split sequences into inputs and the tokens that follow them."""
    return Batch(tokens[:, :-1], tokens[:, 1:])


def _random_period(length: int, chance: Float[Array, " n"]) -> Int[Array, " n"]:
    """Draw numbers from a quarter to half of a length."""
    least = length // 4
    return least + jnp.floor(chance * (length // 2 - least + 1)).astype(jnp.int32)


def _copied(tokens: Sequences, period: Int[Array, " n"], which: Bool[Array, " n"]) -> Sequences:
    """Repeat the first `period` tokens of some sequences until their end."""
    position = jnp.arange(tokens.shape[1]) % period[:, None]
    return jnp.where(which[:, None], jnp.take_along_axis(tokens, position, 1), tokens)


def _token_losses(output: Output, batch: Batch) -> Float[Array, "n length"]:
    return token_losses(output, jnp.maximum(batch.target, 0))


def _mean_counted(
    values: Float[Array, "n length"], target: Int[Array, "n length"]
) -> Float[Array, " n"]:
    """Average over the positions whose targets count."""
    counts = target != UNCOUNTED
    return jnp.sum(jnp.where(counts, values, 0), -1) / jnp.sum(counts, -1)


def position_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """Measure the loss by position.

    - `loss_by_position`: means over positions 0, 1, 2-3, 4-7, 8-15, and so on.
    - `in_context`: the mean over the second eighth of the positions minus that over the last one.
      It grows when the model learns to use distant tokens.
    """
    losses = _token_losses(output, batch).mean(0)
    length = len(losses)
    edges = [0, *(2**k for k in range((length - 1).bit_length())), length]
    eighth = length // 8
    return {
        "loss_by_position": jnp.stack([losses[a:b].mean() for a, b in itertools.pairwise(edges)]),
        "in_context": losses[eighth : 2 * eighth].mean() - losses[-eighth:].mean(),
    }


@probe(reads=["layers.*.pattern"])
def entropy_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """Measure the entropy of attention by layer and head, mean over sequences and positions."""
    patterns = stacked_patterns(output)
    return {} if patterns is None else {"entropy": attention_entropy(patterns).mean((0, -1))}


def find_data(folder: Path) -> None:
    """Make the corpora and tokenizers in a folder known to this process; see `Task.save_data`."""
    find_corpora(folder)
    find_tokenizers(folder)
