"""What there is to learn."""

from ._groups import Groups, Strongest
from ._markov import ChainTraits, ChainTruth, MarkovChain, MarkovRegression, RegressionBatch, divergence, entropy
from ._recall import Placement, Recall, RecallBatch, RecallTraits, RecallTruth
from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth
from ._supply import Supply

Task = SingleLocation | Recall | MarkovChain
"""What the engine can train on."""

__all__ = [
    "Batch",
    "ChainTraits",
    "ChainTruth",
    "Groups",
    "MarkovChain",
    "MarkovRegression",
    "Placement",
    "Position",
    "Recall",
    "RecallBatch",
    "RecallTraits",
    "RecallTruth",
    "RegressionBatch",
    "SingleLocation",
    "Special",
    "Strongest",
    "Supply",
    "Task",
    "Traits",
    "Truth",
    "divergence",
    "entropy",
]
