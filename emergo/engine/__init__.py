"""Training: many runs as one compiled program, with schedules, interventions, probes and checkpoints."""

from .._contract import probe
from .._pytree import Schedule
from ._check import check_config, probe_curves
from ._checkpoint import CheckpointError
from ._config import SEMANTICS, Config, Precision, Probe, Result, Run
from ._cost import TOGETHER, plan_group
from ._curvature import Remaining, escape_rate, remaining_steps
from ._gradients import gradient_probe
from ._interventions import Clamp, Freeze, Intervention, Replace, Scale
from ._optimizer import Optimizer
from ._parameters import Trained, load_parameters, log_steps, save_parameters, unpadded
from ._schedules import Ramp, Switch, WarmupCosine, When, WhenStuck
from ._toy import train_toy
from ._train import OutOfTime, Progress, groups_of, train

__all__ = ["SEMANTICS", "TOGETHER", "Config", "Optimizer", "Precision", "Probe", "Result", "Run", "check_config", "groups_of"]
__all__ += ["plan_group", "probe"]
__all__ += ["Ramp", "Schedule", "Switch", "WarmupCosine", "When", "WhenStuck"]
__all__ += ["Clamp", "Freeze", "Intervention", "Replace", "Scale"]
__all__ += ["CheckpointError", "OutOfTime", "Progress", "gradient_probe", "probe_curves", "train", "train_toy"]
__all__ += ["Trained", "load_parameters", "log_steps", "save_parameters", "unpadded"]
__all__ += ["Remaining", "escape_rate", "remaining_steps"]
