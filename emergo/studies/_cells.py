"""The cells of a study in numbers."""

from typing import Any

import pandas as pd

from ._folder import Plan


def cell_summary(table: pd.DataFrame, plan: Plan) -> list[dict[str, Any]]:
    """A row a cell that has a finished run: median, smallest and largest plateau, and counts.

    A censored run counts with the last step observed: a median that rests on one (`bound`) is a lower bound. A failed run has
    no plateau. With a tuned axis, `chosen` marks the value that the cell keeps.
    """
    planned: dict[tuple[Any, ...], int] = {}
    for run in plan.runs:
        planned[tuple(run.values)] = planned.get(tuple(run.values), 0) + 1
    rows = []
    by = plan.axes
    groups = table.groupby(by, sort=True) if by and len(table) else [((), table)] if len(table) else []
    for key, members in groups:
        values = dict(zip(by, members[by].iloc[0], strict=True)) if by else {}
        plateaus = members["plateau"].dropna()
        censored = int(members["censored"].sum())
        row = {
            **values,
            "planned": planned.get(tuple(key) if isinstance(key, tuple) else (key,), len(members)),
            "runs": len(members),
            "plateau": float(plateaus.median()) if len(plateaus) else None,
            "plateau_min": float(plateaus.min()) if len(plateaus) else None,
            "plateau_max": float(plateaus.max()) if len(plateaus) else None,
            "bound": censored > 0 and 2 * censored >= len(plateaus),
            "censored": censored,
            "failed": int((members["state"] == "failed").sum()),
        }
        if "chosen" in members:
            row["chosen"] = bool(members["chosen"].iloc[0])
        rows.append(row)
    return rows
