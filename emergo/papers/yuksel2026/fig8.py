"""Figure 8: with the far group strongest, the far group is learned first."""

from ...models import ChainTransformer, MinimalAttention
from ...tasks import Groups, MarkovChain
from ._chains import FULL, PAIR, laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

FAR = MarkovChain(Groups((2, 4, 8), strongest="far"))
FIGURE = stage_figure(
    "yuksel2026/fig8",
    "with the far group strongest, the far group is learned first",
    presets={
        "paper": paper(ChainTransformer(dropout_every=3, start="xavier"), FAR, FULL),
        "laptop": laptop(MinimalAttention(), Groups(strongest="far")),
        "smoke": smoke(groups=PAIR.replace(strongest="far")),
    },
    seconds={"paper": 25000, "laptop": 30, "smoke": 8},
    printed=Printed(boundaries=(90, 410)),
    laptop="the minimal attention instead of the Transformer",
)
