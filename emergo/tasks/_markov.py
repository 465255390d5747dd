r"""A high-order Markov chain with groups of graded importance, and a regression variant.

The next token is drawn from
$\mathrm{softmax}\big(\beta \sum_k A_k^* \sum_{i\in I(k)} \alpha_i\, \mathrm{onehot}(x_{t-i})\big)$
(yuksel2026). Tokens are one-hot, so products with them are lookups, and the teacher consists of one
table per lag.
"""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..core.attention import attention_by_lag
from ..core.contract import Batch, Below, Output, Spec, probe
from ..core.errors import InputError
from ..core.pytree import option
from ..core.random import Key, fold_in, normals, raw, uniform
from ._cross_entropy import cross_entropy, widened
from ._groups import Groups
from ._task import Task, half_squared_error, stacked_patterns

MINIMAL = Groups()  # [2, 2, 2], the setting of the paper's minimal model
LogProbs = Float[Array, "n generated vocabulary"]
_FRESH = 1  # folded into the run's data key


class ChainTruth(NamedTuple):
    """The target of a run, drawn once for all of its sequences."""

    maps: Float[Array, "groups size size"]  # A_k*, the nearest group first, strengths included


def divergence(
    reference: Float[Array, "*rows vocabulary"], student: Float[Array, "*rows vocabulary"]
) -> Float[Array, "*rows"]:
    """Return KL(reference ‖ student) of each row in nats, from log-probabilities."""
    return jnp.sum(jnp.exp(reference) * (reference - student), -1)


