"""Figure 6: the minimal attention on fresh data in every step: the stages of Fig. 1 without overfitting."""

from ...tasks import Groups
from .._figure import Check
from ._chains import Seen, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure


def overfitting(seen: Seen) -> list[Check]:
    worst = max(float(curve["excess"][-1] - curve["excess"].min()) for curve in seen.curves)
    name = "KL from the teacher at the end over its least, largest over seeds"
    return [Check(name, worst, None, worst < 0.02, "below 0.02: nothing is learned by heart")]


PAPER, SMALL, TINY = Training(samples=None), laptop(Groups()), smoke()
FIGURE = stage_figure(
    "yuksel2026/fig6",
    "the minimal attention on fresh data in every step: the same stages, without overfitting",
    presets={
        "paper": Settings(PAPER, PAPER.minimal()),
        "laptop": Settings(SMALL, SMALL.minimal()),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 7200, "laptop": 80, "smoke": 10},
    printed=Printed(boundaries=(330, 580)),
    more=overfitting,
)
