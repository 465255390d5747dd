"""The base class of tasks, losses and probes that tasks share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.attention import attention_entropy, attention_mass
from ..core.contract import Batch, Below, Output, Spec, Threshold, probe
from ..core.errors import InputError
from ..core.heads import head_scores
from ..core.pytree import Pytree
from ..core.random import fold_in
from ._cross_entropy import widened


class Variant(NamedTuple):
    """A further test distribution; see [`emergo.tasks.Task.variants`][].

    **Arguments:**

    - `task`: the task whose distribution it is, e.g. `self.replace(noise=0.0)`. Its `spec` must be
      that of the task itself.
    - `fold`: folded into the key of the test set. With 0 the variant has the same draws as the
      test set, so that differences between the two have little noise.

    >>> class Cued(em.SingleLocation):
    ...     def variants(self):
    ...         return {"plain": em.Variant(self.replace(burst=1))}
    >>> sorted(Cued(length=8, dim=2, burst=2).variants())
    ['plain']
    """

    task: "Task"
    fold: int = 0


class Task(Pytree):
    """The base class of tasks. A subclass is a frozen dataclass and a pytree.

    A subclass must define `spec`, `truth`, `batch` and `loss`. The other methods have defaults.

    >>> import jax, jax.numpy as jnp
    >>> class Mean(em.Task):
    ...     length: int
    ...     noise: float = em.per_run(0.0, low=0.0)
    ...     @property
    ...     def spec(self): return em.Spec(length=self.length, inputs=1, outputs=1)
    ...     def truth(self, key): return ()
    ...     def batch(self, key, n, truth):
    ...         x = jax.random.normal(key, (n, self.length, 1))
    ...         return em.Batch(x + self.noise, x.mean(1))
    ...     def loss(self, output, batch): return jnp.sum((output.value - batch.target) ** 2, -1)
    >>> Mean(8).batch(jax.random.key(0), 2, ()).target.shape
    (2, 1)
    """

    # The metric and threshold at which a run has learned. A study may override the number.
    learned: ClassVar[Threshold] = Below("loss", 0.1)
    # Steps between evaluations at the start. Later the interval is at least 2% of the step.
    eval_every: ClassVar[int] = 25
    # True if the targets are the next tokens, so that models must not look ahead.
    predicts_next: ClassVar[bool] = False

    @property
    def spec(self) -> Spec:
        """Return the sizes that a model has to fit."""
        raise NotImplementedError

    def truth(self, key: Array) -> Any:
        """Draw the target of a run, once for all of its sequences. Any pytree."""
        raise NotImplementedError

    def batch(self, key: Array, n: int, truth: Any) -> Batch:
        """Draw `n` sequences."""
        raise NotImplementedError

    def data(self) -> Any:
        """Return arrays that hold all sequences of a finite task; None if sequences are drawn.

        All runs of a program share one copy, so only static fields may be read. Each run trains on
        `n_train` randomly chosen sequences and is tested on others; `batch` is not called. If the
        task defines `from_corpus`, the arrays are a corpus.
        """
        return None

    def rows(self, data: Any) -> int:
        """Return the number of sequences in `data`; by default the first axis of its arrays."""
        return len(jax.tree.leaves(data)[0])

    def pick(self, data: Any, rows: Int[Array, " n"]) -> Batch:
        """Return some sequences of `data`, by default a `Batch` of all sequences."""
        return jax.tree.map(lambda array: jnp.asarray(array)[rows], data)

    def from_corpus(self, data: Any, key: Array, step: Any, n: int, truth: Any) -> Batch:
        """Draw `n` sequences from a corpus, which `data` returns.

        A task that defines this method decides itself which parts of the corpus are for training
        and for testing. `batch`, `rows` and `pick` are not called, and runs take no `n_train`.

        **Arguments:**

        - `key`: the run's data key, the same in every step; the run's test key for test sets.
        - `step`: the training step; None for test sets.
        """
        raise NotImplementedError

    def epoch(self, batch: int) -> int | None:
        """Return after how many steps a run reads its corpus again; None if it is not known.

        A study says so if its runs are longer.
        """
        return None

    @property
    def has_corpus(self) -> bool:
        """Return True if the task draws sequences from a corpus."""
        return type(self).from_corpus is not Task.from_corpus

    @property
    def finite(self) -> bool:
        """Return True if `data` holds all sequences of the task."""
        return type(self).data is not Task.data and not self.has_corpus

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        raise InputError(f"{type(self).__name__} has no text; em.Text has")

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        raise InputError(f"{type(self).__name__} has no text; em.Text has")

    def save_data(self, folder: Path) -> None:
        """Write what `data` needs into a folder, so that other processes can train the task.

        `emergo.tasks.find_data` makes it known there.
        """

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        """Return the loss of each sequence. `output.value` has at least fp32.

        With `Spec(…, deferred=True)` the output may have `features` and `readout` instead of a
        value; `emergo.tasks.token_losses` and `answer_tokens` accept both.
        """
        raise NotImplementedError

    def metrics(self, output: Output, batch: Batch, truth: Any) -> Mapping[str, Float[Array, " n"]]:
        """Return further numbers of each test sequence. Their means are recorded as curves."""
        return {}

    def probes(self) -> tuple[Any, ...]:
        """Return functions of (params, output, batch, truth, step) to call in every evaluation."""
        return (attention_probe,)

    def at_test(self) -> "Task":
        """Return the task with the distribution of the test set.

        Fields that a study may schedule must be set, so that the test set never changes.
        """
        return self

    def variants(self) -> Mapping[str, Variant]:
        """Return further test distributions by name.

        The loss and every metric are measured there too, as `loss_NAME`. The names may depend on
        per-run fields only if these are not traced.
        """
        return {}

    def check_threshold(self, number: float) -> None:
        """Raise an `InputError` for an invalid threshold."""

    def hardness(self) -> tuple[float, ...]:
        """Return a sort key that is larger for longer plateaus. The hardest runs start first.

        Repetition, in the fields `burst` and `repeat` if the task has them, shortens plateaus.
        Schedules count as no repetition.
        """
        burst = getattr(self, "burst", 1)
        repeat = getattr(self, "repeat", 0)
        burst = max(burst, 1) if isinstance(burst, int | float) else 1
        repeat = repeat if isinstance(repeat, int | float) else 0
        return (self.spec.inputs, self.spec.length / burst, -repeat)

    def data_key(self, key: Array, step: Any) -> Array:
        """Return the key of a step's batch, from the run's data key."""
        return fold_in(key, step)


def attention_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """Measure the attention of the last position, by layer and head.

    The curves are its entropy, and its total on relevant tokens.
    """
    if output.attention is None:
        return {}
    attention = widened(output.attention)
    curves = {"entropy": attention_entropy(attention).mean(0)}
    if batch.relevant is not None:
        curves["attention"] = attention_mass(attention, batch.relevant)
    return curves


@probe(reads=["layers.*.pattern"])
def head_probe(
    params: Any, output: Output, batch: Batch, truth: Any, step: Any
) -> dict[str, Array]:
    """Score every head as a previous-token, duplicate-token, induction and first-token head.

    The curves have the names and definitions of [`emergo.measure.head_scores`][], with layers and
    heads as axes. For tasks of features only the scores that need no tokens are measured.

    >>> task, model = em.Recall(pairs=2, vocabulary=8), em.Transformer(layers=1, heads=2, width=4)
    >>> config = em.Config(task, model, steps=25, threshold=None, probes=(em.head_probe,))
    >>> (result,) = em.train([em.Run(config, seed=0)])
    >>> result.curves["induction_head"].shape  # evaluations, layers, heads
    (2, 1, 2)
    """
    patterns = stacked_patterns(output)
    if patterns is None:
        return {}
    tokens = batch.inputs if jnp.issubdtype(batch.inputs.dtype, jnp.integer) else None
    return head_scores(patterns, tokens)


def half_squared_error(output: Output, batch: Batch) -> Float[Array, " n"]:
    """Return half the squared distance of each answer from its target."""
    return 0.5 * jnp.sum((widened(output.value) - batch.target) ** 2, -1)


def stacked_patterns(output: Output) -> Float[Array, "n layers heads length length"] | None:
    """Return the attention between all positions, from the taps `layers.*.pattern`.

    None if the output lacks these taps.
    """
    taps = output.taps or {}
    patterns = []
    while (name := f"layers.{len(patterns)}.pattern") in taps:
        patterns.append(widened(taps[name]))
    return jnp.stack(patterns, 1) if patterns else None
