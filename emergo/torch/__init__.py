"""Watch the attention of a PyTorch model, head by head, while it trains.

Use it as `import emergo.torch as et`. It needs PyTorch (extra `torch`) and does not import JAX.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "emergo.torch needs PyTorch: pip install 'torch>=2.6', or '.[torch]' in a clone of emergo"
    )

from ._heads import HeadBatch
from ._watch import Watch, watch

__all__ = ["HeadBatch", "Watch", "watch"]