class MarkovChain(Task):
    r"""Sequences of `prefix` uniform tokens, followed by `generated` tokens of a Markov chain.

    Every generated token has to be predicted. $A_k^*$ is the strength of group k times a uniformly
    random orthogonal matrix. A model reads all tokens except the last, and its last `generated`
    outputs are compared with the tokens that follow.

    **Arguments:**

    - `groups`: the past positions on which the next token depends, with their strengths.
    - `vocabulary`: number of different tokens.
    - `temperature`: $1/\beta$, above 0.
    - `generated`: number of tokens that the chain generates.
    - `prefix`: number of uniform tokens before them; None: the window of the groups. Older tokens
      only make the relevant ones harder to find.
    - `maps`: the orthogonal matrices: `"drawn"` for every run, or `"published"`, the matrices of
      the published runs, for 50 tokens and three groups.

    Further curves are `kl_teacher`, the KL divergence of the model from the true
    probabilities (it never reaches exactly 0, so a threshold of 0 ends no run); `teacher_loss`, the
    loss of the true probabilities; `kl_references`, the divergences from the predictors that know
    the 1, 2, ... strongest groups; and `attention_by_lag`.

    >>> import jax
    >>> task = em.MarkovChain(em.Groups(spans=(1, 2)), vocabulary=5, generated=4)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.inputs.shape, batch.target.shape
    ((3, 6), (3, 4))
    """

    learned = Below("kl_teacher", 0.1)
    eval_every = 5

    groups: Groups = MINIMAL
    vocabulary: int = option(default=50, low=2)
    temperature: float = 0.1
    generated: int = option(default=20, low=1)
    prefix: int | None = None
    maps: Literal["drawn", "published"] = option(default="drawn", at_start=True)

    def __post_init__(self) -> None:
        _check_size("MarkovChain.prefix", self.prefix, self.groups)
        if not self.temperature > 0:
            raise InputError(f"MarkovChain.temperature must be above 0, got {self.temperature!r}")
        if self.maps == "published" and (self.groups.count, self.vocabulary) != (3, 50):
            raise InputError('MarkovChain.maps = "published" needs 3 groups and vocabulary 50')

    @property
    def given(self) -> int:
        """Return the number of initial tokens, which are not predicted."""
        return self.groups.window if self.prefix is None else self.prefix

    @property
    def length(self) -> int:
        """Return the number of tokens of a sequence, including the last, which is not read."""
        return self.given + self.generated

    @property
    def spec(self) -> Spec:
        return Spec(self.length - 1, self.vocabulary, self.vocabulary, answers=self.generated)

    def truth(self, key: Array) -> ChainTruth:
        """Draw the maps of a run."""
        size = self.vocabulary
        strengths = jnp.asarray(self.groups.strengths, jnp.float32)[:, None, None]
        if self.maps == "published":
            # The public code, tml-epfl/hmm-attention on GitHub, computes the maps of all published
            # runs with seed 0 of PyTorch. It draws `randn(50, 50)` three times and takes U V^T of
            # each SVD. The last is the nearest group, which comes first in this file.
            with np.load(Path(__file__).with_name("published_maps.npz")) as arrays:
                return ChainTruth(strengths * arrays["orthogonal"])
        q, r = jnp.linalg.qr(normals(raw(key), self.groups.count, size, size))
        # The signs of R's diagonal are a convention. Without them Q is uniform (Mezzadri 2007).
        signs = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
        return ChainTruth(strengths * q * signs[:, None, :])

    def batch(self, key: Array, n: int, truth: ChainTruth) -> Batch:
        """Draw `n` sequences.

        A sequence depends only on the key and its row. So a smaller batch is the start of a larger
        one.
        """
        tokens = self.sample(key, n, truth)
        return Batch(tokens[:, :-1], tokens[:, self.given :])

    def sequences(self, batch: Batch) -> Int[Array, "n length"]:
        """Return the whole sequences of a batch."""
        return jnp.concatenate([batch.inputs, batch.target[:, -1:]], 1)

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        """Return the cross-entropy of the generated tokens in nats, mean over positions."""
        return cross_entropy(widened(output.value), batch.target).mean(-1)

    def metrics(
        self, output: Output, batch: Batch, truth: ChainTruth
    ) -> Mapping[str, Float[Array, " n"]]:
        """Return `kl_teacher`, KL(teacher ‖ model), and `teacher_loss`; means over positions."""
        teacher = self.teacher(truth, self.sequences(batch))
        return {
            "kl_teacher": divergence(teacher, _predictions(output)).mean(-1),
            "teacher_loss": cross_entropy(teacher, batch.target).mean(-1),
        }

    def probes(self) -> tuple[Any, ...]:
        return (self._references_probe, self._lags_probe)

    def data_key(self, key: Array, step: Any) -> Array:
        return fold_in(fold_in(raw(key), _FRESH), step)

    def _references_probe(
        self, params: Any, output: Output, batch: Batch, truth: ChainTruth, step: Any
    ) -> dict[str, Array]:
        student = _predictions(output)
        references = self.references(truth, self.sequences(batch))
        return {"kl_references": jnp.stack([divergence(r, student).mean() for r in references])}

    @probe(reads=["layers.*.pattern"])
    def _lags_probe(
        self, params: Any, output: Output, batch: Batch, truth: ChainTruth, step: Any
    ) -> dict[str, Array]:
        patterns = stacked_patterns(output)
        if patterns is None:
            return {}
        by_lag = attention_by_lag(patterns, self.groups.window, first_query=self.given - 1)
        return {"attention_by_lag": by_lag}

    def table(
        self, truth: ChainTruth, keep: int | None = None
    ) -> Float[Array, "window vocabulary vocabulary"]:
        """Return the logits that a token at a lag adds to the next token: (lag, token, next).

        `keep` is explained in [`emergo.tasks.MarkovChain.teacher`][].
        """
        known = np.isin(range(self.groups.count), self.groups.ranking[:keep])
        mixing = self.groups.mixing * known[:, None] / self.temperature
        # We write sums, because a GPU's matrix product might round the table to fewer digits.
        parts = (
            jnp.asarray(row, jnp.float32)[:, None, None] * jnp.swapaxes(one, 0, 1)
            for row, one in zip(mixing, truth.maps, strict=True)
        )
        return functools.reduce(operator.add, parts)

    @functools.partial(jax.jit, static_argnames=("n",))
    def sample(self, key: Array, n: int, truth: ChainTruth) -> Int[Array, "n length"]:
        """Draw `n` whole sequences."""
        given = self.given
        size = self.vocabulary
        chance = _chances(raw(key), n, self.length)
        first = jnp.minimum(jnp.floor(chance[:, :given] * size).astype(jnp.int32), size - 1)
        table = self.table(truth)

        def step(recent: Array, u: Array) -> tuple[Array, Array]:
            mass = jnp.cumsum(jax.nn.softmax(_look_up(table, recent), -1), -1)
            # Rounded probabilities do not sum to exactly 1, so u is scaled by their sum.
            token = jnp.sum(mass <= (u[:, None] * mass[:, -1:]), -1, dtype=jnp.int32)
            token = jnp.minimum(token, size - 1)
            return jnp.concatenate([token[:, None], recent[:, :-1]], 1), token

        recent = first[:, given - self.groups.window :][:, ::-1]
        _, drawn = jax.lax.scan(step, recent, chance[:, given:].T)
        return jnp.concatenate([first, drawn.T], 1)

    @functools.partial(jax.jit, static_argnames=("keep",))
    def teacher(
        self, truth: ChainTruth, tokens: Int[Array, "n length"], keep: int | None = None
    ) -> LogProbs:
        r"""Return the true log-probabilities of each generated token, given the tokens before it.

        **Arguments:**

        - `truth`: the maps of the run.
        - `tokens`: whole sequences.
        - `keep`: use only this many strongest groups, which gives the reference $A^*_{1:k}$; 0
          gives the uniform distribution. None: all groups.
        """
        count = tokens.shape[1] - self.given
        positions = jnp.arange(count)[:, None] + self.given - 1 - jnp.arange(self.groups.window)
        return jax.nn.log_softmax(_look_up(self.table(truth, keep), tokens[:, positions]), -1)

    def references(self, truth: ChainTruth, tokens: Int[Array, "n length"]) -> list[LogProbs]:
        r"""Return $A^*_{1:1}, \dots, A^*_{1:h}$; the last one is the teacher."""
        return [self.teacher(truth, tokens, keep) for keep in range(1, self.groups.count + 1)]

    def signals(self, truth: ChainTruth, tokens: Int[Array, "n length"]) -> Float[Array, " window"]:
        r"""Return the dependence of the next token on each lag: $\lVert E[(y - \bar
        y)\,x_i^\top]\rVert_F$.

        $x_i$ is one-hot. $y$ are the teacher's probabilities, so the target is free of noise. The
        square of the norm is estimated without bias, as the product of independent estimates from
        both halves of the sequences. Negative estimates count as 0.
        """
        size = self.vocabulary
        half = len(tokens) // 2
        expected = jnp.exp(self.teacher(truth, tokens))

        def square(lag: int) -> Array:
            before = jax.nn.one_hot(tokens[:, self.given - 1 - lag : self.length - 1 - lag], size)
            halves = []
            for part in (slice(None, half), slice(half, 2 * half)):
                sums = jnp.einsum("ntp,ntc->pc", expected[part], before[part], precision="highest")
                joint = sums / (half * self.generated)
                halves.append(joint - joint.mean(1, keepdims=True))
            return jnp.sum(halves[0] * halves[1])

        squares = jnp.stack([square(lag) for lag in range(self.groups.window)])
        return jnp.sqrt(jnp.maximum(squares, 0))


