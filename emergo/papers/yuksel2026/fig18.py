"""Figure 18: the same stages of the full Transformer with SGD, slower."""

from ...engine import Optimizer
from ...models import ChainTransformer, MinimalAttention
from ...tasks import Groups, MarkovChain
from ._chains import laptop, paper, smoke
from ._stage_checks import Printed
from ._stage_figure import stage_figure

SGD = Optimizer("sgd", 0.2, clip=1.0, momentum=0.9)
FAST, SMALL = SGD.replace(learning_rate=4.0), MinimalAttention(scale=1e-4)
FIGURE = stage_figure(
    "yuksel2026/fig18",
    "SGD learns the chain in the same stages, slower",
    presets={
        "paper": paper(ChainTransformer(dropout_every=3, start="xavier"), MarkovChain(Groups((4, 4, 4), 2.0)), SGD, steps=7000),
        "laptop": laptop(SMALL, Groups(importance=2.0), FAST, steps=6000, seeds=1, batch=128),
        "smoke": smoke(optimizer=SGD),
    },
    seconds={"paper": 75000, "laptop": 46, "smoke": 8},
    printed=Printed(boundaries=(600, 4000)),
    laptop="the minimal attention instead of the Transformer, initial scale 1e-4, learning rate 4",
)
