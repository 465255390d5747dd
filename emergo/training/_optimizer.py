"""Optimizers: any optimizer of Optax by name, or the factory of a user.

The learning rate is a per-run field, so runs that differ in it share a program. Other options are
static, unless they are scheduled or differ between the runs of a program. Then they become numbers
of the run too, and the step builds the transformation from traced numbers, as Optax's
`inject_hyperparams` does.
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..core.errors import InputError, unknown
from ..core.identity import canonical, type_name
from ..core.pytree import Pytree, Schedule, as_tuple, option, per_run

Factory = Callable[..., optax.GradientTransformation]


class Numbers(tuple[tuple[str, Any], ...]):
    """Options of an optimizer that are numbers of a run: pairs of a name, and a number or schedule.

    A pytree with the numbers as children.
    """


jax.tree_util.register_pytree_with_keys(
    Numbers,
    lambda pairs: (
        [(jax.tree_util.GetAttrKey(name), value) for name, value in pairs],
        tuple(name for name, _ in pairs),
    ),
    lambda names, values: Numbers(zip(names, values, strict=True)),
)


class Optimizer(Pytree):
    """An optimizer of Optax.

    **Arguments:**

    - `name`: the name of an optimizer of Optax (`"adam"`, `"adamw"`, `"sgd"`, `"lion"`, ...), or a
      function at the top level of a module that takes `learning_rate` and returns an
      `optax.GradientTransformation`.
    - `learning_rate`: a number or a schedule.
    - `clip`: the largest norm of the gradient of all parameters; None disables clipping.
    - Further keywords are options of the optimizer, such as `b2` or `weight_decay`, with the
      defaults of Optax. Numbers may be schedules.

    >>> em.Optimizer("adamw", learning_rate=3e-4, weight_decay=0.1)
    Optimizer('adamw', learning_rate=0.0003, weight_decay=0.1)
    """

    name: str | Factory = "adam"
    learning_rate: float = per_run(default=1e-4, low=0.0)
    clip: float | None = option(default=None, low=0.0)
    options: tuple[tuple[str, object], ...] = ()
    numbers: Numbers = per_run(default=Numbers())

    def __init__(
        self,
        name: str | Factory = "adam",
        learning_rate: float | Schedule = 1e-4,
        clip: float | None = None,
        options: Mapping[str, object] | Iterable[tuple[str, object]] = (),
        numbers: Iterable[tuple[str, Any]] = (),
        **more: object,
    ) -> None:
        given = sorted((dict(numbers) | dict(options) | more).items())
        fields: dict[str, object] = {"name": name, "learning_rate": learning_rate, "clip": clip}
        fields["numbers"] = Numbers(pair for pair in given if isinstance(pair[1], Schedule))
        fields["options"] = tuple(pair for pair in given if not isinstance(pair[1], Schedule))
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
        for name in self.given:
            if name not in known and not takes_any:
                raise unknown(f"option of {self.label}", name, [*known, "clip"])
        options = []
        for name, given in self.options:
            value = _one_form(given, known[name].default if name in known else ...)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"Optimizer.{name} must be finite, got {value!r}")
            options.append((name, value))
        object.__setattr__(self, "options", tuple(options))
        for name, schedule in self.numbers:
            switch = name in known and isinstance(known[name].default, bool)
            if switch or not _takes_number(self.factory, self.options, name):
                raise InputError(
                    f"Optimizer.{name} cannot be a schedule, because {self.label} needs its value "
                    f"when it is built; got {schedule!r}"
                )

    def identifying(self) -> dict[str, object]:
        """Leave out options that equal the default of the optimizer."""
        known = inspect.signature(self.factory).parameters
        options = tuple(
            (n, v) for n, v in self.given.items() if n not in known or known[n].default != v
        )
        fields: dict[str, object] = super().identifying()
        for name in ("options", "numbers"):
            fields.pop(name, None)
        return fields | ({"options": options} if options else {})

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, also scheduled ones, by name."""
        return dict(sorted((*self.options, *self.numbers)))

    @property
    def known_options(self) -> list[str]:
        """The names of options that the optimizer has."""
        return [
            name for name in inspect.signature(self.factory).parameters if name != "learning_rate"
        ]

    def number(self, name: str) -> float | None:
        """Return the number of an option, given or by default, that may be traced; else None."""
        parameter = inspect.signature(self.factory).parameters.get(name)
        default = None if parameter is None else parameter.default
        value = dict(self.options).get(name, default)
        if isinstance(value, float) and _takes_number(self.factory, self.options, name):
            return value
        return None

    def fixed(self) -> dict[str, Any]:
        """Return what two optimizers must have in common to share a program, besides their type.

        Numbers may differ, except where a missing number, None, builds another optimizer.
        """
        known = inspect.signature(self.factory).parameters
        fixed = {}
        for name, value in self.options:
            if self.number(name) is None:
                fixed[name] = value
            elif name not in known or not isinstance(known[name].default, float):
                fixed[name] = "number"
        return fixed

    def injecting(self, names: Iterable[str]) -> "Optimizer":
        """Return the optimizer with these options as numbers of the run."""
        moved = {name: self.number(name) for name in names if name not in dict(self.numbers)}
        fields = {
            "numbers": Numbers(sorted((*self.numbers, *moved.items()))),
            "options": tuple((name, v) for name, v in self.options if name not in moved),
        }
        copied = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(copied, name, value)
        return copied

    @property
    def factory(self) -> Factory:
        return self.name if callable(self.name) else _of_optax(self.name)

    @property
    def label(self) -> str:
        """The name of the optimizer, or of the factory."""
        return type_name(self.name) if callable(self.name) else self.name

    def build(self) -> optax.GradientTransformation:
        """Return the transformation. Called within a step, since the learning rate is traced."""
        inner = self.factory(learning_rate=self.learning_rate, **self.given)
        if self.clip is None:
            return inner
        return optax.chain(optax.clip_by_global_norm(self.clip), inner)

    def __repr__(self) -> str:
        named = {"learning_rate": self.learning_rate, "clip": self.clip, **self.given}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        name = self.label if callable(self.name) else repr(self.name)
        return f"Optimizer({', '.join([name, *shown])})"


def varying_options(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """Return the numeric options that differ between optimizers and can be numbers of a run."""
    names = {name for optimizer in optimizers for name, _ in optimizer.options}
    return tuple(
        name
        for name in sorted(names)
        if len({optimizer.number(name) for optimizer in optimizers}) > 1
        and all(optimizer.number(name) is not None for optimizer in optimizers)
    )


@functools.cache
def _takes_number(factory: Factory, options: tuple[tuple[str, object], ...], name: str) -> bool:
    """Return True if an option may be a traced number: a factory may also branch on its value."""

    def update(number: Any) -> Any:
        transform = factory(learning_rate=0.1, **dict(options) | {name: number})
        params = {"weight": jnp.zeros((2, 2))}
        return transform.update(params, transform.init(params), params)

    try:
        jax.eval_shape(update, jax.ShapeDtypeStruct((), jnp.float32))
    except Exception:
        return False
    return True


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
