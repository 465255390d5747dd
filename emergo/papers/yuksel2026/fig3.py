"""Figure 3: the full Transformer learns the chain in stages, also seen from predictors of restricted context."""

import numpy as np

from ...models import ChainTransformer
from ...studies import Study
from ...tasks import Groups, MarkovChain
from .._figure import Check
from ._chains import FULL, ChainRuns, laptop, paper, smoke
from ._contexts import ContextPredictors
from ._stage_checks import Printed, geometric_means
from ._stage_figure import stage_figure

WIDE = Groups((4, 4, 4))
PAPER = paper(ChainTransformer(dropout_every=3, start="xavier"), MarkovChain(WIDE), FULL)
PROBE = ContextPredictors((4, 8, 12))
SMALL = laptop(
    ChainTransformer(width=96, hidden=32, dropout=0.0),
    WIDE,
    FULL.replace(learning_rate=2e-3),
    batch=64,
    steps=2000,
    n_test=256,
    seeds=1,
)


def first_compared(study: Study) -> dict[str, Study]:
    """A study of which only the first run is compared with the predictors of restricted context, which take longer to train."""
    first, *others = study.seeds
    return {"compared": study.replace(seeds=[first], probes=(PROBE,)), "others": study.replace(seeds=others)}


def context_checks(runs: ChainRuns) -> list[Check]:
    """The student passes the predictors of restricted context one after another."""
    compared = [curve for curve in runs.curves if "kl_contexts" in curve]
    if not compared:
        return []
    nearest = np.array([curve["step"][curve["kl_contexts"].argmin(0)] for curve in compared])
    final = np.mean([curve["kl_contexts"][-1] for curve in compared], 0)
    return [
        Check(
            "steps at which the student is nearest to predictors of short, ... and whole context, geometric mean over runs",
            geometric_means(nearest),
            "each stage corresponds to the acquisition of information from a subset of positions",
            bool(np.all(np.diff(nearest) > 0)),
        ),
        Check(
            "KL from these predictors at the end, mean over these runs",
            final.tolist(),
            None,
            bool(np.all(np.diff(final) < 0)),
            "less for longer context",
        ),
    ]


FIGURE = stage_figure(
    "yuksel2026/fig3",
    "the full Transformer learns the chain in stages, also seen from predictors of restricted context",
    presets={
        "paper": first_compared(PAPER),
        "laptop": SMALL.replace(probes=(PROBE,)),
        "smoke": smoke(seeds=1, probes=(ContextPredictors((1, 2)),)),
    },
    seconds={"paper": 40000, "laptop": 102, "smoke": 15},
    printed=Printed(boundaries=(65, 450), final_kl=(3.05, 0.78, 0.19), plateau_levels=(0.45,)),
    more=context_checks,
    laptop="width 96, PyTorch's start, no dropout, learning rate 2e-3",
)
