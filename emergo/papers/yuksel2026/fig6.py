"""Figure 6: the minimal attention on fresh data in every step: the stages of Fig. 1 without overfitting."""

from ...models import MinimalAttention
from .._figure import Check
from ._chains import ChainRuns, laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure


def overfitting_check(runs: ChainRuns) -> list[Check]:
    worst = max(float(curve["kl_teacher"][-1] - curve["kl_teacher"].min()) for curve in runs.curves)
    name = "KL from the teacher at the end over its least, largest over seeds"
    return [Check(name, worst, None, worst < 0.02, "below 0.02: nothing is learned by heart")]


FIGURE = stage_figure(
    "yuksel2026/fig6",
    "the minimal attention on fresh data in every step: the same stages, without overfitting",
    presets={"paper": paper(MinimalAttention(), n_train=None), "laptop": laptop(MinimalAttention()), "smoke": smoke()},
    seconds={"paper": 7200, "laptop": 80, "smoke": 8},
    printed=Printed(boundaries=(330, 580)),
    more=overfitting_check,
)
