"""What a run is: a task, a model, an optimizer and how they are trained, a seed, and their identity; and its result."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from .. import __version__
from .._contract import Spec, Threshold
from .._errors import InputError, naming
from .._identity import canonical
from .._json import digest
from .._pytree import check_fields, option, replaced
from ..measure import Emergence, State, emergence
from ..models import Model, Transformer
from ..tasks import Task
from ._interventions import Intervention
from ._optimizer import Optimizer
from ._schedules import schedules_in

SEMANTICS = 1  # raised only when the same config and seed give other numbers than before
_ADAM = Optimizer()
Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Probe = Callable[..., Mapping[str, Array]]  # of (params, output, batch, truth, step), and what it asks for
Varying = tuple[Task, Model, Optimizer, tuple[Intervention, ...]]  # what has numbers that differ between runs of a program


@runtime_checkable
class Preparing(Protocol):
    """A probe that is also given arrays of the run's own, which it makes before the run begins."""

    def prepare(self, run: "Run") -> Mapping[str, ArrayLike]: ...


def default_precision() -> Precision:
    """bf16 products on a GPU, fp32 elsewhere; emergence times are the same within the spread of seeds (docs/reproduction)."""
    return "bf16" if jax.default_backend() == "gpu" else "fp32"


def next_evaluation(step: int, eval_every: int = 25) -> int:
    """The step of a run's next evaluation: `eval_every` later, or 2% later in whole multiples of it where that is more."""
    return step + max(eval_every, step // 50 // eval_every * eval_every)


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run but for its seed.

    - `batch`: sequences of a step.
    - `precision`: of matrix products: `"fp32"`, `"tf32"` (needs a GPU) or `"bf16"`; parameters and optimizer state are fp32.
      For models that allow it also `"fp64"`: everything but the random draws in 64 bits. By default bf16 on a GPU, else fp32.
    - `steps`: the most there may be.
    - `threshold`: a run ends when what tells that it has learned (`task.learned`) has come to this number. `"task"`: the task's
      own number; None: no threshold, all steps are trained.
    - `overtrain`: how many times as many more steps a run goes on for after that.
    - `n_test`: sequences of the fixed test set of a run.
    - `n_train`: how many training sequences there are, gone through in epochs; None: every step draws new ones.
    - `interventions`: what writes at taps of the forward pass, see [`emergo.engine.Intervention`][].
    - `probes`: what is measured in every evaluation besides the task's own probes.

    >>> em.Config(em.SingleLocation(length=32, dim=8), em.Transformer(layers=1), steps=2000).threshold
    0.1
    """

    task: Task
    model: Model = Transformer()
    optimizer: Optimizer = _ADAM
    batch: int = option(32, low=1)
    precision: Precision = dataclasses.field(default_factory=default_precision)
    steps: int = option(50_000, low=1)
    threshold: float | Literal["task"] | None = "task"
    overtrain: float = option(0.0, low=0.0)
    n_test: int = option(128, low=1)
    n_train: int | None = option(None, low=1)
    interventions: tuple[Intervention, ...] = ()
    probes: tuple[Probe, ...] = ()

    def __post_init__(self) -> None:
        for part, kind, named in ((self.task, Task, "a"), (self.model, Model, "a"), (self.optimizer, Optimizer, "an")):
            if not isinstance(part, kind):
                raise InputError(f"Config.{kind.__name__.lower()} must be {named} {kind.__name__}, got {part!r}")
        check_fields(self)
        if self.precision not in self.model.precisions:
            allowed = ", ".join(self.model.precisions)
            raise InputError(f"{type(self.model).__name__} is trained in precision {allowed}; got {self.precision!r}")
        if not (isinstance(self.interventions, tuple) and all(isinstance(i, Intervention) for i in self.interventions)):
            raise InputError(f"Config.interventions must be a tuple of interventions, got {self.interventions!r}")
        if not (isinstance(self.probes, tuple) and all(map(callable, self.probes))):
            raise InputError(f"Config.probes must be a tuple of functions, got {self.probes!r}")
        task, learned = type(self.task).__name__, self.task.learned
        with naming(f"{task}.spec"):
            spec = self.task.spec
        if not isinstance(spec, Spec):
            raise InputError(f"{task}.spec must be an em.Spec(length=…, inputs=…, outputs=…), got a {type(spec).__name__}")
        for name, size in zip(("length", "inputs", "outputs"), spec, strict=False):
            if not isinstance(size, int | np.integer) or size < 1:
                raise InputError(f"{task}.spec: {name} must be a whole number of at least 1, got {size!r}")
        if self.n_train is not None and schedules_in(self.task):
            raise InputError(f"a schedule of {task} has no effect on a finite data set, which is drawn once; leave out n_train")
        if learned is not None and not isinstance(learned, Threshold):
            raise InputError(f"{task}.learned must be em.Above(…), em.Below(…) or None, got {learned!r}")
        if self.threshold == "task":
            object.__setattr__(self, "threshold", None if learned is None else learned.number)
        elif self.threshold is not None and learned is None:
            raise InputError(f"{task} has no `learned`, so that a threshold means nothing; leave it out")
        if isinstance(self.threshold, float):
            self.task.check_threshold(self.threshold)

    def replace(self, **changes: object) -> "Config":
        """A copy with other values of these fields; `task__dim` reaches into a part."""
        return replaced(self, changes)

    @property
    def varying(self) -> Varying:
        return (self.task, self.model, self.optimizer, self.interventions)

    @property
    def all_probes(self) -> tuple[Probe, ...]:
        return (*self.task.probes(), *self.probes)

    def describe(self) -> dict[str, Any]:
        """The plain data that the identity is a hash of: what has its default is left out. So are probes, which only measure,
        unless a schedule reacts to what they measure, or they say (`part_of_run`) that a run with them is another one."""
        reacts = any(schedule.metrics() for schedule in schedules_in(self.varying))
        probes = tuple(p for p in self.probes if reacts or getattr(p, "part_of_run", False))
        data = {name: canonical(getattr(self, name)) for name in ("task", "model", "optimizer", "precision", "threshold")}
        for field in dataclasses.fields(self):
            value = probes if field.name == "probes" else getattr(self, field.name)
            if field.name not in data and value != field.default:
                data[field.name] = canonical(value)
        return data


@dataclasses.dataclass(frozen=True)
class Run:
    """A config and a seed: everything that a run is a function of.

    >>> config = em.Config(em.SingleLocation(length=32, dim=8), precision="fp32")
    >>> em.Run(config, seed=0).identity == em.Run(config.replace(task__dim=16), seed=0).identity
    False
    """

    config: Config
    seed: int = option(low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        if not isinstance(self.config, Config):
            raise InputError(f"Run.config must be a Config, got {self.config!r}")
        check_fields(self)

    @functools.cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits: a hash of the config, the seed and [`emergo.engine.SEMANTICS`][]."""
        return digest(self.describe())

    def describe(self) -> dict[str, Any]:
        return {"semantics": SEMANTICS, "config": self.config.describe(), "seed": self.seed}


_NONE = Emergence(math.nan, math.nan, math.nan, "trained")
_VERSIONS = {"version": __version__, "jax": jax.__version__}


class Result(NamedTuple):
    """One finished run: `reached` its threshold; `censored`: came to its last step without; `trained` to its last step, with no
    threshold asked for; `failed`: its loss was no longer finite, or it could not be trained. Curves have one row for each
    evaluation, of `step`, `loss` (test), `train_loss` (mean since the evaluation before), metrics and what probes measured."""

    run: Run
    state: State
    plateau: Emergence  # when it learned: the step at which `task.learned` came to the run's threshold, with an interval
    steps: int
    failed_step: int | None
    provenance: Mapping[str, str]
    curves: Mapping[str, np.ndarray] | None  # None where only the outcome was kept
    reason: str | None = None  # why it failed

    def __repr__(self) -> str:
        learned = f" at step {self.plateau.time:.6g} [{self.plateau.low:g}, {self.plateau.high:g}]"
        words = f"{self.state}{learned if self.state == 'reached' else ''}" + (f" ({self.reason})" if self.reason else "")
        return f"Result({self.run.identity}, seed {self.run.seed}: {words}, {self.steps} steps)"

    @classmethod
    def measured(cls, run: Run, curves: Mapping[str, np.ndarray], failed_step: int | None, device: str) -> "Result":
        """What became of a run, from its curves."""
        steps = int(curves["step"][-1])
        learned, threshold = run.config.task.learned, run.config.threshold
        plateau, state, reason = _NONE, "trained", None
        if learned is not None and isinstance(threshold, float):
            plateau = emergence(curves["step"], curves[learned.metric], threshold, learned.direction)
            state = plateau.state
        if failed_step is not None and state != "reached":
            plateau, state, reason = _NONE, "failed", f"the loss was not finite at step {failed_step}"
        plateau, provenance = plateau._replace(state=state), {**_VERSIONS, "device": device}
        return cls(run, state, plateau, steps, failed_step, provenance, dict(curves), reason)

    @classmethod
    def untrained(cls, run: Run, reason: str, device: str) -> "Result":
        """A run that could not be trained at all."""
        return cls(run, "failed", _NONE._replace(state="failed"), 0, None, {**_VERSIONS, "device": device}, None, reason)
