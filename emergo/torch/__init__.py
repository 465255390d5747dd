"""Watch a PyTorch model of your own while it trains: what its attention does, head by head, before
the loss tells.

`import emergo.torch as et`; needs PyTorch (extra `torch`). Nothing else of the package imports it,
and it does not import JAX.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "emergo.torch needs PyTorch: pip install 'torch>=2.6', or '.[torch]' in a clone of emergo"
    )

from ._watch import Watch, watch

__all__ = ["Watch", "watch"]
