"""Figure 1: the minimal attention learns a Markov chain in stages; heads first share a group, then divide the groups."""

from ...models import MinimalAttention
from ._chains import laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

FIGURE = stage_figure(
    "yuksel2026/fig1",
    "the minimal attention learns a Markov chain in three stages: heads compete for one group, then divide them",
    presets={"paper": paper(MinimalAttention()), "laptop": laptop(MinimalAttention()), "smoke": smoke()},
    seconds={"paper": 7200, "laptop": 33, "smoke": 8},
    printed=Printed(boundaries=(330, 575), final_kl=(2.78, 0.70, 0.09), plateau_levels=(0.87, 0.34)),
)
