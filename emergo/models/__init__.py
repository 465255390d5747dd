"""Who learns."""

from ._attention import Attention
from ._chain_transformer import ChainBlock, ChainParameters, ChainTransformer
from ._minimal import Attended, MinimalAttention, MinimalLayer, MinimalParameters, Start
from ._toy import ToyAttention
from ._transformer import Activation, Initial, Mask, Norm, Parameters, Positions, Seen, Transformer, Watched

ChainModel = MinimalAttention | ChainTransformer
"""What the engine can train on a Markov chain."""
Model = Transformer | ChainModel
"""What the engine can train."""

__all__ = [
    "Activation",
    "Attended",
    "Attention",
    "ChainBlock",
    "ChainModel",
    "ChainParameters",
    "ChainTransformer",
    "Initial",
    "Mask",
    "MinimalAttention",
    "MinimalLayer",
    "MinimalParameters",
    "Model",
    "Norm",
    "Parameters",
    "Positions",
    "Seen",
    "Start",
    "ToyAttention",
    "Transformer",
    "Watched",
]
