"""What there is to learn."""

from ._groups import Groups, Strongest
from ._markov import ChainTruth, MarkovChain, MarkovRegression, RegressionBatch, divergence, entropy
from ._recall import Placement, Recall, RecallBatch, RecallTraits, RecallTruth
from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth
from ._supply import Supply

Task = SingleLocation | Recall
"""What the engine can train on."""

__all__ = [
    "Batch",
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
