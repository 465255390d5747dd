"""The table of optimised forward passes, and the lookup that training uses.

`apply` defines a model. An entry of the table replaces `apply` in training for one exact class, and
only if every field of the model has a listed value. So a subclass, a new field and a new value of
an option run `apply` until a developer extends the entry. Before a program is trained, the entry is
compared with `apply` on that program (`emergo/training/_verify.py`).
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ...core.contract import Output, Spec
from ...core.pytree import fields
from .._chain_transformer import DROPOUT_PLACES, ChainTransformer
from .._minimal import MinimalAttention
from .._model import Model
from .._transformer import Transformer
from . import _chain_transformer, _language_model, _minimal, _transformer

VARIABLE = "EMERGO_FAST"
"""Environment variable; `off` makes training run `apply` for every model."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Any positive integer; None too if `optional`."""

    optional: bool = False

    def __contains__(self, value: object) -> bool:
        if value is None:
            return self.optional
        return type(value) is int and value >= 1


@dataclasses.dataclass(frozen=True)
class Rate:
    """Any number from 0 up to, but not including, 1."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, float | int) and 0 <= value < 1


@dataclasses.dataclass(frozen=True)
class SubsetOf:
    """A tuple of some of these names."""

    names: tuple[str, ...]

    def __contains__(self, value: object) -> bool:
        return isinstance(value, tuple) and set(value) <= set(self.names)


Allowed = tuple[Any, ...] | Size | Rate | SubsetOf


@dataclasses.dataclass(frozen=True)
class FastPath:
    """An optimised forward pass of one class of models."""

    name: str
    model: type[Model]
    # Supported values of every static field: a tuple of values, or a class of values.
    options: Mapping[str, Allowed]
    per_run: frozenset[str]  # fields that may differ between runs of a program
    reads: tuple[Literal["last", "several"], ...]  # positions that supported tasks may read
    dropout: bool  # True if the forward pass draws random numbers in training
    # `forward(model, params, inputs, tap, stack_size)` returns what `model.apply` returns.
    forward: Callable[..., Output]

    def supports(self, model: Model, spec: Spec) -> bool:
        reads = "last" if spec.answers is None else "several"
        if type(model) is not self.model or reads not in self.reads:
            return False
        static = [field.name for field in fields(model) if field.name not in self.per_run]
        return all(_listed(getattr(model, name), self.options.get(name, ())) for name in static)


def _listed(value: object, allowed: Allowed) -> bool:
    """Return True if a value is listed. A part of a user never is, whatever it says it equals."""
    if isinstance(allowed, tuple):
        return any(type(value) is type(one) and value == one for one in allowed)
    return value in allowed


PATHS = (
    FastPath(
        name="models/fast/_transformer.py",
        model=Transformer,
        options={
            "layers": Size(),
            "heads": Size(),
            "width": Size(),
            "mlp_factor": Size(),
            "norm": ("none", "pre", "post"),
            "mask": ("none", "causal"),
            "activation": ("relu", "gelu"),
            "attention": ("softmax", "linear", "sigmoid", "biased", "positional"),
            "initial": ("pytorch", "xavier", "normal"),
            "positions": ("sinusoidal", "learned", "rope", "none"),
            "skip": (True, False),
            "mlp": (True, False),
            "temperature": ("fixed", "learned"),
            "window": Size(optional=True),
            "top_k": Size(optional=True),
            "norm_type": ("layer", "rms"),
            "tied": (False, True),
            "dropout": (0.0,),
        },
        per_run=frozenset(),
        reads=("last",),
        dropout=False,
        forward=_transformer.forward,
    ),
    FastPath(
        name="models/fast/_language_model.py",
        model=Transformer,
        options={
            "layers": Size(),
            "heads": Size(),
            "width": Size(),
            "mlp_factor": Size(),
            "norm": ("pre",),
            "mask": ("causal",),
            "activation": ("relu", "gelu", "swiglu"),
            "attention": ("softmax",),
            "initial": ("pytorch", "xavier", "normal"),
            "positions": ("sinusoidal", "learned", "rope", "none"),
            "skip": (True,),
            "mlp": (True, False),
            "temperature": ("fixed",),
            "window": (None,),
            "top_k": (None,),
            "norm_type": ("layer", "rms"),
            "tied": (False, True),
            "dropout": Rate(),
        },
        per_run=frozenset(),
        reads=("several",),
        dropout=True,
        forward=_language_model.forward,
    ),
    FastPath(
        name="models/fast/_chain_transformer.py",
        model=ChainTransformer,
        options={
            "heads": Size(),
            "width": Size(),
            "hidden": Size(),
            "layers": Size(),
            "dropout": Rate(),
            "dropout_every": Size(optional=True),
            "start": (None, "xavier"),
            "dropout_at": SubsetOf(DROPOUT_PLACES),
        },
        per_run=frozenset({"context"}),
        reads=("last", "several"),
        dropout=True,
        forward=_chain_transformer.forward,
    ),
    FastPath(
        name="models/fast/_minimal.py",
        model=MinimalAttention,
        options={
            "heads": Size(),
            "layers": Size(),
            "start": ("small", "xavier"),
        },
        per_run=frozenset({"scale", "context"}),
        reads=("last", "several"),
        dropout=False,
        forward=_minimal.forward,
    ),
)


def paths_are_on() -> bool:
    """Return False if the environment switches optimised paths off."""
    return os.environ.get(VARIABLE, "").lower() != "off"


def find_path(model: Model, spec: Spec) -> FastPath | None:
    """Return the optimised path of a model on a task of these sizes; None: train with `apply`."""
    if not paths_are_on():
        return None
    return next((path for path in PATHS if path.supports(model, spec)), None)
