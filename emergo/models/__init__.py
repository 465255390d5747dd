"""Who learns."""

from ._attention import Attention
from ._toy import ToyAttention
from ._transformer import Activation, Initial, Mask, Norm, Parameters, Positions, Seen, Transformer, Watched

__all__ = [
    "Activation",
    "Attention",
    "Initial",
    "Mask",
    "Norm",
    "Parameters",
    "Positions",
    "Seen",
    "ToyAttention",
    "Transformer",
    "Watched",
]
