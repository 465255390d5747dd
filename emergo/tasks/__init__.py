"""What there is to learn."""

from collections.abc import Mapping

from ._groups import Groups, Strongest
from ._markov import ChainTruth, MarkovChain, MarkovRegression, RegressionBatch, divergence, entropy
from ._recall import Placement, Recall, RecallBatch, RecallTraits, RecallTruth
from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth
from ._supply import Supply

Task = SingleLocation | Recall
"""What the engine can train on."""
TASKS: Mapping[str, type[Task]] = {"single_location": SingleLocation, "recall": Recall}
"""The same by the names that files have for them; the first is meant where a file has none."""

__all__ = [
    "TASKS",
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
