"""Interventions: what writes at a tap of the forward pass, from and until any step."""

import fnmatch
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._contract import Tap
from .._errors import InputError, naming
from .._pytree import Pytree, option, per_run


class Intervention(Pytree):
    """Changes the values at a tap. A subclass has the fields that it needs and `new(value)`, what the value becomes; or
    `new_from(value, tap)`, where that depends on the sequences or on values at taps before this one.

    - `tap`: the name of the tap, with `*` for any part; a whole number stands for the attention pattern of that layer.
    - `head`: which head alone; None: all.
    - `first`, `until`: the first step at which it is in force, and the first at which it no longer is.
    - `strength`: how much of the new value is taken: 1 all of it, 0 nothing; may be a schedule.

    >>> class Negate(em.Intervention):
    ...     def new(self, value):
    ...         return -value
    >>> Negate("layers.0.mlp", until=100)
    Negate(tap='layers.0.mlp', until=100)
    """

    reads: ClassVar[tuple[str, ...]] = ()  # taps before this one whose values `new_from` finds in `tap.taken`

    tap: str | int
    head: int | None = option(default=None, low=0)
    first: int = per_run(default=0, low=0)
    until: int = per_run(default=2**31 - 1, low=0)
    strength: float = per_run(default=1.0, low=0.0, high=1.0)

    def __post_init__(self) -> None:
        if isinstance(self.tap, int):
            object.__setattr__(self, "tap", f"layers.{self.tap}.pattern")
        if isinstance(self.first, int) and isinstance(self.until, int) and self.until <= self.first:
            kind = type(self).__name__
            raise InputError(f"{kind}.until must be later than {kind}.first, got {self.until} and {self.first}")

    def new(self, value: Array) -> Array:
        """What a value becomes; of the same shape."""
        raise NotImplementedError

    def new_from(self, value: Array, tap: Tap) -> Array:
        """What a value becomes, for one that needs more than the value: `tap.batch` has the sequences, their answers and which
        positions are relevant, `tap.taken` the values at the taps that `reads` names."""
        return self.new(value)

    def change(self, name: str, value: Array, tap: Tap) -> Array:
        """The value at a tap after the intervention: changed where the tap is this one's and the step in its span."""
        if not fnmatch.fnmatchcase(name, str(self.tap)):
            return value
        kind, step = type(self).__name__, tap.step
        with naming(f"{kind}.new"):
            new = self.new_from(value, tap)
        if new.shape != value.shape:
            raise InputError(f"{kind}.new must keep the shape of {name}, which is {value.shape}, got {new.shape}")
        mixed = value + jnp.asarray(self.strength, value.dtype) * (new.astype(value.dtype) - value)
        # Where strength is 1 the result is the new value itself, without the rounding of a mixture.
        mixed = jnp.where(jnp.asarray(self.strength) >= 1, new.astype(value.dtype), mixed)
        active = (step >= self.first) & (step < self.until) if step is not None else jnp.array(True)
        if self.head is not None:
            if value.ndim < 4:
                raise InputError(f"{kind}.head is {self.head}, but {name} has no heads")
            # Heads are on the axis before the last two, but for these taps, which have them before the last.
            axis = value.ndim - (2 if name.rpartition(".")[2] in ("queries", "keys", "values", "mixed") else 3)
            if self.head >= value.shape[axis]:
                raise InputError(f"{kind}.head is {self.head}, but {name} has {value.shape[axis]} heads")
            chosen = jnp.arange(value.shape[axis]) == self.head
            active = active & chosen.reshape((-1,) + (1,) * (value.ndim - axis - 1))
        return jnp.where(active, mixed, value)


class Clamp(Intervention):
    """Holds the values at a tap: at a number, or attention at a pattern.

    - `to`: a number; `"uniform"`: the same to all positions; `"previous"`: from each position to the one before it, and from
      the first to itself; `"relevant"`: from the last position evenly to those that the task calls relevant; other rows stay.

    >>> em.Clamp("layers.1.pattern", until=500)
    Clamp(tap='layers.1.pattern', until=500)
    """

    to: float | Literal["uniform", "previous", "relevant"] = "uniform"

    def new_from(self, value: Array, tap: Tap) -> Array:
        if self.to == "previous":
            if value.ndim < 2 or value.shape[-2] != value.shape[-1]:
                raise InputError(f"Clamp.to 'previous' needs attention of every position, got a tap of shape {value.shape}")
            before = jnp.eye(value.shape[-1], k=-1, dtype=value.dtype).at[0, 0].set(1)
            return jnp.broadcast_to(before, value.shape)
        if self.to == "relevant":
            relevant = None if tap.batch is None else tap.batch.relevant
            if relevant is None:
                raise InputError("Clamp.to 'relevant' needs a batch that says which positions are relevant")
            if value.ndim != 4 or value.shape[-1] != relevant.shape[-1]:
                raise InputError(f"Clamp.to 'relevant' needs attention to every position, got a tap of shape {value.shape}")
            even = relevant / jnp.maximum(relevant.sum(-1, keepdims=True), 1)
            return value.at[:, :, -1].set(even[:, None].astype(value.dtype))
        return jnp.full_like(value, 1 / value.shape[-1] if self.to == "uniform" else self.to)


class Scale(Intervention):
    """Multiplies the values at a tap.

    >>> em.Scale("layers.0.scores", factor=0.5)
    Scale(tap='layers.0.scores', factor=0.5)
    """

    factor: float = per_run(default=1.0)

    def new(self, value: Array) -> Array:
        return value * jnp.asarray(self.factor, value.dtype)


class Freeze(Intervention):
    """Stops the gradient at a tap: what comes before it is not trained through it.

    >>> em.Freeze("layers.0.pattern", first=1000)
    Freeze(tap='layers.0.pattern', first=1000)
    """

    def new(self, value: Array) -> Array:
        return jax.lax.stop_gradient(value)


class Replace(Intervention):
    """Puts what `function`, at the top level of a module, makes of the values at a tap in their place.

    >>> import jax.numpy as jnp
    >>> em.Replace("layers.0.mixed", function=jnp.zeros_like).tap
    'layers.0.mixed'
    """

    function: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(f"Replace.function must be a function of the value at the tap, got {self.function!r}")

    def new(self, value: Array) -> Array:
        return self.function(value) if self.function else value
