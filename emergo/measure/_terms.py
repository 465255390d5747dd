"""Terms of a power law, such as `dim`, `length/burst` or `dim^0.5*length`: products of columns that
share one exponent. Also the columns of a table that a law reads."""

import dataclasses
import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ..core.errors import InputError, unknown
from ..theory import repeat_factor

_FACTOR = re.compile(
    r"\s*([*/])\s*([A-Za-z_]\w*(?:\.\w+)*)\s*(?:\^\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?))?\s*"
)


@dataclasses.dataclass(frozen=True)
class Term:
    """A product of powers of columns, e.g. `length/burst`, that a law raises to one exponent."""

    powers: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Term":
        """Parse columns, joined by `*` and `/`, each with an optional power after `^`."""
        # Every factor but the first one starts with a sign.
        factors = list(_FACTOR.finditer(f"*{text}"))
        if not factors or "".join(factor[0] for factor in factors) != f"*{text}":
            raise InputError(
                f"'{text}' is not a term; write a column, or a product such as length/burst or "
                f"dim^0.5*length"
            )
        powers = tuple(
            (factor[2], float(factor[3] or 1) * (-1 if factor[1] == "/" else 1))
            for factor in factors
        )
        if not all(0 < abs(power) < 1e3 for _, power in powers):
            raise InputError(f"'{text}': a power must be a finite number other than 0")
        return cls(powers)

    def __str__(self) -> str:
        text = ""
        for name, power in self.powers:
            sign = ""
            if text:
                sign = "*" if power > 0 else "/"
                power = abs(power)
            text += f"{sign}{name}" if power == 1 else f"{sign}{name}^{power:g}"
        return text

    def log(self, table: pd.DataFrame) -> Float[np.ndarray, " rows"]:
        """Return the logarithm of the term for every row; its columns must be positive."""
        return log_product(self.powers, table)


def column(table: pd.DataFrame, name: str) -> Float[np.ndarray, " rows"]:
    """Return a column as numbers.

    A missing column `repeat_factor` is computed from `repeat` and `dim` (Eq. 22).
    """
    if name == "repeat_factor" and name not in table:
        return repeat_factor(column(table, "repeat"), column(table, "dim"))
    if name not in table:
        raise unknown("column", name, map(str, table.columns))
    try:
        return np.asarray(pd.to_numeric(table[name]), np.float64)
    except (TypeError, ValueError):
        raise InputError(f"column '{name}' is not numeric") from None


def usable_rows(table: pd.DataFrame, y: str) -> Bool[np.ndarray, " rows"]:
    """Mark rows with a finite `y` whose `state`, if the table has that column, is not `failed`."""
    usable = np.isfinite(column(table, y))
    if "state" in table:
        usable &= np.asarray(table["state"].astype(str) != "failed")
    return usable


def censored_rows(table: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
    """Mark censored rows by the column `censored`, if the table has it.

    Its values are true/false or 1/0, also as text.
    """
    if "censored" not in table:
        return np.zeros(len(table), bool)
    words = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    flags = table["censored"].astype(str).str.lower().map(words)
    if flags.isna().any():
        raise InputError("column 'censored' must be true or false (or 1 or 0)")
    return np.asarray(flags, bool)


def log_product(
    powers: Iterable[tuple[str, float]], table: pd.DataFrame
) -> Float[np.ndarray, " rows"]:
    """Return the logarithm of a product of powers of columns."""
    return sum((power * log_column(table, name) for name, power in powers), np.zeros(len(table)))


def log_column(table: pd.DataFrame, name: str) -> Float[np.ndarray, " rows"]:
    """Return the logarithm of a column, which must be positive."""
    values = column(table, name)
    invalid = ~(np.isfinite(values) & (values > 0))
    if invalid.any():
        raise InputError(
            f"column '{name}' must be positive for a power law, but has {values[invalid][0]:g} "
            f"({invalid.sum()} of {len(values)} rows)"
        )
    return np.log(values)
