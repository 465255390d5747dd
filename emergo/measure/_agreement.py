"""Our law beside the published one."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ._laws import Law, evaluate_law
from ._terms import censored_rows, column, usable_rows

LEVEL = (0.8, 1.25)
SLACK = 0.05


@dataclasses.dataclass(frozen=True)
class Published:
    """A law as a paper prints it.

    >>> Published("Fig. 3", C=2.0, exponents={"dim": 2.0}).at(dim=8)
    128.0
    """

    source: str
    C: float
    exponents: Mapping[str, float]
    r2: float | None = None

    def at(self, **values: Any) -> Any:
        """The law's value where its columns have these values, numbers or arrays."""
        return self.C * math.prod(values[name] ** power for name, power in self.exponents.items())


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How a fitted law compares with a published one.

    >>> Agreement(level=1.0, agrees=True, why="exponents and level within the limits").agrees
    True
    """

    level: float
    """Geometric mean over our observed runs of our y over the published law."""
    agrees: bool
    """Every exponent within max(95% half-width, 0.05) and the level in [0.8, 1.25]."""
    why: str


def compare(law: Law, table: pd.DataFrame, published: Published) -> Agreement:
    """Sets a law beside the published one.

    **Arguments:**

    - `law`, `table`: ours and the runs that it was fitted to.
    - `published`: the printed law; its columns must be columns of ours.

    >>> from emergo.measure import fit_law
    >>> table = pd.DataFrame({"dim": [2, 4, 8], "plateau": [6, 12, 24]})
    >>> compare(fit_law(table, x=["dim"]), table, Published("Fig. 3", 6.0, {"dim": 1.0})).why
    'level 0.50 is outside [0.8, 1.25]'
    """
    rows = table[usable_rows(table, law.y)]
    rows = rows[~censored_rows(rows)]
    level = float(np.exp(np.mean(np.log(column(rows, law.y) / evaluate_law(published.C, published.exponents, rows)))))
    reasons = []
    for name, printed in published.exponents.items():
        low, high = law.ci95[name]
        half = (high - low) / 2
        allowed = max(half if math.isfinite(half) else 0.0, SLACK)
        off = law.exponents[name] - printed
        if abs(off) > allowed:
            reasons.append(f"exponent of {name} is off by {off:+.3f}, more than {allowed:.3f}")
    if not LEVEL[0] <= level <= LEVEL[1]:
        reasons.append(f"level {level:.2f} is outside [{LEVEL[0]}, {LEVEL[1]}]")
    return Agreement(level, not reasons, "; ".join(reasons) or "exponents and level within the limits")
