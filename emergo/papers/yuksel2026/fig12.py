"""Figure 12: two layers of the full Transformer learn the chain in the same stages."""

from ...models import ChainTransformer
from ...tasks import Groups, MarkovChain
from ._chains import FULL, laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

WIDE = Groups((4, 4, 4))
PAPER = paper(ChainTransformer(layers=2, dropout_every=3, start="xavier"), MarkovChain(WIDE), FULL.replace(learning_rate=1e-3))
SMALL = laptop(
    ChainTransformer(layers=2, width=48, hidden=32, dropout=0.0),
    WIDE,
    FULL.replace(learning_rate=2e-3),
    batch=64,
    steps=2500,
    n_test=256,
    seeds=1,
)
TINY = smoke(ChainTransformer(heads=2, width=8, hidden=8, layers=2, dropout=0.0), optimizer=FULL.replace(learning_rate=3e-2))
FIGURE = stage_figure(
    "yuksel2026/fig12",
    "two layers of the full Transformer learn the chain in the same stages",
    presets={"paper": PAPER, "laptop": SMALL, "smoke": TINY},
    seconds={"paper": 45000, "laptop": 54, "smoke": 15},
    printed=Printed(boundaries=(70, 200)),
    laptop="width 48, PyTorch's start, no dropout, learning rate 2e-3",
    one_layer=False,
)
