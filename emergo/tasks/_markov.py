r"""A high-order Markov chain with groups of graded importance, and its regression variant (yuksel2026).

The next token is drawn from
$\mathrm{softmax}\big(\beta \sum_k A_k^* \sum_{i\in I(k)} \alpha_i\, \mathrm{onehot}(x_{t-i})\big)$.
Tokens are one-hot, so that products with them are look-ups: the teacher is one table a lag.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._errors import InputError, check_numbers
from .._random import Key, normals, raw, uniform
from ._groups import Groups

MINIMAL = Groups()  # [2, 2, 2], the setting of the paper's minimal model
LogProbs = Float[Array, "n generated vocabulary"]


class ChainTruth(NamedTuple):
    """What one run has to learn: drawn once, the same for all its sequences."""

    maps: Float[Array, "groups size size"]
    """A_k*, the nearest group first, strengths included."""


class ChainTraits(NamedTuple):
    """The numbers that may differ between runs of one program: none, strengths are in the truth."""


class RegressionBatch(NamedTuple):
    tokens: Float[Array, "n length dim"]
    """The newest token last."""
    target: Float[Array, "n dim"]


def _whole(task: object, **least: int) -> None:
    for name, smallest in least.items():
        value = getattr(task, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise InputError(f"{name} must be a whole number of at least {smallest}, got {value!r}")


def entropy(log_probs: Float[Array, "*rows vocabulary"]) -> Float[Array, "*rows"]:
    """The entropy of each row's distribution, in nats."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def divergence(reference: Float[Array, "*rows vocabulary"], student: Float[Array, "*rows vocabulary"]) -> Float[Array, "*rows"]:
    """KL(reference ‖ student) of each row, exact over the vocabulary, from log-probabilities."""
    return jnp.sum(jnp.exp(reference) * (reference - student), -1)


