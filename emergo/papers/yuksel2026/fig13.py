"""Figure 13: with unequal weights within a group, attention follows them."""

import numpy as np

from ...models import MinimalAttention
from ...tasks import Groups, MarkovChain
from .._figure import Check
from ._chains import ChainRuns, laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

UNEQUAL = Groups(weights=((0.7, 0.3),) * 3)


def weight_check(runs: ChainRuns) -> list[Check]:
    """The share that the nearer position of each group has in the attention of the head that looks at the group most."""
    starts, mixing = runs.groups.starts, runs.groups.mixing
    weights, shares = [float(m[s] / m[s : s + 2].sum()) for m, s in zip(mixing, starts, strict=True)], []
    for curve in runs.curves:
        heads, owners = runs.attention(curve)[-1], runs.group_attention(curve)[-1].argmax(0)
        shares.append([float(heads[k, s] / heads[k, s : s + 2].sum()) for k, s in zip(owners, starts, strict=True)])
    means = np.mean(shares, 0)
    close = bool(np.all(np.abs(means - weights) < 0.1))
    name = "share of the nearer position in the attention on each group, mean over seeds"
    return [Check(name, means.tolist(), f"attention follows the weights: {weights}", close)]


FIGURE = stage_figure(
    "yuksel2026/fig13",
    "with unequal weights within a group, attention follows them",
    presets={
        "paper": paper(MinimalAttention(start="xavier"), MarkovChain(UNEQUAL)),
        "laptop": laptop(MinimalAttention(), UNEQUAL),
        "smoke": smoke(groups=Groups((2, 2), weights=((0.7, 0.3),) * 2)),
    },
    seconds={"paper": 7200, "laptop": 39, "smoke": 8},
    printed=Printed(boundaries=(130, 280)),
    more=weight_check,
    laptop="initial scale 1e-9",
)
