"""emergo: when does a Transformer's attention become sparse, and what makes it happen sooner?

`import emergo as em` gives the names that a notebook needs. The rooms, in the order in which data flows through them: `tasks`,
`models` and `theory`, `measure`, `engine`, `studies`, `papers`, `report`. Each knows only those before it. `emergo.cli` is a
thin door to all of them.
"""

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._contract import Above, Batch, Below, Output, Spec, Tap, probe
    from ._errors import InputError
    from ._pytree import Schedule, option, per_run
    from .engine import (
        Clamp,
        Config,
        Freeze,
        Intervention,
        Optimizer,
        Ramp,
        Replace,
        Run,
        Scale,
        Switch,
        Trained,
        WarmupCosine,
        When,
        train,
    )
    from .measure import emergence, fit_law
    from .models import ChainTransformer, EquinoxModel, MinimalAttention, Model, ToyAttention, Transformer
    from .papers import figure
    from .studies import Fit, Runs, Slurm, Study
    from .tasks import Groups, MarkovChain, MarkovRegression, Recall, SingleLocation, Task

__version__ = "0.1.0"

_NAMES = {
    "_contract": ["Above", "Batch", "Below", "Output", "Spec", "Tap", "probe"],
    "_errors": ["InputError"],
    "_pytree": ["Schedule", "option", "per_run"],
    "engine": [
        *("Clamp", "Config", "Freeze", "Intervention", "Optimizer", "Ramp", "Replace", "Run", "Scale", "Switch", "Trained"),
        *("WarmupCosine", "When", "train"),
    ],
    "measure": ["emergence", "fit_law"],
    "models": ["ChainTransformer", "EquinoxModel", "MinimalAttention", "Model", "ToyAttention", "Transformer"],
    "papers": ["figure"],
    "studies": ["Fit", "Runs", "Slurm", "Study"],
    "tasks": ["Groups", "MarkovChain", "MarkovRegression", "Recall", "SingleLocation", "Task"],
}
__all__ = [  # noqa: RUF022 - by room
    "Above",
    "Batch",
    "Below",
    "Output",
    "Spec",
    "Tap",
    "probe",
    "InputError",
    "Schedule",
    "option",
    "per_run",
    "Clamp",
    "Config",
    "Freeze",
    "Intervention",
    "Optimizer",
    "Ramp",
    "Replace",
    "Run",
    "Scale",
    "Switch",
    "Trained",
    "WarmupCosine",
    "When",
    "train",
    "emergence",
    "fit_law",
    "ChainTransformer",
    "EquinoxModel",
    "MinimalAttention",
    "Model",
    "ToyAttention",
    "Transformer",
    "figure",
    "Fit",
    "Runs",
    "Slurm",
    "Study",
    "Groups",
    "MarkovChain",
    "MarkovRegression",
    "Recall",
    "SingleLocation",
    "Task",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports a name when it is asked for, so that commands that only read files do not wait for JAX."""
    for room, names in _NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(f".{room}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


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
