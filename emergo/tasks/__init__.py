"""Tasks: single-location regression, associative recall, Markov chains and real text, and their
base class."""

from ._cross_entropy import answer_tokens, token_losses
from ._groups import Groups
from ._markov import ChainTruth, MarkovChain, MarkovRegression, divergence
from ._recall import Recall
from ._single_location import SingleLocation, Truth
from ._task import Task, Variant, head_probe
from ._text import Text, find_data

__all__ = [
    "ChainTruth",
    "Groups",
    "MarkovChain",
    "MarkovRegression",
    "Recall",
    "SingleLocation",
    "Task",
    "Text",
    "Truth",
    "Variant",
    "answer_tokens",
    "default_task",
    "divergence",
    "find_data",
    "head_probe",
    "token_losses",
]


def default_task() -> type[Task]:
    """Return the type of task that is trained when a study file names none."""
    return SingleLocation