@dataclasses.dataclass(frozen=True)
class MarkovChain:
    r"""Sequences of `prefix` uniform tokens, then `generated` tokens of the chain.

    $A_k^*$ is the strength of the group times a random orthogonal matrix, uniform among all of them.

    **Arguments:**

    - `groups`: which past positions matter and how much.
    - `vocabulary`: how many tokens there are.
    - `temperature`: $1/\beta$.
    - `generated`: how many tokens of a sequence follow the chain; these are to be predicted.
    - `prefix`: how many uniform tokens come before them; None: as many as the chain looks back on. Older ones only make what
      matters harder to find.
    """

    metric: ClassVar[str] = "excess"
    """What tells that a run has learned: the KL from the teacher. It is never 0, so that a threshold of 0 ends no run."""
    rises: ClassVar[bool] = False
    cadence: ClassVar[int] = 5
    """Steps between evaluations at first; see [`emergo.engine.next_evaluation`][]."""

    groups: Groups = MINIMAL
    vocabulary: int = 50
    temperature: float = 0.1
    generated: int = 20
    prefix: int | None = None

    def __post_init__(self) -> None:
        _whole(self, vocabulary=2, generated=1, **({} if self.prefix is None else {"prefix": self.groups.window}))
        check_numbers(self)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"temperature must be finite and positive, got {self.temperature!r}")

    @property
    def given(self) -> int:
        """The length of the prefix in force: tokens of a sequence that are not predicted."""
        return self.groups.window if self.prefix is None else self.prefix

    @property
    def length(self) -> int:
        """Tokens of a sequence. A model reads all but the last; its last `generated` outputs are compared."""
        return self.given + self.generated

    @property
    def inputs(self) -> int:
        return self.vocabulary

    @property
    def draws(self) -> int:
        """Random numbers that a sequence takes."""
        return self.length

    @property
    def traits(self) -> ChainTraits:
        return ChainTraits()

    def hull(self, others: Sequence["MarkovChain"]) -> "MarkovChain":
        """A task that can stand for these as well, given the truths of their runs: one program for all importances."""
        return self.family()

    def family(self) -> "MarkovChain":
        """The same for all tasks that can share a hull: with groups of strength 1."""
        return dataclasses.replace(self, groups=dataclasses.replace(self.groups, importance=1.0))

    def truth(self, key: Array) -> ChainTruth:
        """Draws the maps of a run."""
        size = self.vocabulary
        q, r = jnp.linalg.qr(normals(raw(key), self.groups.count, size, size))
        # The sign of R's diagonal is a convention; with it taken out, Q is uniform (Mezzadri 2007).
        signs = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
        return ChainTruth(jnp.asarray(self.groups.strengths, jnp.float32)[:, None, None] * q * signs[:, None, :])

    def table(self, truth: ChainTruth, keep: int | None = None) -> Float[Array, "window vocabulary vocabulary"]:
        """What a token at a lag adds to the logits of the next one: (lag, token, next). `keep` as in `teacher`."""
        mixing = self.groups.mixing * self.groups.strongest_of(keep)[:, None] / self.temperature
        # Spelled out: a product of a GPU might round the table, and with it the teacher, to fewer digits.
        return sum(
            jnp.asarray(row, jnp.float32)[:, None, None] * jnp.swapaxes(one, 0, 1)
            for row, one in zip(mixing, truth.maps, strict=True)
        )  # pyright: ignore[reportReturnType]

    @functools.partial(jax.jit, static_argnames=("self", "n"))
    def sample(self, key: Array, n: int, truth: ChainTruth) -> Int[Array, "n length"]:
        """Draws `n` sequences. A sequence depends on the key and its row alone: fewer rows are the first of more."""
        given, size = self.given, self.vocabulary
        chance = _chances(raw(key), n, self.length)
        first = jnp.minimum(jnp.floor(chance[:, :given] * size).astype(jnp.int32), size - 1)
        table = self.table(truth)

        def step(recent: Array, u: Array) -> tuple[Array, Array]:
            mass = jnp.cumsum(jax.nn.softmax(_look_up(table, recent), -1), -1)
            # The sum of rounded probabilities is not quite 1; it is the end of the scale.
            token = jnp.sum(mass <= (u[:, None] * mass[:, -1:]), -1, dtype=jnp.int32)
            token = jnp.minimum(token, size - 1)
            return jnp.concatenate([token[:, None], recent[:, :-1]], 1), token

        recent = first[:, given - self.groups.window :][:, ::-1]
        _, drawn = jax.lax.scan(step, recent, chance[:, given:].T)
        return jnp.concatenate([first, drawn.T], 1)

    @functools.partial(jax.jit, static_argnames=("self", "keep"))
    def teacher(self, truth: ChainTruth, tokens: Int[Array, "n length"], keep: int | None = None) -> LogProbs:
        r"""Log-probabilities of each generated token given those before it.

        `keep` makes it the reference $A^*_{1:k}$, which knows the `keep` strongest groups only; 0 is the uniform distribution.
        """
        count = tokens.shape[1] - self.given
        places = jnp.arange(count)[:, None] + self.given - 1 - jnp.arange(self.groups.window)
        return jax.nn.log_softmax(_look_up(self.table(truth, keep), tokens[:, places]), -1)

    def references(self, truth: ChainTruth, tokens: Int[Array, "n length"]) -> list[LogProbs]:
        r"""$A^*_{1:1}, \dots, A^*_{1:h}$; the last is the teacher itself."""
        return [self.teacher(truth, tokens, keep) for keep in range(1, self.groups.count + 1)]

    def divergences(self, truth: ChainTruth, tokens: Int[Array, "n length"], student: LogProbs) -> Float[Array, " groups"]:
        r"""KL($A^*_{1:k}$ ‖ student) for k = 1 to h, mean over sequences and positions. The target has no sampling noise."""
        return jnp.stack([divergence(r, student).mean() for r in self.references(truth, tokens)])

    def signals(self, truth: ChainTruth, tokens: Int[Array, "n length"]) -> Float[Array, " window"]:
        r"""How strongly the next token depends on that at each lag: $\lVert E[(y - \bar y)\,x_i^\top]\rVert_F$, one-hot.

        Of the teacher's probabilities, so that the target has no noise. The square is the product of two independent estimates,
        one from each half of the sequences; where chance makes it negative, the signal is 0.
        """
        size, half = self.vocabulary, len(tokens) // 2
        hot = jax.nn.one_hot(tokens, size)
        expected = jnp.exp(self.teacher(truth, tokens))

        def square(lag: int) -> Array:
            before = hot[:, self.given - 1 - lag : self.length - 1 - lag]
            halves = []
            for part in (slice(None, half), slice(half, 2 * half)):
                met = jnp.einsum("ntp,ntc->pc", expected[part], before[part], precision="highest") / (half * self.generated)
                halves.append(met - met.mean(1, keepdims=True))
            return jnp.sum(halves[0] * halves[1])

        return jnp.sqrt(jnp.maximum(jnp.stack([square(lag) for lag in range(self.groups.window)]), 0))

    def cross_entropy(self, tokens: Int[Array, "n length"], student: LogProbs) -> Float[Array, ""]:
        """The loss: minus the log-probability of each generated token, mean over sequences and positions."""
        seen = jnp.take_along_axis(student, tokens[:, self.given :, None], -1)
        return -seen.mean()


