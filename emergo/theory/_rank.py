r"""The error that remains if the residual stream is narrower than the tokens."""

import numpy as np
from jaxtyping import Float

from ._cells import Numbers, checked_numbers


def rank_floor(width: Numbers, dim: Numbers) -> Float[np.ndarray, "..."]:
    r"""Return the smallest loss of a model whose stream has `width` features.

    The target is $W^* x$ with a normal $W^*$ of `dim` rows and columns, in the limit of large
    `dim`. The loss is a share of the initial loss.

    The model sees the relevant token through a map of rank at most `width`. So it loses the `dim -
    width` smallest singular values of $W^*$, which follow the quarter-circle law: with $s =
    2\sin\varphi$, a share $\frac2\pi(\varphi + \frac12\sin 2\varphi)$ of them lies below $s$. They
    hold a share $\frac2\pi(\varphi - \frac14\sin 4\varphi)$ of the sum of squares (docs/theory.md).
    The function finds $\varphi$ by bisection.
    """
    positive = ("a positive, finite number", lambda x: np.isfinite(x) & (x > 0))
    lost = 1 - np.minimum(
        checked_numbers("width", width, *positive) / checked_numbers("dim", dim, *positive), 1
    )
    low = np.zeros_like(lost)
    high = np.full_like(lost, np.pi / 2)
    for _ in range(60):
        middle = (low + high) / 2
        below = 2 / np.pi * (middle + np.sin(2 * middle) / 2) < lost
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return np.asarray(2 / np.pi * (low - np.sin(4 * low) / 4))
