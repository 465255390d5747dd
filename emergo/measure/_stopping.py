"""Early stopping: the best loss so far, the step of the best, and which predictor the student is there (yuksel2026)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._errors import InputError
from ._emergence import Series


def excess_loss(loss: ArrayLike, entropy: ArrayLike) -> Float[np.ndarray, "..."]:
    """What a loss has above the teacher's entropy, the least that any predictor can reach."""
    return np.asarray(loss, np.float64) - np.asarray(entropy, np.float64)


def best_so_far(loss: ArrayLike) -> Float[np.ndarray, "*runs steps"]:
    """The running minimum along the last axis; an evaluation that is NaN does not count."""
    return np.fmin.accumulate(np.asarray(loss, np.float64), -1)


class Stop(NamedTuple):
    """A run at its best evaluation."""

    step: float
    """The first at which the best loss was reached."""
    loss: float
    nearest: int
    """The reference with the smallest divergence to the student, counted in groups kept: 1 is the strongest alone."""
    divergence: float
    """Of that reference."""
    equals: int | None
    """The reference that the student is as close to as references are not to each other; None where there is no such."""


def early_stop(
    step: Series,
    loss: Series,
    divergences: ArrayLike,
    apart: ArrayLike,
    *,
    share: float = 0.5,
) -> Stop:
    """The step at which validation loss is best, and the truncated predictor that the student equals there.

    The nearest reference alone does not say that: early students are far from all of them.

    **Arguments:**

    - `step`, `loss`: the validation curve.
    - `divergences`: KL(A*_{1:k} ‖ student) at these steps, k = 1, 2, ... along the first axis.
    - `apart`: KL(A*_{1:k} ‖ A*_{1:l}) of the references.
    - `share`: the student equals reference k when its divergence from it is below this share of the least
      divergence of k from another reference.
    """
    step, loss = np.asarray(step, np.float64), np.asarray(loss, np.float64)
    divergences, apart = np.asarray(divergences, np.float64), np.asarray(apart, np.float64)
    count = len(divergences)
    if divergences.shape != (count, len(step)) or loss.shape != step.shape or apart.shape != (count, count) or count < 2:
        raise InputError(
            "needs one loss and one divergence of each of 2 or more references a step, and all divergences between references; "
            f"got {step.shape}, {loss.shape}, {divergences.shape} and {apart.shape}"
        )
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share!r}")
    if not np.isfinite(loss).any():
        raise InputError("the loss is nowhere finite: there is no best step")
    best = int(np.nanargmin(np.where(np.isfinite(loss), loss, np.nan)))
    here = divergences[:, best]
    gaps = np.where(np.eye(count, dtype=bool), np.inf, apart).min(1)
    close = np.flatnonzero(here < share * gaps)
    equals = None if not len(close) else int(close[np.argmin(here[close] / gaps[close])]) + 1
    nearest = int(np.argmin(here))
    return Stop(float(step[best]), float(loss[best]), nearest + 1, float(here[nearest]), equals)
