"""What a run is: a tree of frozen dataclasses and a seed, and the identity they have."""

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any, Literal, get_args

import jax

from .._errors import InputError, check_numbers, unknown
from ..models import ChainTransformer, MinimalAttention, Model, Transformer
from ..tasks import MarkovChain, Recall, SingleLocation, Task

SEMANTICS = 1
"""Raised only when the same config and seed give other numbers than before."""

Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Method = Literal["adam", "adamw", "sgd"]


def default_precision() -> Precision:
    """bf16 products on a GPU, fp32 elsewhere; emergence times are the same within the seed spread (docs/REPRODUCTION.md)."""
    return "bf16" if jax.default_backend() == "gpu" else "fp32"


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of Optax, with a constant learning rate."""

    method: Method = "adam"
    learning_rate: float = 1e-4
    momentum: float = 0.0
    """Of sgd."""
    weight_decay: float = 0.01
    """Of adamw."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    clip: float | None = None
    """The largest norm of a gradient, over all parameters; None: any."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise unknown("method", str(self.method), get_args(Method))
        check_numbers(self)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"learning_rate must be positive and finite, got {self.learning_rate!r}")
        for name in ("momentum", "b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        for name, method, unused in (("momentum", "sgd", 0.0), ("weight_decay", "adamw", 0.01)):
            if self.method != method and getattr(self, name) != unused:
                raise InputError(f"{name} belongs to {method}, and has no effect with {self.method}; leave it out")
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(f"clip must be positive, or None, got {self.clip!r}")
        for name in ("weight_decay", "eps"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)!r}")


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run but for its seed.

    **Arguments:**

    - `precision`: of matrix products: `"fp32"`, `"tf32"` (a GPU's) or `"bf16"`; parameters and optimizer state are fp32. For a
      Markov chain `"fp32"`, or `"fp64"`: everything but the random draws in 64 bits, from the same start and on the same
      teacher. By default as [`emergo.engine.default_precision`][].
    - `steps`: the most there may be. A run also ends when what tells that it has learned, its test loss, in recall its test
      accuracy, for a Markov chain its KL from the teacher, has come to `threshold`, after `beyond` times as many more steps.
    - `tests`: sequences of the fixed test set of a run.
    - `samples`: of a Markov chain, how many training sequences there are; None: every step draws new ones.
    - `windows`: of a Markov chain, how many tokens each of some predictors sees that the run is compared with: the same model
      from the same start, trained beforehand for as many steps, on fresh data.

    A Markov chain is learned by a [`emergo.models.MinimalAttention`][] or a [`emergo.models.ChainTransformer`][] that reads all
    but the last token, in fp32 with products of highest precision or in fp64: what tells heads apart may be as small as
    rounding errors.
    """

    task: Task
    model: Model = Transformer()
    optimizer: Optimizer = Optimizer()
    batch: int = 32
    precision: Precision = dataclasses.field(default_factory=default_precision)
    steps: int = 50_000
    threshold: float = 0.1
    beyond: float = 0.0
    tests: int = 128
    samples: int | None = None
    windows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "tests", *(() if self.samples is None else ("samples",))):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_numbers(self)
        if self.precision not in get_args(Precision):
            raise unknown("precision", str(self.precision), get_args(Precision))
        if not math.isfinite(self.threshold):
            raise InputError(f"threshold must be finite, got {self.threshold!r}")
        if not (math.isfinite(self.beyond) and self.beyond >= 0):
            raise InputError(f"beyond must be at least 0, got {self.beyond!r}")
        task = self.task
        if isinstance(task, Recall) and task.pairs > 1 and not 1 / task.pairs < self.threshold <= 1:
            raise InputError(
                f"threshold is an accuracy in recall, and guessing a value of the context has 1/{task.pairs}; "
                f"choose one above that and at most 1, e.g. 0.9, got {self.threshold!r}"
            )
        if isinstance(task, SingleLocation) and task.position == "random" and not task.indicator:
            advice = "set indicator, or position 'fixed' or 'last'"
            raise InputError(f"position 'random' cannot be learned without the indicator feature; {advice}")
        if isinstance(task, MarkovChain):
            self._check_chain(task)
        elif self.precision == "fp64":
            raise InputError("precision fp64 belongs to MarkovChain; for this task choose fp32, tf32 or bf16")
        elif not isinstance(self.model, Transformer):
            raise InputError(f"{type(self.model).__name__} learns a MarkovChain; for this task choose a Transformer")
        elif self.samples is not None:
            raise InputError("samples belongs to MarkovChain; this task draws new data in every step; leave it out")
        elif self.windows is not None:
            raise InputError("windows belongs to MarkovChain; leave it out")

    def _check_chain(self, task: MarkovChain) -> None:
        model = self.model
        if isinstance(model, Transformer):
            raise InputError("a MarkovChain is learned by a MinimalAttention or a ChainTransformer, not by a Transformer")
        if (model.length, model.vocabulary) != (task.length - 1, task.vocabulary):
            raise InputError(
                f"the model must read {task.length - 1} positions of {task.vocabulary} tokens for this chain, "
                f"got {model.length} of {model.vocabulary}"
            )
        if self.precision not in ("fp32", "fp64"):
            raise InputError(f"a MarkovChain is trained in precision fp32 or fp64, got {self.precision!r}")
        if self.windows is None:
            return
        whole = isinstance(self.windows, tuple) and all(isinstance(c, int) and not isinstance(c, bool) for c in self.windows)
        if not whole or not self.windows or not all(1 <= c <= model.length for c in self.windows):
            wanted = f"a tuple (in TOML a list) of numbers of tokens from 1 to {model.length}"
            raise InputError(f"windows must be {wanted}, got {self.windows!r}")
        if model.layers > 1 or model.context is not None:
            raise InputError("windows are for a model of one layer without a context: with more, a window reaches further back")

    def describe(self) -> dict[str, Any]:
        """The config as plain data; a task or model other than the first one says its kind."""
        made = dataclasses.asdict(self)
        for part in ("task", "model"):
            kind = KINDS[type(getattr(self, part))]
            if kind:
                made[part] = {"kind": kind} | made[part]
        for place in (made, made["task"], made["model"], made["optimizer"]):
            for name in _ADDED:
                if name in place and place[name] is None:
                    del place[name]
        return made


KINDS: dict[type, str] = {
    SingleLocation: "",
    Recall: "recall",
    MarkovChain: "markov_chain",
    Transformer: "",
    MinimalAttention: "minimal_attention",
    ChainTransformer: "chain_transformer",
}
"""What plain data calls tasks and models; those without a word were there first."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A config and a seed: everything that a run is a function of."""

    config: Config
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1, got {self.seed!r}")

    @functools.cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits: a hash of the config, the seed and [`emergo.engine.SEMANTICS`][]."""
        content = {"semantics": SEMANTICS, "config": _canonical(self.config), "seed": self.seed}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_ADDED = ("clip", "samples", "windows", "prefix", "dropout_every", "start")
"""Fields that came later: None, their default, is left out, so that the runs from before keep their identity."""


def _canonical(value: Any, field_type: Any = None) -> Any:
    """Plain data where numbers of one value have one form: a field that may hold a fraction is a float, however written."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: (getattr(value, f.name), f.type) for f in dataclasses.fields(value)}
        return {name: _canonical(v, kind) for name, (v, kind) in fields.items() if v is not None or name not in _ADDED}
    if isinstance(value, tuple):
        return [_canonical(v, float if "float" in str(field_type) else None) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and field_type in (float, float | None):
        return float(value)
    return value + 0.0 if isinstance(value, float) else value  # -0.0 is 0.0
