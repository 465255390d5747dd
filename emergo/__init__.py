"""emergo: when does a Transformer's attention become sparse, and what makes it happen sooner?

The rooms, in the order in which data flows through them: `tasks` and `models`, `theory`, `engine`, `measure`, `studies`,
`papers`, `report`. Each knows only the rooms before it. `emergo.cli` is a thin door to all of them.
"""

import warnings
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"

try:
    _jaxlib = version("jaxlib")
except PackageNotFoundError:
    _jaxlib = ""
if _jaxlib == "0.10.2":
    warnings.warn(
        "jaxlib 0.10.2 returns wrong numbers on the CPU for some fused reductions (jax issue 39103); install another version",
        RuntimeWarning,
        stacklevel=2,
    )
__all__ = ["__version__"]
