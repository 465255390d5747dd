"""Models: attention in isolation, a Transformer, and the models of yuksel2026.

All models implement the same contract, [`emergo.Model`][]. Optimised forward passes live in
`emergo.models.fast`.
"""

from ._assembly import Assembly
from ._attention import Attention
from ._chain_transformer import ChainParameters, ChainTransformer
from ._equinox import EquinoxModel
from ._minimal import MinimalAttention, MinimalLayer
from ._model import Model
from ._toy import ToyAttention, ToyParameters
from ._transformer import Transformer, TransformerParameters

__all__ = [
    "Assembly",
    "Attention",
    "ChainParameters",
    "ChainTransformer",
    "EquinoxModel",
    "MinimalAttention",
    "MinimalLayer",
    "Model",
    "ToyAttention",
    "ToyParameters",
    "Transformer",
    "TransformerParameters",
    "default_model",
]


def default_model() -> Model:
    """Return the model that is trained when a configuration names none: the Transformer of
    zucchet2025."""
    return Transformer()
