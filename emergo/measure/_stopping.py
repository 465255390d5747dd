"""Early stopping: the best loss so far, the step of the best, and which predictor the student is there (yuksel2026)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._errors import InputError
from ._emergence import Series


def excess_loss(loss: ArrayLike, entropy: ArrayLike) -> Float[np.ndarray, "..."]:
    """What a loss has above the teacher's entropy, the least that any predictor can reach; both in nats.

    >>> excess_loss([1.5, 0.75], 0.5).tolist()
    [1.0, 0.25]
    """
    return np.asarray(loss, np.float64) - np.asarray(entropy, np.float64)


def best_so_far(loss: ArrayLike) -> Float[np.ndarray, "*runs steps"]:
    """The running minimum along the last axis; an evaluation that is NaN does not count.

    >>> best_so_far([3.0, 1.0, 2.0]).tolist()
    [3.0, 1.0, 1.0]
    """
    return np.fmin.accumulate(np.asarray(loss, np.float64), -1)


class Stop(NamedTuple):
    """A run at its best evaluation.

    >>> Stop(step=20.0, loss=0.8, nearest=2, divergence=0.1, equals=None).nearest
    2
    """

    step: float
    """The first at which the best loss was reached."""
    loss: float
    nearest: int
    """The reference with the smallest divergence to the student, counted in groups kept: 1 is the strongest alone."""
    divergence: float
    """Of that reference."""
    equals: int | None
    """The reference that the student is much closer to than other references are; None where there is no such."""


def early_stop(step: Series, loss: Series, divergences: ArrayLike, apart: ArrayLike, *, share: float = 0.5) -> Stop:
    """The step at which validation loss is best, and the truncated predictor that the student equals there.

    The nearest reference alone does not say that: early students are far from all of them.

    **Arguments:**

    - `step`, `loss`: the validation curve.
    - `divergences`: KL(A*_{1:k} ‖ student) in nats at these steps, shape (references, steps), k = 1, 2, ...
    - `apart`: KL(A*_{1:k} ‖ A*_{1:l}) of the references, shape (references, references).
    - `share`: the student equals reference k when its divergence from it is below this share of the least
      divergence of k from another reference.

    >>> early_stop([10, 20], [1.0, 0.5], [[0.5, 2.0], [2.0, 0.125]], apart=[[0.0, 1.0], [1.0, 0.0]])
    Stop(step=20.0, loss=0.5, nearest=2, divergence=0.125, equals=2)
    """
    step, loss = np.asarray(step, np.float64), np.asarray(loss, np.float64)
    divergences, apart = np.asarray(divergences, np.float64), np.asarray(apart, np.float64)
    count = len(divergences)
    if divergences.shape != (count, len(step)) or loss.shape != step.shape or apart.shape != (count, count) or count < 2:
        shapes = f"{step.shape}, {loss.shape}, {divergences.shape} and {apart.shape}"
        raise InputError(f"needs one loss per step and divergences of 2 or more references by step and by pair, got {shapes}")
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share!r}")
    if not np.isfinite(loss).any():
        raise InputError("the loss is nowhere finite: there is no best step")
    best = int(np.nanargmin(np.where(np.isfinite(loss), loss, np.nan)))
    here = divergences[:, best]
    gaps = np.where(np.eye(count, dtype=bool), np.inf, apart).min(1)
    close = np.flatnonzero(here < share * gaps)
    equals = int(close[np.argmin(here[close] / gaps[close])]) + 1 if len(close) else None
    nearest = int(np.argmin(here))
    return Stop(float(step[best]), float(loss[best]), nearest + 1, float(here[nearest]), equals)
