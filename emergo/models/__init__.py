"""Who learns."""

from ._attention import Attention
from ._chain_transformer import ChainBlock, ChainParameters, ChainTransformer
from ._minimal import Attended, MinimalAttention, MinimalLayer, MinimalParameters, Start
from ._toy import ToyAttention
from ._transformer import Activation, Initial, Mask, Norm, Parameters, Positions, Seen, Transformer, Watched

__all__ = [
    "Activation",
    "Attended",
    "Attention",
    "ChainBlock",
    "ChainParameters",
    "ChainTransformer",
    "Initial",
    "Mask",
    "MinimalAttention",
    "MinimalLayer",
    "MinimalParameters",
    "Norm",
    "Parameters",
    "Positions",
    "Seen",
    "Start",
    "ToyAttention",
    "Transformer",
    "Watched",
]
