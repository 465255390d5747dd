"""Cells: sequence length, dimension and the two kinds of repetition."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike as JaxArrayLike
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..core.errors import InputError

# A number or an array, of NumPy or JAX, traced or not. Static type checkers cannot follow
# arithmetic on this union.
if TYPE_CHECKING:
    Scalars = Any
else:
    Scalars = Float[JaxArrayLike, "..."]
Numbers = ArrayLike | Sequence[Any]
"""Input from users: a number, a sequence or an array."""


class Cell(NamedTuple):
    """Cells of the theory: four arrays of one shape, or four scalars.

    Make cells with [`emergo.theory.cells`][], which checks the values. The formulas trust them.
    """

    length: Scalars  # T, the number of tokens
    dim: Scalars  # d, the dimension of a token
    burst: Scalars  # B, the copies of the relevant token in a sequence (in-context repetition)
    repeat: Scalars  # p, the probability of the special token (cross-sample repetition)

    def flat(self) -> "Cell":
        """Return the cells as arrays with one axis."""
        return Cell(*(np.ravel(np.asarray(a, np.float64)) for a in self))


def checked_numbers(
    name: str, values: Numbers, wanted: str, valid: Callable[[Any], Any]
) -> Float[np.ndarray, "..."]:
    """Return values as float64; raise an `InputError` that names the first invalid one."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be {wanted}, got {values!r}") from None
    wrong = array[~valid(array)]
    if wrong.size:
        raise InputError(f"{name} must be {wanted}, got {wrong[0]:g}")
    return array


def _sizes(name: str, values: Numbers, least: int) -> Float[np.ndarray, "..."]:
    # Larger whole numbers are not exact in float64.
    wanted = f"a whole number of at least {least} and at most 1e15"
    return checked_numbers(
        name, values, wanted, lambda x: (x >= least) & (x <= 1e15) & (x == np.floor(x))
    )


def cells(length: Numbers, dim: Numbers, burst: Numbers = 1, repeat: Numbers = 0.0) -> Cell:
    """Check four numbers or arrays and broadcast them to cells.

    **Arguments:**

    - `length`: T, at least 2.
    - `dim`: d, at least 1.
    - `burst`: B, at least 1 and smaller than `length`.
    - `repeat`: p, in [0, 1].

    **Returns:** a [`emergo.theory.Cell`][] of float64 NumPy arrays. Raises an `InputError` that
    names an invalid value.
    """
    length = _sizes("length", length, 2)
    dim = _sizes("dim", dim, 1)
    burst = _sizes("burst", burst, 1)
    repeat = checked_numbers("repeat", repeat, "in [0, 1]", lambda p: (p >= 0) & (p <= 1))
    length, dim, burst, repeat = np.broadcast_arrays(length, dim, burst, repeat)
    bad = burst >= length
    if bad.any():
        raise InputError(
            f"burst must be smaller than length, got burst {burst[bad][0]:g} with length "
            f"{length[bad][0]:g}"
        )
    return Cell(length, dim, burst, repeat)


def grid(**axes: Numbers) -> Cell:
    """Return the product of axes as flat cells, e.g. `grid(length=[64, 128], dim=[16, 32])`.

    The last axis varies fastest.
    """
    arrays = np.meshgrid(*(np.atleast_1d(np.asarray(a)) for a in axes.values()), indexing="ij")
    return cells(**{name: array.ravel() for name, array in zip(axes, arrays, strict=True)})
