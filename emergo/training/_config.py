"""Configs, runs and results.

A `Config` holds a task, a model, an optimizer and the options of training. A `Run` is a config and
a seed, and its identity is a hash of both. A `Result` is a finished run.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from .. import __version__
from ..core.contract import Spec, Threshold
from ..core.curves import find_curve
from ..core.errors import InputError, naming
from ..core.identity import canonical, type_name
from ..core.json import as_cell, digest, to_jsonable
from ..core.pytree import Pytree, Schedule, check_fields, fields, leaf_fields, option, replaced
from ..core.source import source_digests
from ..measure import Emergence, State, emergence
from ..models import Model, default_model
from ..tasks import Task
from ._interventions import Intervention
from ._optimizer import Optimizer
from ._schedules import schedules_in
from ._start import Start

SEMANTICS = 1
"""Version of the numbers: raised when the same config and seed give other numbers than before."""
_MODEL = default_model()
_OPTIMIZER = Optimizer()
Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Probe = Callable[..., Mapping[str, Array]]
"""A function of (params, output, batch, truth, step), and of what [`emergo.probe`][] declares.

If it has a method `prepare(run)`, that returns a dictionary of named arrays before the run starts.
Every call of the probe receives them as its last argument."""


class Varying(NamedTuple):
    """The parts of a config that hold per-run numbers."""

    task: Task
    model: Model
    optimizer: Optimizer
    interventions: tuple[Intervention, ...]
    stop: Any  # a schedule, its value at a step, or None


def default_precision() -> Precision:
    """Return bf16 on a GPU, fp32 elsewhere.

    Emergence times agree within the spread of seeds (docs/reproduction).
    """
    return "bf16" if jax.default_backend() == "gpu" else "fp32"


def next_evaluation(step: int, eval_every: int = 25) -> int:
    """Return the step of the next evaluation.

    It is `eval_every` later, or 2% later, rounded down to a multiple of `eval_every`, if that is
    more.
    """
    return step + max(eval_every, step // 50 // eval_every * eval_every)


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that defines a training run, except its seed.

    **Arguments:**

    - `task`, `model`, `optimizer`: the parts of the run.
    - `batch`: sequences per step.
    - `precision`: precision of matrix products: `"fp32"`, `"tf32"` (needs a GPU) or `"bf16"`.
      Parameters and optimizer state are fp32. Some models also allow `"fp64"`: 64 bits for
      everything except random draws. The default is bf16 on a GPU, else fp32.
    - `steps`: the largest number of steps.
    - `threshold`: stop when the metric `task.learned` crosses this value. `"task"` uses the value
      of the task; None trains all steps.
    - `overtrain`: further steps after the threshold, as a multiple of the steps before it.
    - `n_test`: sequences in the test set of a run.
    - `n_train`: sequences in the training set, which is read in epochs. None draws new sequences in
      every step. If the task has finite `data`, a run trains on `n_train` random sequences of it
      (by default on all but `n_test`) and is tested on `n_test` of the others. Tasks with a corpus
      take no `n_train`.
    - `interventions`: changes at taps of the forward pass; see [`emergo.training.Intervention`][].
      Evaluations run under the interventions of their step, too.
    - `probes`: measurements in every evaluation, in addition to the probes of the task.
    - `stop`: a schedule that ends the run at the first evaluation after which its value is
      positive, such as [`emergo.training.EarlyStopping`][].
    - `start`: parameters to start from; see [`emergo.training.Start`][]. None: `model.init`.

    >>> task, model = em.SingleLocation(length=32, dim=8), em.Transformer(layers=1)
    >>> em.Config(task, model, steps=2000).threshold
    0.1
    """

    task: Task
    model: Model = _MODEL
    optimizer: Optimizer = _OPTIMIZER
    batch: int = option(32, low=1)
    precision: Precision = dataclasses.field(default_factory=default_precision)
    steps: int = option(50_000, low=1)
    threshold: float | Literal["task"] | None = "task"
    overtrain: float = option(0.0, low=0.0)
    n_test: int = option(128, low=1)
    n_train: int | None = option(None, low=1)
    interventions: tuple[Intervention, ...] = ()
    probes: tuple[Probe, ...] = ()
    stop: Schedule | None = None
    start: Start | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.precision not in self.model.precisions:
            allowed = ", ".join(self.model.precisions)
            raise InputError(
                f"{type(self.model).__name__} is trained in precision {allowed}; got "
                f"{self.precision!r}"
            )
        if not all(isinstance(one, Intervention) for one in self.interventions):
            raise InputError(
                f"Config.interventions must be a tuple of interventions, got {self.interventions!r}"
            )
        if not all(map(callable, self.probes)):
            raise InputError(f"Config.probes must be a tuple of functions, got {self.probes!r}")
        task = type(self.task).__name__
        learned = self.task.learned
        with naming(f"{task}.spec"):
            spec = self.task.spec
        sizes = spec[:3] if isinstance(spec, Spec) else [None]
        if not all(isinstance(size, int | np.integer) and size >= 1 for size in sizes):
            raise InputError(
                f"{task}.spec must be an em.Spec(length=…, inputs=…, outputs=…) of whole numbers "
                f"of at least 1, got {spec!r}"
            )
        if self.task.predicts_next and self.model.looks_ahead:
            raise InputError(
                f"{task} predicts every next token, which {type(self.model).__name__} without a "
                f"mask can see; choose mask='causal'"
            )
        if self.n_train is not None and self.task.has_corpus:
            raise InputError(
                f"{task} draws from its whole corpus; leave out n_train, or give a smaller corpus"
            )
        if self.n_train is not None and not self.task.finite and schedules_in(self.task):
            raise InputError(f"a schedule of {task} has no effect on a finite data set")
        if learned is not None and not isinstance(learned, Threshold):
            raise InputError(
                f"{task}.learned must be em.Above(…), em.Below(…) or None, got {learned!r}"
            )
        if self.threshold == "task":
            object.__setattr__(self, "threshold", None if learned is None else learned.number)
        elif self.threshold is not None and learned is None:
            raise InputError(f"{task} has no `learned`; leave out the threshold")
        if isinstance(self.threshold, float):
            self.task.check_threshold(self.threshold)

    def replace(self, **changes: object) -> "Config":
        """Return a copy with other values of these fields; `task__dim` is a field of the task."""
        return replaced(self, changes)

    @property
    def varying(self) -> Varying:
        return Varying(self.task, self.model, self.optimizer, self.interventions, self.stop)

    @property
    def all_probes(self) -> tuple[Probe, ...]:
        return (*self.task.probes(), *self.probes)

    def describe(self) -> dict[str, Any]:
        """Return the plain data that the identity is a hash of.

        Fields with their default are left out. So are probes, because they only measure, unless a
        schedule reacts to measurements or a probe sets `part_of_run`.
        """
        reacts = any(schedule.metrics() for schedule in schedules_in(self.varying))
        probes = tuple(p for p in self.probes if reacts or getattr(p, "part_of_run", False))
        data = {
            name: canonical(getattr(self, name))
            for name in ("task", "model", "optimizer", "precision", "threshold")
        }
        for field in dataclasses.fields(self):
            value = probes if field.name == "probes" else getattr(self, field.name)
            if field.name not in data and value != field.default:
                data[field.name] = canonical(value)
        return data

    def columns(self) -> dict[str, Any]:
        """Return the fields as cells of a table row; schedules and lists become text."""
        columns: dict[str, Any] = {}
        for part in (self.task, self.model):
            named = {path.rpartition(".")[2]: value for path, value in leaf_fields(part)}
            # A part in the place of a plain value, such as a user's form of attention.
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, Pytree) and isinstance(field.default, str):
                    named[field.name] = value
            columns = columns | named | columns  # a field of the task hides one of the model
        for name in ("task", "model"):
            columns.setdefault(name, type_name(type(getattr(self, name))))
        columns["optimizer"] = self.optimizer.label
        columns["learning_rate"] = self.optimizer.learning_rate
        columns |= self.optimizer.given
        columns |= {name: getattr(self, name) for name in ("batch", "precision", "threshold")}
        optional = ("n_train", "overtrain", "interventions", "stop", "start")
        columns |= {name: value for name in optional if (value := getattr(self, name))}
        return {
            name: str(list(value)) if isinstance(value, tuple) else as_cell(value)
            for name, value in columns.items()
        }

    def sources(self) -> dict[str, str]:
        """Return digests of the source code of user-defined classes and functions, by name."""
        schedules = schedules_in(self.varying)
        objects: list[Any] = [
            type(part) for part in (self.task, self.model, *self.interventions, *schedules)
        ]
        objects += filter(callable, (*self.probes, self.optimizer.name))
        for _, value in leaf_fields(self):
            objects += filter(callable, (value,))
        return dict(source for one in dict.fromkeys(objects) for source in source_digests(one))

    def probe_versions(self) -> dict[str, int]:
        """Return the version of each extra probe by its name."""
        named = {getattr(p, "__qualname__", type(p).__qualname__): p for p in self.probes}
        return {name: int(getattr(p, "version", 1)) for name, p in named.items()}


