"""emergo: when does a Transformer's attention become sparse, and what makes it happen sooner?

`import emergo as em` gives the names that a notebook needs. The rooms, in the order in which data flows through them: `tasks`,
`models` and `theory`, `measure`, `engine`, `studies`, `papers`, `report`, `view`. Each knows only those before it. `emergo.cli`
is a thin door to all of them. `emergo.torch`, a room of its own, watches PyTorch models; it needs PyTorch and no other room.
"""

import os
import sys

# XLA's loader takes preferences of its compiler for features that the processor lacks, and prints two long lines for every
# program that it reads from disk (jax issue 38445). The variable is read when JAX is imported. XLA may speak where there is a
# GPU: its errors then say what is wrong with drivers and libraries.
if "jax" not in sys.modules and not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Nothing is imported here that Python has not imported itself, not even from `typing`: an interrupt is answered in a line from
# `emergo.cli` on.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
        WhenStuck,
        gradient_probe,
        train,
    )
    from .measure import emergence, fit_law, forecast
    from .models import ChainTransformer, EquinoxModel, MinimalAttention, Model, ToyAttention, Transformer
    from .papers import figure
    from .studies import Fit, Runs, Slurm, Study
    from .tasks import Groups, MarkovChain, MarkovRegression, Recall, SingleLocation, Task

__version__ = "0.2.0"

__all__ = ["Above", "Batch", "Below", "InputError", "Output", "Schedule", "Spec", "Tap", "option", "per_run", "probe"]
__all__ += ["Groups", "MarkovChain", "MarkovRegression", "Recall", "SingleLocation", "Task"]
__all__ += ["ChainTransformer", "EquinoxModel", "MinimalAttention", "Model", "ToyAttention", "Transformer"]
__all__ += ["emergence", "fit_law", "forecast"]
__all__ += ["Clamp", "Config", "Freeze", "Intervention", "Optimizer", "Ramp", "Replace", "Run", "Scale", "Switch", "Trained"]
__all__ += ["WarmupCosine", "When", "WhenStuck", "gradient_probe", "train"]
__all__ += ["Fit", "Runs", "Slurm", "Study", "__version__", "figure"]
_ROOMS = ("_errors", "_contract", "_pytree", "tasks", "models", "measure", "engine", "studies", "papers")


def __getattr__(name: str) -> "Any":
    """Imports a name when it is asked for, so that commands that only read files do not wait for JAX."""
    import importlib

    for room in _ROOMS if name in __all__ else ():  # a room imports those before it anyway
        module = importlib.import_module(f".{room}", __name__)
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
