"""Scores of attention heads on a fixed batch, in a forward pass of its own."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.heads import head_scores
from ._observation import Observation, TokenInput
from ._packed import Packed
from ._scores import Part, Scores
from ._statistics import attention_of

SEQUENCES = 8
PERIOD = 32  # tokens until a sequence repeats; less for models of short sequences
SHORTEST = 4  # the shortest sequence that can be scored
# After so many steps, heads are scored again. If rows are closer, `HeadBatch.every` counts.
STEPS_PER_SCORE = 200


@dataclasses.dataclass(frozen=True, eq=False)
class HeadBatch:
    """A fixed batch on which heads are scored while the model trains.

    **Arguments:**

    - `inputs`: what the model is called with: a tensor, a tuple of arguments, or a mapping of named
      arguments.
    - `tokens`: token ids (n, length), for the scores of duplicate-token and induction heads.
    - `relevant`: the positions that matter, by the name of the score: whole numbers (n, k), or True
      in (n, length) or in (n, queries, length). The score of a head, `NAME_head`, is its weight
      on them. A tensor without a name is called `relevant_head`.
    - `queries`: the number of last positions whose attention counts; None: all of them.
    - `every`: the number of rows of the log per score. A score needs a forward pass of its own,
      so by default only every fourth row has one, and rows that are 200 steps apart.
    """

    inputs: Any
    tokens: Tensor | None = None
    relevant: Mapping[str, Tensor] | Tensor | None = None
    queries: int | None = None
    every: int = 4

    def call(self, model: nn.Module) -> None:
        """Call a model with the inputs, on its device."""
        tensors = itertools.chain(model.parameters(), model.buffers())
        device = next((x.device for x in tensors), None)

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        if isinstance(self.inputs, Mapping):
            model(**{name: move(value) for name, value in self.inputs.items()})
        else:
            model(*map(move, self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)))

    def scores(self, scores: Scores) -> dict[str, Tensor]:
        """Score heads, of one or several layers."""
        n, _, queries, length = scores.values.shape
        if length != scores.n_queries:  # cross-attention
            return {}
        visible, weights = attention_of(scores, own=False)
        keys = _keys(self, n, queries, length, weights.device)
        sums = (weights * keys.of_classes).sum((1, 3, 4))
        counts = (keys.of_classes.any(-1) & visible.queries).sum((1, 3))
        found = dict(zip(keys.classes, (sums / counts).unbind(), strict=True))
        for column, relevant in keys.relevant.items():
            found[column] = (weights * relevant).sum((0, 2, 3)) / (n * queries)
        return found


class _Keys(NamedTuple):
    """The keys whose weight is a score."""

    classes: list[str]
    of_classes: Bool[Tensor, "classes #n 1 queries length"]
    relevant: dict[str, Bool[Tensor, "n 1 #queries length"]]


@functools.lru_cache(maxsize=4)  # built once, so that a later row does not pay for it
def _keys(batch: HeadBatch, n: int, queries: int, length: int, device: torch.device) -> _Keys:
    # `head_scores` defines the classes. A score is linear in the attention weights, so its keys are
    # the weights with a derivative.
    with torch.enable_grad():
        attention = torch.zeros(n, 1, queries, length, device=device, requires_grad=True)
        tokens = None if batch.tokens is None else batch.tokens.to(device)
        scores = head_scores(attention, tokens)
        gradients = [
            torch.autograd.grad(score.sum(), attention, retain_graph=True)[0]
            for score in scores.values()
        ]
    given = batch.relevant if isinstance(batch.relevant, Mapping) else {}
    if isinstance(batch.relevant, Tensor):
        given = {"relevant_head": batch.relevant}
    relevant = {
        f"{name.removesuffix('_head')}_head": _mask(
            name, positions.to(device), attention
        ).unsqueeze(1)
        for name, positions in given.items()
    }
    return _Keys(list(scores), torch.stack(gradients) != 0, relevant)


def _mask(name: str, positions: Tensor, weights: Tensor) -> Tensor:
    """Return True for relevant keys, with shape (n, 1 or queries, length)."""
    n, _, queries, length = weights.shape
    if positions.dtype != torch.bool and positions.ndim == 2 and len(positions) == n:
        if positions.numel() and not 0 <= positions.min() <= positions.max() < length:
            raise InputError(
                f"relevant['{name}'] must hold positions from 0 to {length - 1}, got "
                f"{positions.min():d} to {positions.max():d}"
            )
        positions = torch.zeros(n, length, dtype=torch.bool, device=positions.device).scatter(
            1, positions.long(), True
        )
    mask = positions.unsqueeze(1) if positions.ndim == 2 else positions[:, -queries:]
    if mask.dtype != torch.bool or mask.shape not in ((n, 1, length), (n, queries, length)):
        raise InputError(
            f"relevant['{name}'] must hold positions (n, k), or truth values ({n}, {length}) or "
            f"({n}, {queries}, {length}), got {tuple(positions.shape)}"
        )
    return mask


def repeated_tokens(given: TokenInput) -> HeadBatch | None:
    """Return sequences of random tokens that repeat once, for a model of token ids.

    The tokens come from the model's vocabulary, with a fixed seed. The sequences are at most as
    long as those that the model is trained on. Returns None if those are too short.
    """
    length = given.tokens.shape[1]
    period = min(PERIOD, length // 2)
    if 2 * period < SHORTEST:
        return None
    generator = torch.Generator().manual_seed(0)
    if given.vocabulary >= period:  # without a repetition inside of the period
        rows = [torch.randperm(given.vocabulary, generator=generator) for _ in range(SEQUENCES)]
        first = torch.stack([row[:period] for row in rows])
    else:
        first = torch.randint(given.vocabulary, (SEQUENCES, period), generator=generator)
    # A model may read sequences of one length only, and that may be odd.
    odd = 1 if length == 2 * period + 1 else 0
    tokens = torch.cat([first, first, first[:, :odd]], 1).to(given.tokens.dtype)
    tokens = tokens.to(given.tokens.device)  # so that no later row waits for the transfer
    if isinstance(given.place, str):
        return HeadBatch({given.place: tokens}, tokens)
    return HeadBatch((*[None] * given.place, tokens), tokens)


def score_heads(model: nn.Module, batch: HeadBatch, during: Observation) -> Packed:
    """Score all heads of a model in one forward pass.

    The model is in evaluation mode meanwhile. Its parameters, buffers and random numbers do not
    change.

    **Arguments:**

    - `model`: the model, or the part of it that is called with the batch.
    - `during`: the observation of the training step.
    """
    length = None if batch.tokens is None else batch.tokens.shape[1]
    part = Part(1_000_000, batch.queries or length or 1_000_000)
    statistic = lambda scores, _: batch.scores(scores)  # noqa: E731
    observation = Observation({}, part, statistic, None, list(during.layers), outer=during)
    try:
        with _unchanged(model):
            batch.call(model)
    finally:
        observation.close()
    if observation.problem:
        raise RuntimeError(observation.problem)
    return observation.heads()


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Compute without gradients, in evaluation mode, and without a trace in the training."""
    training = [module for module in model.modules() if module.training]
    devices = {x.device for x in model.parameters() if x.device.type == "cuda"}
    kind = next(iter(devices)).type if devices else "cpu"
    # Inside of `autocast`, a pass without gradients would leave converted weights without gradients
    # in its cache. In evaluation mode, PyTorch's layers have a fast path that cannot be observed.
    mixed = torch.autocast(
        kind,
        torch.get_autocast_dtype(kind),
        torch.is_autocast_enabled(kind),
        cache_enabled=False,
    )
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad(), torch.random.fork_rng(list(devices)), mixed:
        torch.backends.mha.set_fastpath_enabled(False)
        for module in training:
            module.training = False
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module in training:
                module.training = True
