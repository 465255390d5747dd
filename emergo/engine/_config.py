"""What a run is: a task, a model, an optimizer and how they are trained; a seed; and the identity that they have."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from .._contract import Threshold
from .._errors import InputError, unknown
from .._identity import canonical
from .._json import digest
from .._pytree import check_fields, option, replaced
from ..models import Model, Transformer
from ..tasks import Task
from ._interventions import Intervention
from ._optimizer import Optimizer
from ._schedules import schedules_in

SEMANTICS = 1
"""Raised only when the same config and seed give other numbers than before."""

_ADAM = Optimizer()
Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Probe = Callable[..., Any]
"""A function of (params, output, batch, truth, step) that returns named arrays."""


def default_precision() -> Precision:
    """bf16 products on a GPU, fp32 elsewhere; emergence times are the same within the seed spread (docs/REPRODUCTION.md)."""
    return "bf16" if jax.default_backend() == "gpu" else "fp32"


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run but for its seed.

    **Arguments:**

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

    ```python
    >>> em.Config(em.SingleLocation(length=32, dim=8), em.Transformer(layers=1), steps=2000).threshold
    0.1

    ```
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
        for name, kind in (("task", Task), ("model", Model), ("optimizer", Optimizer)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                article = "an" if name == "optimizer" else "a"
                raise InputError(f"Config.{name} must be {article} {kind.__name__}, got {value!r}")
        check_fields(self)
        if self.precision not in get_args(Precision):
            raise unknown("precision", str(self.precision), get_args(Precision))
        if self.precision not in self.model.precisions:
            allowed = ", ".join(self.model.precisions)
            raise InputError(f"{type(self.model).__name__} is trained in precision {allowed}; got {self.precision!r}")
        if not (isinstance(self.interventions, tuple) and all(isinstance(i, Intervention) for i in self.interventions)):
            raise InputError(f"Config.interventions must be a tuple of interventions, got {self.interventions!r}")
        if not (isinstance(self.probes, tuple) and all(map(callable, self.probes))):
            raise InputError(f"Config.probes must be a tuple of functions, got {self.probes!r}")
        self._check_threshold()
        if self.n_train is not None and schedules_in(self.task):
            kind = type(self.task).__name__
            raise InputError(f"a schedule of {kind} has no effect on a finite data set, which is drawn once; leave out n_train")

    def _check_threshold(self) -> None:
        learned = self.task.learned
        if learned is not None and not isinstance(learned, Threshold):
            raise InputError(f"{type(self.task).__name__}.learned must be em.Above(…), em.Below(…) or None, got {learned!r}")
        if self.threshold == "task":
            object.__setattr__(self, "threshold", None if learned is None else learned.number)
        elif self.threshold is not None and learned is None:
            raise InputError(f"{type(self.task).__name__} has no `learned`, so that a threshold means nothing; leave it out")
        if isinstance(self.threshold, float):
            self.task.check_threshold(self.threshold)

    def replace(self, **changes: Any) -> "Config":
        """A copy with other values of these fields; `task__dim` reaches into a part."""
        return replaced(self, changes)

    @property
    def varying(self) -> tuple[Any, ...]:
        """The parts whose per-run numbers may differ between runs of one program."""
        return (self.task, self.model, self.optimizer, self.interventions)

    @property
    def all_probes(self) -> tuple[Probe, ...]:
        """The task's own probes and those of the config."""
        return (*self.task.probes(), *self.probes)

    def describe(self) -> dict[str, Any]:
        """The config as the plain data that its identity is a hash of: what has its default is left out.

        Probes only measure: they are left out, unless a schedule reacts to what they measure, or they say (`part_of_run`) that
        a run with them is another one.
        """
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

    ```python
    >>> config = em.Config(em.SingleLocation(length=32, dim=8), precision="fp32")
    >>> em.Run(config, seed=0).identity == em.Run(config.replace(task__dim=16), seed=0).identity
    False

    ```
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
        """The plain data that the identity is a hash of."""
        return {"semantics": SEMANTICS, "config": self.config.describe(), "seed": self.seed}
