"""Training: many runs as one compiled program, with schedules, interventions, probes and
checkpoints."""

from ..core.contract import probe
from ..core.pytree import Schedule
from ._check import check_config, probe_curves
from ._checkpoint import CheckpointError, steps_in_checkpoint
from ._config import SEMANTICS, Config, Precision, Probe, Result, Run
from ._cost import TOGETHER
from ._gradients import gradient_probe
from ._interventions import Clamp, Freeze, Intervention, Replace, Scale
from ._optimizer import Optimizer
from ._parameters import (
    Trained,
    as_start,
    load_parameters,
    log_steps,
    resume,
    save_parameters,
)
from ._scheduler import plan_group
from ._schedules import (
    EarlyStopping,
    Ramp,
    Switch,
    WarmupCosine,
    When,
    WhenStuck,
    schedules_in,
)
from ._start import Start, find_starts, read_start, save_starts
from ._train import OutOfTime, Progress, groups_of, train

__all__ = [
    "SEMANTICS",
    "TOGETHER",
    "CheckpointError",
    "Clamp",
    "Config",
    "EarlyStopping",
    "Freeze",
    "Intervention",
    "Optimizer",
    "OutOfTime",
    "Precision",
    "Probe",
    "Progress",
    "Ramp",
    "Replace",
    "Result",
    "Run",
    "Scale",
    "Schedule",
    "Start",
    "Switch",
    "Trained",
    "WarmupCosine",
    "When",
    "WhenStuck",
    "as_start",
    "check_config",
    "find_starts",
    "gradient_probe",
    "groups_of",
    "load_parameters",
    "log_steps",
    "plan_group",
    "probe",
    "probe_curves",
    "read_start",
    "resume",
    "save_parameters",
    "save_starts",
    "schedules_in",
    "steps_in_checkpoint",
    "train",
]
