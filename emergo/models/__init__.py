"""Models: attention in isolation, a Transformer, and the models of yuksel2026. All follow one contract, [`emergo.Model`][]."""

from ._attention import Attention
from ._chain_transformer import ChainParameters, ChainTransformer
from ._equinox import EquinoxModel
from ._minimal import MinimalAttention, MinimalLayer
from ._model import Model
from ._toy import ToyAttention, ToyParameters
from ._transformer import Transformer, TransformerParameters

__all__ = ["Attention", "ChainParameters", "ChainTransformer", "EquinoxModel", "MinimalAttention", "MinimalLayer", "Model"]
__all__ += ["ToyAttention", "ToyParameters", "Transformer", "TransformerParameters"]
