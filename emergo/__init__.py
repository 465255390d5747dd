"""emergo: when does attention become sparse, and what makes it happen sooner?

`import emergo as em` provides the names for a notebook. The subpackages, each of which imports only
those above it:

- `core`: the contract between tasks, models and training; files, identities, random numbers.
- `tasks`, `models`, `theory`, `measure`: what is trained, what is predicted, what is measured.
- `training`, `store`, `study`: train many runs as one program, keep them, and plan grids of them.
- `papers`: the figures of the two papers and of our experiments.
- `forecasting`, `logs`, `torch`, `view`, `demo`: tools on top.
- `cli`: the `emergo` command.
"""

import os
import sys

# XLA's loader mistakes two compiler preferences for features that the processor lacks, and prints
# two long lines for every program that it reads from disk (jax issue 38445). JAX reads the variable
# when it is imported. With a GPU, keep XLA's messages: they explain problems with drivers.
if "jax" not in sys.modules and not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Import no modules here, not even `typing`: `emergo.cli` has to install its handler of interrupts
# before anything slow happens.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core.contract import Above, Batch, Below, Output, Readout, Spec, Tap, probe
    from .core.errors import InputError
    from .core.pytree import Schedule, option, per_run
    from .forecasting import forecast
    from .measure import emergence, fit_law
    from .models import (
        Attention,
        ChainTransformer,
        EquinoxModel,
        MinimalAttention,
        Model,
        ToyAttention,
        Transformer,
    )
    from .papers import figure
    from .study import Fit, Runs, Slurm, Study, concat
    from .tasks import (
        Groups,
        MarkovChain,
        MarkovRegression,
        Recall,
        SingleLocation,
        Task,
        Text,
        Variant,
        head_probe,
    )
    from .training import (
        Clamp,
        Config,
        EarlyStopping,
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
        resume,
        train,
    )

__version__ = "0.3.0"

__all__ = [
    "Above",
    "Attention",
    "Batch",
    "Below",
    "ChainTransformer",
    "Clamp",
    "Config",
    "EarlyStopping",
    "EquinoxModel",
    "Fit",
    "Freeze",
    "Groups",
    "InputError",
    "Intervention",
    "MarkovChain",
    "MarkovRegression",
    "MinimalAttention",
    "Model",
    "Optimizer",
    "Output",
    "Ramp",
    "Readout",
    "Recall",
    "Replace",
    "Run",
    "Runs",
    "Scale",
    "Schedule",
    "SingleLocation",
    "Slurm",
    "Spec",
    "Study",
    "Switch",
    "Tap",
    "Task",
    "Text",
    "ToyAttention",
    "Trained",
    "Transformer",
    "Variant",
    "WarmupCosine",
    "When",
    "WhenStuck",
    "__version__",
    "concat",
    "emergence",
    "figure",
    "fit_law",
    "forecast",
    "gradient_probe",
    "head_probe",
    "option",
    "per_run",
    "probe",
    "resume",
    "train",
]
_MODULES = (
    "core.errors",
    "core.contract",
    "core.pytree",
    "tasks",
    "models",
    "measure",
    "training",
    "study",
    "papers",
    "forecasting",
)


def __getattr__(name: str) -> "Any":
    """Import a name on first use, so that commands that only read files do not wait for JAX."""
    import importlib

    for module_name in _MODULES if name in __all__ else ():
        module = importlib.import_module(f".{module_name}", __name__)
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
