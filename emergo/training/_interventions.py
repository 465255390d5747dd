"""Interventions: changes of values at taps of the forward pass, during chosen steps."""

import fnmatch
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..core.contract import Tap
from ..core.errors import InputError, naming
from ..core.pytree import Pytree, option, per_run


class Intervention(Pytree):
    """Base class: a change of the values at a tap.

    A subclass defines `new(value)`, the new value. If that depends on the sequences or on values at
    earlier taps, it defines `new_from(value, tap)` instead.

    **Arguments:**

    - `tap`: the name of the tap, with `*` for any part. An integer means the attention pattern of
      that layer.
    - `head`: the head to change; None: all heads.
    - `first`, `until`: the first step of the intervention, and the first step after it.
    - `strength`: the share of the new value: 1 replaces the old value, 0 keeps it. May be a
      schedule.

    >>> class Negate(em.Intervention):
    ...     def new(self, value):
    ...         return -value
    >>> Negate("layers.0.mlp", until=100)
    Negate(tap='layers.0.mlp', until=100)
    """

    reads: ClassVar[tuple[str, ...]] = ()
    """Earlier taps whose values `new_from` finds in `tap.taken`."""

    tap: str | int
    head: int | None = option(default=None, low=0)
    first: int = per_run(default=0, low=0)
    until: int = per_run(default=2**31 - 1, low=0)
    strength: float = per_run(default=1.0, low=0.0, high=1.0)

    def __post_init__(self) -> None:
        if isinstance(self.tap, int):
            object.__setattr__(self, "tap", f"layers.{self.tap}.pattern")
        if isinstance(self.first, int) and isinstance(self.until, int) and self.until <= self.first:
            raise InputError(
                f"{type(self).__name__}.until must be later than first, got {self.until} and "
                f"{self.first}"
            )

    def new(self, value: Array) -> Array:
        """Return the new value, with the same shape."""
        raise NotImplementedError

    def new_from(self, value: Array, tap: Tap) -> Array:
        """Return the new value, which may depend on more than the old value.

        `tap.batch` holds the sequences, their targets and the relevant positions; `tap.taken` holds
        the values at the taps in `reads`.
        """
        return self.new(value)

    def change(self, name: str, value: Array, tap: Tap) -> Array:
        """Return the value at a tap after the intervention.

        The value changes if the name of the tap matches and the step is in the interval. Without a
        step, outside of training, the intervention is active.
        """
        if not fnmatch.fnmatchcase(name, str(self.tap)):
            return value
        kind = type(self).__name__
        step = tap.step
        with naming(f"{kind}.new"):
            new = self.new_from(value, tap)
        if new.shape != value.shape:
            raise InputError(
                f"{kind}.new must keep the shape of {name}, which is {value.shape}, got {new.shape}"
            )
        mixed = value + jnp.asarray(self.strength, value.dtype) * (new.astype(value.dtype) - value)
        # At strength 1 the result is exactly the new value, without rounding.
        mixed = jnp.where(jnp.asarray(self.strength) >= 1, new.astype(value.dtype), mixed)
        active = (step >= self.first) & (step < self.until) if step is not None else jnp.array(True)
        if self.head is not None:
            active = active & chosen(kind, name, value, "head", self.head)
        return jnp.where(active, mixed, value)


def chosen(
    kind: str, name: str, value: Array, what: Literal["head", "position"], index: int
) -> Bool[Array, "..."]:
    """Return a mask of the values at a tap that belong to a head or a position.

    **Arguments:**

    - `kind`: what chooses, for errors.
    - `index`: the number of the head or position; negative positions count from the end.
    """
    # Scores and patterns have shape (n, heads, queries, length). These four have shape
    # (n, length, heads, size), and points of the residual stream (n, length, width).
    vectors = name.rpartition(".")[2] in ("queries", "keys", "values", "mixed")
    if what == "head":
        axis = 2 if vectors else 1
        size = value.shape[axis] if value.ndim == 4 else 0
    else:
        axis = 1 if vectors or value.ndim == 3 else 2
        size = value.shape[axis] if value.ndim > 2 else 0
    if not -size <= index < size or (what == "head" and index < 0):
        raise InputError(f"{kind}.{what} is {index}, but {name} has {size or 'no'} {what}s")
    mask = jnp.arange(size) == index % size
    return mask.reshape((-1,) + (1,) * (value.ndim - 1 - axis))


