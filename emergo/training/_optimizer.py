"""Optimizers: any optimizer of Optax by name, or the factory of a user.

The learning rate is a per-run field, so runs that differ in it share a program. All other options
are static.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import optax

from ..core.errors import InputError, unknown
from ..core.identity import canonical, type_name
from ..core.pytree import Pytree, Schedule, as_tuple, option, per_run

Factory = Callable[..., optax.GradientTransformation]


class Optimizer(Pytree):
    """An optimizer of Optax.

    **Arguments:**

    - `name`: the name of an optimizer of Optax (`"adam"`, `"adamw"`, `"sgd"`, `"lion"`, ...), or a
      function at the top level of a module that takes `learning_rate` and returns an
      `optax.GradientTransformation`.
    - `learning_rate`: a number or a schedule.
    - `clip`: the largest norm of the gradient of all parameters; None disables clipping.
    - Further keywords are options of the optimizer, such as `b2` or `weight_decay`, with the
      defaults of Optax.

    >>> em.Optimizer("adamw", learning_rate=3e-4, weight_decay=0.1)
    Optimizer('adamw', learning_rate=0.0003, weight_decay=0.1)
    """

    name: str | Factory = "adam"
    learning_rate: float = per_run(default=1e-4, low=0.0)
    clip: float | None = option(default=None, low=0.0)
    options: tuple[tuple[str, object], ...] = ()

    def __init__(
        self,
        name: str | Factory = "adam",
        learning_rate: float | Schedule = 1e-4,
        clip: float | None = None,
        options: Mapping[str, object] | Iterable[tuple[str, object]] = (),
        **more: object,
    ) -> None:
        fields = {"name": name, "learning_rate": learning_rate, "clip": clip}
        fields["options"] = tuple(sorted((dict(options) | more).items()))
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip"):
            if getattr(self, name) == 0:
                raise InputError(f"Optimizer.{name} must be positive, got 0")
        known = inspect.signature(self.factory).parameters
        if "learning_rate" not in known:
            raise InputError(f"Optimizer {self.label} takes no learning_rate; choose another")
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        options = []
        for name, given in self.options:
            if name not in known and not takes_any:
                raise unknown(f"option of {self.label}", name, [*known, "clip"])
            value = _one_form(given, known[name].default if name in known else ...)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"Optimizer.{name} must be finite, got {value!r}")
            options.append((name, value))
        object.__setattr__(self, "options", tuple(options))

    def identifying(self) -> dict[str, object]:
        """Leave out options that equal the default of the optimizer."""
        known = inspect.signature(self.factory).parameters
        options = tuple((n, v) for n, v in self.options if n not in known or known[n].default != v)
        fields: dict[str, object] = super().identifying()
        fields.pop("options", None)
        return fields | ({"options": options} if options else {})

    @property
    def factory(self) -> Factory:
        return self.name if callable(self.name) else _of_optax(self.name)

    @property
    def label(self) -> str:
        """The name of the optimizer, or of the factory."""
        return type_name(self.name) if callable(self.name) else self.name

    def build(self) -> optax.GradientTransformation:
        """Return the transformation. Called within a step, since the learning rate is traced."""
        inner = self.factory(learning_rate=self.learning_rate, **dict(self.options))
        if self.clip is None:
            return inner
        return optax.chain(optax.clip_by_global_norm(self.clip), inner)

    def __repr__(self) -> str:
        named = {"learning_rate": self.learning_rate, "clip": self.clip, **dict(self.options)}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        name = self.label if callable(self.name) else repr(self.name)
        return f"Optimizer({', '.join([name, *shown])})"


def _one_form(value: object, default: object) -> object:
    """Convert an option to the form that its identity needs.

    Lists become tuples, NumPy numbers become Python numbers, and integers become floats if the
    default is a float or None.
    """
    canonical(value)  # raises for values that cannot be identified
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float) and not isinstance(value, bool):
        fraction = default is None or isinstance(value, float) or isinstance(default, float)
        return float(value) + 0.0 if fraction else value  # -0.0 becomes 0.0
    return as_tuple(value)


@functools.cache
def _of_optax(name: str) -> Factory:
    known = {
        n: f
        for n, f in vars(optax).items()
        if inspect.isfunction(f) and "learning_rate" in inspect.signature(f).parameters
    }
    if name not in known:
        raise unknown("optimizer", str(name), known)
    return known[name]
