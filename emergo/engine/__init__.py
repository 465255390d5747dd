"""Training: many runs as one compiled program, with schedules, interventions, probes and checkpoints."""

from .._contract import Above, Below, Tap, Threshold, probe
from .._pytree import Schedule
from ._check import check_config, probe_curves
from ._checkpoint import CheckpointError
from ._config import SEMANTICS, Config, Precision, Run, default_precision
from ._cost import GroupPlan, plan_group
from ._interventions import Clamp, Freeze, Intervention, Replace, Scale
from ._optimizer import Optimizer
from ._parameters import Trained, load_parameters, log_steps, save_parameters, unpadded
from ._result import Result
from ._schedules import Ramp, Switch, WarmupCosine, When
from ._toy import ToyCurves, train_toy
from ._train import OutOfTime, Progress, groups_of, train

__all__ = [
    "SEMANTICS",
    "Above",
    "Below",
    "CheckpointError",
    "Clamp",
    "Config",
    "Freeze",
    "GroupPlan",
    "Intervention",
    "Optimizer",
    "OutOfTime",
    "Precision",
    "Progress",
    "Ramp",
    "Replace",
    "Result",
    "Run",
    "Scale",
    "Schedule",
    "Switch",
    "Tap",
    "Threshold",
    "ToyCurves",
    "Trained",
    "WarmupCosine",
    "When",
    "check_config",
    "default_precision",
    "groups_of",
    "load_parameters",
    "log_steps",
    "plan_group",
    "probe",
    "probe_curves",
    "save_parameters",
    "train",
    "train_toy",
    "unpadded",
]
