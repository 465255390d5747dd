"""Training: many runs as one compiled program, with schedules, interventions, probes and
checkpoints."""

from ..core.contract import probe
from ..core.pytree import Schedule
from ._check import check_config, probe_curves
from ._checkpoint import CheckpointError
from ._config import SEMANTICS, Config, Precision, Probe, Result, Run
from ._cost import TOGETHER
from ._gradients import gradient_probe
from ._interventions import Clamp, Freeze, Intervention, Replace, Scale
from ._optimizer import Optimizer
from ._parameters import Trained, load_parameters, log_steps, save_parameters
from ._scheduler import plan_group
from ._schedules import Ramp, Switch, WarmupCosine, When, WhenStuck, schedules_in
from ._train import OutOfTime, Progress, groups_of, train

__all__ = [
    "SEMANTICS",
    "TOGETHER",
    "CheckpointError",
    "Clamp",
    "Config",
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
    "Switch",
    "Trained",
    "WarmupCosine",
    "When",
    "WhenStuck",
    "check_config",
    "gradient_probe",
    "groups_of",
    "load_parameters",
    "log_steps",
    "plan_group",
    "probe",
    "probe_curves",
    "save_parameters",
    "schedules_in",
    "train",
]
