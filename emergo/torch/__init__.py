"""Watch the attention of a PyTorch model, head by head, while it trains.

Use it as `import emergo.torch as et`. It needs PyTorch (extra `torch`) and does not import JAX.
`et.HuggingFaceWatch` and `et.LightningWatch` are callbacks; they import their libraries when they
are first used.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "emergo.torch needs PyTorch: pip install 'torch>=2.6', or '.[torch]' in a clone of emergo"
    )

from ._heads import HeadBatch
from ._watch import Watch, watch

if TYPE_CHECKING:
    from ._huggingface import HuggingFaceWatch as HuggingFaceWatch
    from ._lightning import LightningWatch as LightningWatch

__all__ = ["HeadBatch", "Watch", "watch"]
_CALLBACKS = {"HuggingFaceWatch": "._huggingface", "LightningWatch": "._lightning"}


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module 'emergo.torch' has no attribute '{name}'")
    return getattr(importlib.import_module(_CALLBACKS[name], __name__), name)
