"""Figure 13: with unequal weights within a group, attention follows them."""

import dataclasses

import numpy as np

from ...tasks import Groups, MarkovChain
from .._figure import Check
from ._chains import LAPTOP, TWO, Seen, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

UNEQUAL = Groups(weights=((0.7, 0.3),) * 3)


def follows(seen: Seen) -> list[Check]:
    """The share that the nearer position of each group has in the attention of the head that looks at the group most."""
    starts, mixing = seen.groups.starts, seen.groups.mixing
    found, wanted = [], [float(m[s : s + 2][0] / m[s : s + 2].sum()) for m, s in zip(mixing, starts, strict=True)]
    for curve in seen.curves:
        heads, owner = seen.heads(curve)[-1], seen.mass(curve)[-1].argmax(0)
        pairs = [heads[k, s : s + 2] for k, s in zip(owner, starts, strict=True)]
        found.append([float(pair[0] / pair.sum()) for pair in pairs])
    means = np.mean(found, 0)
    close = bool(np.all(np.abs(means - wanted) < 0.1))
    name = "share of the nearer position in the attention on each group, mean over seeds"
    return [Check(name, means.tolist(), f"attention follows the weights: {wanted}", close)]


PAPER, SMALL = Training(MarkovChain(UNEQUAL)), laptop(UNEQUAL)
TINY = smoke(dataclasses.replace(TWO, spans=(2, 2), weights=((0.7, 0.3),) * 2))
FIGURE = stage_figure(
    "yuksel2026/fig13",
    "with unequal weights within a group, attention follows them",
    presets={
        "paper": Settings(PAPER, PAPER.minimal(start="xavier")),
        "laptop": Settings(SMALL, SMALL.minimal()),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 7200, "laptop": 39, "smoke": 10},
    printed=Printed(boundaries=(130, 280)),
    more=follows,
    laptop=f"initial scale 1e-9, {LAPTOP}",
)
