"""A cell of the parameter space: sequence length, dimension and the two kinds of repetition."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike as JaxArrayLike
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..core.errors import InputError

# A number or an array of them, of NumPy or JAX, traced or not. Static checkers cannot follow
# arithmetic on that union.
if TYPE_CHECKING:
    Scalars = Any
else:
    Scalars = Float[JaxArrayLike, "..."]
Numbers = ArrayLike | Sequence[Any]
"""What a user may give: a number, a sequence or an array."""


class Cell(NamedTuple):
    """Four arrays of one shape (or four scalars): one point of the theory per element. Make it with
    [`emergo.theory.cells`][], which checks the values; the formulas of this room trust them."""

    length: Scalars  # T, the number of tokens
    dim: Scalars  # d, the dimension of a token
    # B, how many times the relevant token appears in the sequence (in-context repetition)
    burst: Scalars
    # p, the probability that the relevant token is the special one (cross-sample repetition)
    repeat: Scalars

    def flat(self) -> "Cell":
        return Cell(*(np.ravel(np.asarray(a, np.float64)) for a in self))


def checked_numbers(
    name: str, values: Numbers, wanted: str, valid: Callable[[Any], Any]
) -> Float[np.ndarray, "..."]:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be {wanted}, got {values!r}") from None
    wrong = array[~valid(array)]
    if wrong.size:
        raise InputError(f"{name} must be {wanted}, got {wrong[0]:g}")
    return array


def _sizes(name: str, values: Numbers, least: int) -> Float[np.ndarray, "..."]:
    wanted = f"a whole number of at least {least}"
    array = checked_numbers(
        name, values, wanted, lambda x: np.isfinite(x) & (x >= least) & (x == np.floor(x))
    )
    if (array > 1e15).any():  # whole numbers beyond it are not exact in float64
        raise InputError(f"{name} must be at most 1e15, got {array.max():g}")
    return array


def cells(length: Numbers, dim: Numbers, burst: Numbers = 1, repeat: Numbers = 0.0) -> Cell:
    """Checks four numbers or arrays and broadcasts them to a [`emergo.theory.Cell`][] of float64
    NumPy arrays of one shape. `length` is at least 2, `dim` at least 1, `burst` at least 1 and
    smaller than `length`, and `repeat` in [0, 1]; an `InputError` names the value that is not."""
    length = _sizes("length", length, 2)
    dim = _sizes("dim", dim, 1)
    burst = _sizes("burst", burst, 1)
    repeat = checked_numbers("repeat", repeat, "in [0, 1]", lambda p: (p >= 0) & (p <= 1))
    try:
        length, dim, burst, repeat = np.broadcast_arrays(length, dim, burst, repeat)
    except ValueError:
        shapes = ", ".join(str(a.shape) for a in (length, dim, burst, repeat))
        raise InputError(
            f"length, dim, burst and repeat must broadcast; their shapes are {shapes}"
        ) from None
    bad = burst >= length
    if bad.any():
        raise InputError(
            f"burst must be smaller than length, got burst {burst[bad][0]:g} with length "
            f"{length[bad][0]:g}"
        )
    return Cell(length, dim, burst, repeat)


def grid(**axes: Numbers) -> Cell:
    """The full product as one flat [`emergo.theory.Cell`][], the last axis fastest:
    `grid(length=[64, 128], dim=[16, 32])`."""
    arrays = np.meshgrid(*(np.atleast_1d(np.asarray(a)) for a in axes.values()), indexing="ij")
    return cells(**{name: array.ravel() for name, array in zip(axes, arrays, strict=True)})
