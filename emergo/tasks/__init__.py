"""What there is to learn."""

from ._recall import Placement, Recall, RecallBatch, RecallTraits, RecallTruth
from ._single_location import Batch, Position, SingleLocation, Special, Traits, Truth

Task = SingleLocation | Recall
"""What the engine can train on."""

__all__ = [
    "Batch",
    "Placement",
    "Position",
    "Recall",
    "RecallBatch",
    "RecallTraits",
    "RecallTruth",
    "SingleLocation",
    "Special",
    "Task",
    "Traits",
    "Truth",
]