def _check_size(name: str, size: int | None, groups: Groups) -> None:
    """Raise an `InputError` if the groups do not fit into this number of tokens."""
    if size is not None and size < groups.window:
        raise InputError(f"{name} must be at least {groups.window}, got {size}")


def _predictions(output: Output) -> LogProbs:
    """Return the log-probabilities of a model."""
    return jax.nn.log_softmax(widened(output.value), -1)


def _chances(key: Key, rows: int, columns: int) -> Float[Array, "rows columns"]:
    """Return the numbers of `uniform`, drawn in a loop over two halves.

    If the loop is missing, XLA inlines the generator into everything that reads a token, which
    doubles the time to compile a step on a CPU.
    """
    half = -(-columns // 2)
    parts = jax.lax.map(
        lambda i: uniform(key, rows, half, i * half), jnp.arange(2, dtype=jnp.uint32)
    )
    return jnp.moveaxis(parts, 0, 1).reshape(rows, 2 * half)[:, :columns]


def _look_up(
    table: Float[Array, "window size size"], recent: Int[Array, "*rows window"]
) -> Float[Array, "*rows size"]:
    """Sum the table's rows of the tokens at all lags. The newest token comes first."""
    return functools.reduce(
        operator.add, (table[lag, recent[..., lag]] for lag in range(table.shape[0]))
    )


class MarkovRegression(Task):
    r"""The linear predictor of the chain as a regression task with squared loss.

    The target is $\sum_k A_k^* \sum_{i\in I(k)} \alpha_i x_{t-i}$, where $\lVert A_k^*\rVert_F$ is
    the strength of group k and $\langle A_j^*, A_k^*\rangle_F = 0$ for $j \ne k$. Tokens are
    standard normal, so attention $s_k$ with values $V_k$ has exactly the expected loss
    $\frac12\lVert\Delta - \sum_k V_k s_k^\top\rVert^2$ of `theory.incremental`.

    **Arguments:**

    - `groups`: as in [`emergo.tasks.MarkovChain`][].
    - `dim`: number of features of a token.
    - `length`: T, the number of tokens of a sequence, at least the window of the groups, which is
      the default. Older tokens are irrelevant.

    >>> import jax
    >>> task = em.MarkovRegression(em.Groups(spans=(1, 2)), dim=4, length=5)
    >>> batch = task.batch(jax.random.key(0), 3, task.truth(jax.random.key(1)))
    >>> batch.target.shape, batch.relevant[0].tolist()
    ((3, 4), [False, False, True, True, True])
    """

    learned = Below("loss", 0.1)

    groups: Groups = MINIMAL
    dim: int = option(default=8, low=1)
    length: int | None = None

    def __post_init__(self) -> None:
        _check_size("MarkovRegression.length", self.length, self.groups)
        if self.groups.count > self.dim**2:
            raise InputError(
                f"MarkovRegression.dim {self.dim} is too small for {self.groups.count} orthogonal "
                f"maps"
            )

    @property
    def tokens(self) -> int:
        """Return the number of tokens of a sequence."""
        return self.groups.window if self.length is None else self.length

    @property
    def spec(self) -> Spec:
        return Spec(self.tokens, self.dim, self.dim)

    def truth(self, key: Array) -> ChainTruth:
        """Draw the maps of a run."""
        q, _ = jnp.linalg.qr(normals(raw(key), 1, self.dim**2, self.groups.count)[0])
        maps = q.T.reshape(self.groups.count, self.dim, self.dim)
        return ChainTruth(jnp.asarray(self.groups.strengths, jnp.float32)[:, None, None] * maps)

    def batch(self, key: Array, n: int, truth: ChainTruth) -> Batch:
        """Draw `n` sequences, the newest token last. The positions of all groups are relevant."""
        inputs = normals(raw(key), n, self.tokens, self.dim)
        newest_first = inputs[:, ::-1][:, : self.groups.window]
        mixing = jnp.asarray(self.groups.mixing, jnp.float32)
        sums = jnp.einsum("kw,nwd->nkd", mixing, newest_first, precision="highest")
        target = jnp.einsum("kij,nkj->ni", truth.maps, sums, precision="highest")
        older = self.tokens - self.groups.window
        relevant = jnp.pad(jnp.any(self.groups.members, 0)[::-1], (older, 0))
        return Batch(inputs, target, jnp.broadcast_to(relevant, (n, self.tokens)))

    def loss(self, output: Output, batch: Batch) -> Float[Array, " n"]:
        return half_squared_error(output, batch)
