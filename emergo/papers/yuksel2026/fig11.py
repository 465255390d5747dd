"""Figure 11: two layers of the minimal attention learn the chain in the same stages."""

from ...models import MinimalAttention
from ...tasks import Groups, MarkovChain
from ._chains import ADAMW, laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

SLOW, DEEP = ADAMW.replace(learning_rate=0.04), MinimalAttention(layers=2, start="xavier")
FIGURE = stage_figure(
    "yuksel2026/fig11",
    "two layers of the minimal attention learn the chain in the same stages",
    presets={
        "paper": paper(DEEP, MarkovChain(Groups((4, 4, 4), 1.8)), SLOW, n_train=27_000),
        "laptop": laptop(DEEP, optimizer=SLOW, batch=128),
        "smoke": smoke(DEEP.replace(heads=2), optimizer=SLOW),
    },
    seconds={"paper": 40000, "laptop": 54, "smoke": 10},
    printed=Printed(boundaries=(180, 370)),
    laptop="importance 1.7",
    one_layer=False,
)
