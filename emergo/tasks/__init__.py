"""Tasks: what there is to learn. Single-location regression, associative recall and Markov chains, and their base class."""

from ._groups import Groups, Strongest
from ._markov import ChainTruth, MarkovChain, MarkovRegression, divergence, entropy
from ._recall import Placement, Recall
from ._single_location import Position, SingleLocation, Special, Truth
from ._task import Task, Variant

__all__ = [
    "ChainTruth",
    "Groups",
    "MarkovChain",
    "MarkovRegression",
    "Placement",
    "Position",
    "Recall",
    "SingleLocation",
    "Special",
    "Strongest",
    "Task",
    "Truth",
    "Variant",
    "divergence",
    "entropy",
]