@dataclasses.dataclass(frozen=True)
class Run:
    """A config and a seed. The numbers of a run are a function of these two.

    >>> config = em.Config(em.SingleLocation(length=32, dim=8), precision="fp32")
    >>> em.Run(config, seed=0).identity == em.Run(config.replace(task__dim=16), seed=0).identity
    False
    """

    config: Config
    seed: int = option(low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        check_fields(self)

    @functools.cached_property
    def identity(self) -> str:
        """A hash of config, seed and [`emergo.training.SEMANTICS`][] in 16 hexadecimal digits."""
        return digest(self.describe())

    def describe(self) -> dict[str, Any]:
        config = self.config.describe()
        if self.config.start is not None:
            config["start"] = canonical(self.config.start.of(self.seed))
        return {"semantics": SEMANTICS, "config": config, "seed": self.seed}


_NONE = Emergence(math.nan, math.nan, math.nan, "trained")
_VERSIONS: dict[str, Any] = {"version": __version__, "jax": jax.__version__}


class Result(NamedTuple):
    """A finished run.

    - `state`: `reached` if the run crossed its threshold, `censored` if it did not, `trained` if it
      had no threshold, and `failed` if its loss was not finite or it could not be trained.
    - `plateau`: the step at which `task.learned` crossed the threshold, with an interval.
    - `steps`: the last step.
    - `failed_step`: the step at which the loss was not finite.
    - `provenance`: versions and device, and digests of the source code of user-defined parts.
    - `curves`: one row per evaluation of `step`, `loss` (on the test set), `train_loss` (mean since
      the previous evaluation), metrics and curves of probes. None if only the outcome was stored.
    - `reason`: why the run failed, or ended early.
    """

    run: Run
    state: State
    plateau: Emergence
    steps: int
    failed_step: int | None
    provenance: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] | None
    reason: str | None = None

    def __repr__(self) -> str:
        time, low, high = self.plateau[:3]
        state = f"{self.state} at step {time:.6g} [{low:g}, {high:g}]"
        return f"Result({self.run.identity}, seed {self.run.seed}: {state}, {self.steps} steps)"

    @classmethod
    def measured(
        cls, run: Run, curves: Mapping[str, np.ndarray], failed_step: int | None, device: str
    ) -> "Result":
        """Return the result of a run, given its curves."""
        steps = int(curves["step"][-1])
        learned = run.config.task.learned
        threshold = run.config.threshold
        plateau = _NONE
        reason = None
        if learned is not None and isinstance(threshold, float):
            metric = find_curve(curves, learned.metric)
            plateau = emergence(curves["step"], metric, threshold, learned.direction)
        if failed_step is not None and plateau.state != "reached":
            plateau = _NONE._replace(state="failed")
            reason = f"the loss was not finite at step {failed_step}"
        stop = run.config.stop
        if reason is None and stop is not None and steps < run.config.steps:
            reason = None if plateau.state == "reached" else f"stopped by {type(stop).__name__}"
        provenance = {**_VERSIONS, "device": device}
        if sources := run.config.sources():
            provenance["sources"] = sources
        state = plateau.state
        return cls(run, state, plateau, steps, failed_step, provenance, dict(curves), reason)

    @classmethod
    def untrained(cls, run: Run, reason: str, device: str) -> "Result":
        """Return the result of a run that could not be trained at all."""
        provenance = {**_VERSIONS, "device": device}
        failed = _NONE._replace(state="failed")
        return cls(run, "failed", failed, 0, None, provenance, None, reason)

    def content(self) -> dict[str, Any]:
        """Return everything but the curves as plain data, as `run.json` holds it."""
        outcome: dict[str, Any] = {
            "state": self.state,
            "time": self.plateau.time,
            "low": self.plateau.low,
            "high": self.plateau.high,
            "steps": self.steps,
            "failed_step": self.failed_step,
        }
        if self.reason is not None:
            outcome["reason"] = self.reason
        content = {
            "identity": self.run.identity,
            **self.run.describe(),
            "columns": self.run.config.columns(),
            "outcome": outcome,
            "curves": sorted(self.curves or {}),
            "provenance": dict(self.provenance),
            "probes": self.run.config.probe_versions(),
        }
        return to_jsonable(content)

    @classmethod
    def restore(
        cls,
        run: Run,
        row: Mapping[str, Any],
        provenance: Mapping[str, Any],
        curves: Mapping[str, np.ndarray] | None,
    ) -> "Result":
        """Return the result of a run from its row in a table and its curves."""
        plateau = Emergence(row["plateau"], row["plateau_low"], row["plateau_high"], row["state"])
        failed = row["failed_step"]
        return cls(
            run,
            row["state"],
            plateau,
            int(row["steps"]),
            None if failed is None else int(failed),
            provenance,
            curves,
            row.get("reason"),
        )
