"""What there is to learn."""

from ._groups import Groups, Strongest
from ._markov import ChainTruth, MarkovChain, MarkovRegression, RegressionBatch, divergence, entropy
from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth
from ._supply import Supply

__all__ = [
    "Batch",
    "ChainTruth",
    "Groups",
    "MarkovChain",
    "MarkovRegression",
    "Position",
    "RegressionBatch",
    "SingleLocation",
    "Special",
    "Strongest",
    "Supply",
    "Traits",
    "Truth",
    "divergence",
    "entropy",
]