def _chances(key: Key, rows: int, columns: int) -> Float[Array, "rows columns"]:
    """The numbers of `uniform`, drawn in a loop of two halves: outside of one, XLA compiles the generator into everything that
    reads a token, which doubles the time that a step takes to compile on a CPU."""
    half = -(-columns // 2)
    parts = jax.lax.map(lambda i: uniform(key, rows, half, i * half), jnp.arange(2, dtype=jnp.uint32))
    return jnp.moveaxis(parts, 0, 1).reshape(rows, 2 * half)[:, :columns]


def _look_up(table: Float[Array, "window size size"], recent: Int[Array, "*rows window"]) -> Float[Array, "*rows size"]:
    """The sum over lags of the table's rows for the tokens there; newest token first."""
    return sum(table[lag, recent[..., lag]] for lag in range(table.shape[0]))  # pyright: ignore[reportReturnType]


@dataclasses.dataclass(frozen=True)
class MarkovRegression:
    r"""The chain's linear predictor as a regression: squared loss, normal tokens, orthogonal normalised maps.

    The target is $\sum_k A_k^* \sum_{i\in I(k)} \alpha_i x_{t-i}$, where $\lVert A_k^*\rVert_F$ is the strength of group k and
    $\langle A_j^*, A_k^*\rangle_F = 0$ for $j \ne k$. Tokens are standard normal, so that attention $s_k$ with values $V_k$ has
    the expected loss $\frac12\lVert\Delta - \sum_k V_k s_k^\top\rVert^2$ exactly, the one that `theory.incremental` is about.

    **Arguments:**

    - `groups`: as in [`emergo.tasks.MarkovChain`][].
    - `dim`: of a token.
    - `length`: T, at least the window; None is the window itself. Older tokens do not matter.
    """

    groups: Groups = MINIMAL
    dim: int = 8
    length: int | None = None

    def __post_init__(self) -> None:
        _whole(self, dim=1)
        if self.length is not None:
            _whole(self, length=self.groups.window)
        if self.groups.count > self.dim**2:
            raise InputError(
                f"dim must be at least {math.ceil(self.groups.count**0.5)} for {self.groups.count} orthogonal maps"
            )

    @property
    def tokens(self) -> int:
        """T, the length in force."""
        return self.groups.window if self.length is None else self.length

    def truth(self, key: Array) -> ChainTruth:
        q, _ = jnp.linalg.qr(normals(raw(key), 1, self.dim**2, self.groups.count)[0])
        maps = q.T.reshape(self.groups.count, self.dim, self.dim)
        return ChainTruth(jnp.asarray(self.groups.strengths, jnp.float32)[:, None, None] * maps)

    def sample(self, key: Array, n: int, truth: ChainTruth) -> RegressionBatch:
        tokens = normals(raw(key), n, self.tokens, self.dim)
        newest_first = tokens[:, ::-1][:, : self.groups.window]
        sums = jnp.einsum("kw,nwd->nkd", jnp.asarray(self.groups.mixing, jnp.float32), newest_first, precision="highest")
        return RegressionBatch(tokens, jnp.einsum("kij,nkj->ni", truth.maps, sums, precision="highest"))
