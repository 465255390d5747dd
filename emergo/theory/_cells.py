"""A cell of the parameter space: sequence length, dimension and the two kinds of repetition."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike as JaxArrayLike
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._errors import InputError

# A number or an array of them, of NumPy or JAX, traced or not. Static checkers cannot follow arithmetic on that union.
if TYPE_CHECKING:
    Scalars = Any
else:
    Scalars = Float[JaxArrayLike, "..."]


Numbers = ArrayLike | Sequence[Any]
"""What a user may give: a number, a sequence or an array."""
_LARGEST = 1e15  # whole numbers beyond it are not exact in float64


class Cell(NamedTuple):
    """Four arrays of one shape (or four scalars): one point of the theory per element.

    Make it with [`emergo.theory.cells`][], which checks the values; the formulas of this room trust them.
    """

    length: Scalars
    """T, the number of tokens."""
    dim: Scalars
    """d, the dimension of a token."""
    burst: Scalars
    """B, how many times the relevant token appears in the sequence (in-context repetition)."""
    repeat: Scalars
    """p, the probability that the relevant token is the special one (cross-sample repetition)."""


def _sizes(name: str, values: Numbers, least: int) -> Float[np.ndarray, "..."]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a whole number of at least {least}, got {values!r}") from None
    bad = ~np.isfinite(array) | (array < least) | (array != np.floor(array))
    if not bad.any() and (array > _LARGEST).any():
        raise InputError(f"{name} must be at most {_LARGEST:g}, got {float(array.max()):g}")
    if bad.any():
        raise InputError(f"{name} must be a whole number of at least {least}, got {float(array[bad].flat[0]):g}")
    return array


def cells(length: Numbers, dim: Numbers, burst: Numbers = 1, repeat: Numbers = 0.0) -> Cell:
    """Checks four numbers or arrays and broadcasts them against each other.

    **Arguments:**

    - `length`: T, at least 2.
    - `dim`: d, at least 1.
    - `burst`: B, at least 1 and smaller than `length`.
    - `repeat`: p, in [0, 1].

    **Returns:**

    A [`emergo.theory.Cell`][] of float64 NumPy arrays of one shape.

    **Raises** `InputError` with one line that names the value that is wrong.
    """
    length, dim, burst = _sizes("length", length, 2), _sizes("dim", dim, 1), _sizes("burst", burst, 1)
    try:
        repeat = np.asarray(repeat, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"repeat must be a number in [0, 1], got {repeat!r}") from None
    bad = ~((repeat >= 0) & (repeat <= 1))
    if bad.any():
        raise InputError(f"repeat must be in [0, 1], got {float(repeat[bad].flat[0]):g}")
    try:
        length, dim, burst, repeat = np.broadcast_arrays(length, dim, burst, repeat)
    except ValueError:
        shapes = ", ".join(str(a.shape) for a in (length, dim, burst, repeat))
        raise InputError(f"length, dim, burst and repeat must broadcast; their shapes are {shapes}") from None
    bad = burst >= length
    if bad.any():
        raise InputError(
            f"burst must be smaller than length, got burst {burst[bad].flat[0]:g} with length {length[bad].flat[0]:g}"
        )
    return Cell(length, dim, burst, repeat)


def grid(**axes: Numbers) -> Cell:
    """The full product of some axes as one flat [`emergo.theory.Cell`][].

    ```python
    grid(length=[64, 128], dim=[16, 32, 64])  # six cells, the last axis fastest
    ```
    """
    arrays = np.meshgrid(*(np.atleast_1d(np.asarray(a)) for a in axes.values()), indexing="ij")
    return cells(**{name: array.ravel() for name, array in zip(axes, arrays, strict=True)})
