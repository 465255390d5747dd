r"""How well the gradients of two halves of a batch agree, along the flow of the toy model without
cross-sample repetition.

A gradient over m samples is its mean, the signal, plus noise whose square is the variance of one
sample over m. Two halves of n/2 samples share the signal alone, so that their cosine is $\frac{S}{S
+ V/(n/2)}$, with the squared norm S of the mean and the variance V of one sample: exactly as a
ratio of expectations, and in many dimensions for the cosine itself. `docs/theory.md` derives S and
V. All that enters are second moments, since tokens are normal.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from ._cells import Cell, Numbers, checked_numbers

RANDOM = 2.0
r"""$k = \mathrm{tr}(K^2)/d$ with $K = W^{*\top}W^*$ of a random target map; of an orthogonal one it
is 1."""


def _batch(batch: Numbers) -> Float[np.ndarray, "..."]:
    return checked_numbers("batch", batch, "at least 2", lambda n: n >= 2)


class Moments(NamedTuple):
    """Of the gradient of one sample."""

    signal: Float[np.ndarray, "..."]  # S, the squared norm of its mean
    noise: Float[np.ndarray, "..."]  # V, its variance, summed over all parameters

    def agreement(self, batch: Numbers) -> Float[np.ndarray, "..."]:
        """The expected cosine between the gradients of two halves of a batch; 0 where there is no
        gradient."""
        total = self.signal + 2 * self.noise / _batch(batch)
        return np.asarray(self.signal / np.where(total > 0, total, 1))


class GradientMoments(NamedTuple):
    """Of the two parts of the toy model."""

    attention: Moments  # the logits: what queries and keys are to a Transformer
    values: Moments  # the weights


def gradient_moments(
    cell: Cell, alignment: Numbers, logit: Numbers, spread: float = RANDOM
) -> GradientMoments:
    r"""Signal and noise of the gradient of one sample at a state of the flow, all terms kept.

    - `alignment`: w, where $W = \frac{w}{\sqrt d}W^*$.
    - `logit`: $\Delta a$.
    - `spread`: $k = \mathrm{tr}(K^2)/d$ with $K = W^{*\top}W^*$, $\mathrm{tr}K = d$: 2 for a random
      W*, 1 for an orthogonal one. Only the noise of the logits depends on it.

    `cell.repeat` is ignored.
    """
    T, d, B, _ = (np.asarray(part, np.float64) for part in cell)
    w = np.asarray(alignment) / np.sqrt(d)
    A = expit(np.asarray(logit, np.float64) + np.log(B / (T - B)))
    share = (1 - A) / (T - B)  # attention on one of the other tokens
    rho = (1 - A) * share  # the sum of the squares of these
    r = w * A - 1
    # The answer's error is W* y, y = r x + w u, with the relevant token x and the mixture u of the
    # others; z = A x + u is read.
    yy = r**2 + w**2 * rho
    zz = A**2 + rho
    yz = r * A + w * rho
    values = Moments(np.asarray(yz**2 / d), np.asarray(yy * zz + yz**2 / d))

    def of_logit(qq: Any, yq: Any) -> tuple[Any, Any]:
        """Mean and second moment of W'e · (x_t - z), from the second moments of y and of q = x_t -
        z."""
        return w * yq, w**2 * (yq**2 + spread / d * (yy * qq + yq**2))

    relevant = of_logit((1 - A) ** 2 + rho, r * (1 - A) - w * rho)
    other = of_logit(1 + A**2 + rho - 2 * share, -r * A + w * (share - rho))
    weights = (A**2 / B, (T - B) * share**2)  # summed over positions
    signal = weights[0] * relevant[0] ** 2 + weights[1] * other[0] ** 2
    noise = weights[0] * relevant[1] + weights[1] * other[1] - signal
    return GradientMoments(Moments(np.asarray(signal), np.asarray(noise)), values)


class Agreement(NamedTuple):
    """The expected cosine between the gradients of two halves of a batch."""

    attention: Float[np.ndarray, "..."]
    values: Float[np.ndarray, "..."]


def leading_agreement(
    cell: Cell, attention: Numbers, batch: Numbers, spread: float = RANDOM
) -> Agreement:
    r"""The agreement at an attention A on the plateau, to leading order: $\frac{1}{1 + 2/(nq)}$
    with

    $$q_\text{attention} = \frac{dTA^2}{kB(1 + 2TA^2/B)}, \qquad q_\text{values} = \frac{TA^2}{d(1 + TA^2)}.$$

    Neither depends on how much of the map is known, but for $w = 0$ itself, where the gradient of
    the logits vanishes. Both grow as A² until $A \approx 1/\sqrt T$, while the loss is flat.
    """
    T, d, B, _ = (np.asarray(part, np.float64) for part in cell)
    A = checked_numbers(
        "attention", attention, "above 0 and at most 1", lambda a: (a > 0) & (a <= 1)
    )
    n = _batch(batch)
    square = T * A**2
    ratios = (d * square / (spread * B * (1 + 2 * square / B)), square / (d * (1 + square)))
    return Agreement(*(np.asarray(1 / (1 + 2 / (n * q))) for q in ratios))