class Patch(NamedTuple):
    """Values of another forward pass, which replace those at the same taps."""

    values: Mapping[str, Array]
    head: int | None = None
    position: int | None = None
    reads = ()

    def change(self, name: str, value: Array, tap: Tap) -> Array:
        if name not in self.values:
            return value
        new = self.values[name]
        if new.shape != value.shape:
            raise InputError(
                f"{name} has shape {new.shape} in one forward pass and {value.shape} in the other"
            )
        active = jnp.array(True)
        if self.head is not None:
            active = active & chosen("patched", name, value, "head", self.head)
        if self.position is not None:
            active = active & chosen("patched", name, value, "position", self.position)
        return jnp.where(active, new, value)


class Clamp(Intervention):
    """Clamp the values at a tap to a number, or attention to a pattern.

    **Arguments:**

    - `to`: a number, or one of three patterns. `"uniform"` attends equally to all positions.
      `"previous"` attends to the previous position; the first position attends to itself.
      `"relevant"` lets the last position attend equally to the positions that the task marks as
      relevant, and leaves other rows unchanged.

    >>> em.Clamp("layers.1.pattern", until=500)
    Clamp(tap='layers.1.pattern', until=500)
    """

    to: float | Literal["uniform", "previous", "relevant"] = "uniform"

    def new_from(self, value: Array, tap: Tap) -> Array:
        length = value.shape[-1]
        relevant = None if tap.batch is None else tap.batch.relevant
        if self.to == "previous" and value.shape[-2:] == (length, length):
            before = jnp.eye(length, k=-1, dtype=value.dtype).at[0, 0].set(1)
            return jnp.broadcast_to(before, value.shape)
        if self.to == "relevant" and relevant is not None and value.shape[3:] == relevant.shape[1:]:
            even = relevant / jnp.maximum(relevant.sum(-1, keepdims=True), 1)
            return value.at[:, :, -1].set(even[:, None].astype(value.dtype))
        if isinstance(self.to, str) and self.to != "uniform":
            raise InputError(
                f"Clamp.to {self.to!r} needs attention to every position and a batch that marks "
                f"its relevant positions, got a tap of shape {value.shape}"
            )
        return jnp.full_like(value, 1 / length if self.to == "uniform" else self.to)


class Scale(Intervention):
    """Multiply the values at a tap by `factor`.

    >>> em.Scale("layers.0.scores", factor=0.5)
    Scale(tap='layers.0.scores', factor=0.5)
    """

    factor: float = per_run(default=1.0)

    def new(self, value: Array) -> Array:
        return value * jnp.asarray(self.factor, value.dtype)


class Freeze(Intervention):
    """Stop the gradient at a tap, so that nothing before it is trained through it.

    >>> em.Freeze("layers.0.pattern", first=1000)
    Freeze(tap='layers.0.pattern', first=1000)
    """

    def new(self, value: Array) -> Array:
        return jax.lax.stop_gradient(value)


class Replace(Intervention):
    """Replace the values at a tap by a function of them.

    **Arguments:**

    - `function`: a function at the top level of a module, which keeps the shape.

    >>> import jax.numpy as jnp
    >>> em.Replace("layers.0.mixed", function=jnp.zeros_like).tap
    'layers.0.mixed'
    """

    function: Callable[[Array], Array] | None = None

    def new(self, value: Array) -> Array:
        if self.function is None:
            raise InputError("Replace.function must be a function, got None")
        return self.function(value)
