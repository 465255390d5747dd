"""Figure 2: where the heads of the full Transformer of Fig. 3 look, at different stages of training."""

import numpy as np

from .._figure import Check
from . import fig3
from ._chains import ChainRuns
from ._map_figure import map_figure


def current_token_check(runs: ChainRuns) -> list[Check]:
    """Attention to the current token over that to the other lags, heads summed, mean over seeds."""
    sums = [runs.attention(curve)[-1].sum(0) for curve in runs.curves]
    ratio = float(np.mean([lags[0] / lags[1:].mean() for lags in sums]))
    words = "the main diagonal does not have the same intensity as the other positions: it is learned via the skip connection"
    return [Check("at the end, attention to lag 0 over that to the other lags, mean over seeds", ratio, words, ratio < 0.8)]


FIGURE = map_figure(
    "yuksel2026/fig2",
    "where the heads of the full Transformer look at different stages of training",
    fig3.FIGURE,
    current_token_check,
)
