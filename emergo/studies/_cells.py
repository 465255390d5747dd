"""Tables of studies that are read from a folder without the types they are made of."""

import warnings
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..measure import Law, fit_law
from ._failures import Failures
from ._folder import Plan, StudyFolder
from ._outcomes import read_outcomes
from ._tune import best_of
from ._version_1 import renamed_curve


def study_table(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """The finished runs of a plan, one row per run, in its order.

    There are columns for every axis and field, `seed`, `plateau`, `censored` and `state`. `tries` is how often a run was begun
    anew after a failure, plus one. With a tuned axis, `chosen` marks the runs of the value with the shortest mean plateau of
    their cell. Runs that cannot be read are named in a warning and left out.
    """
    outcomes = read_outcomes(folder.runs)
    for path, why in outcomes.broken.items():
        warnings.warn(f"{path}: not a finished run that can be read ({why}); run the study to train it again", stacklevel=2)
    failures = Failures(folder.failures).counts()
    rows = []
    for unit in plan.units:
        for run in unit.runs:
            row = outcomes.rows.get(run.identity)
            if row is not None:
                tries = failures.get(run.identity, 0) + (row["state"] != "failed")
                rows.append(row | dict(zip(plan.axes, run.values, strict=True)) | {"unit": unit.id, "tries": max(tries, 1)})
    table = pd.DataFrame(rows)
    tuned = list(plan.study.get("tune", {}))
    if tuned and len(table):
        best = best_of(table, [axis for axis in plan.axes if axis != tuned[0]], tuned[0])
        table["chosen"] = table["identity"].isin(best["identity"])
    return table


def study_curves(folder: StudyFolder, plan: Plan, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves of the finished runs, one row per evaluation, with `identity`, the axes and `seed` in front.

    `columns` are those of the curves to take, by default all. Curves that cannot be read are named in a warning and left out.
    """
    rows = read_outcomes(folder.runs).rows
    parts = []
    for run in plan.runs:
        if run.identity not in rows:
            continue
        path = folder.runs / run.identity / "curves.parquet"
        try:
            with path.open("rb") as file:
                part = pq.ParquetFile(file).read(None if columns is None else list(columns))
        except (OSError, ValueError, pa.ArrowException) as error:
            warnings.warn(f"{path}: not curves that can be read ({str(error).splitlines()[0]})", stacklevel=2)
            continue
        if part.num_rows:
            part = part.rename_columns([renamed_curve(name) for name in part.column_names])
            head = {"identity": run.identity, **dict(zip(plan.axes, run.values, strict=True)), "seed": run.seed}
            for place, (name, value) in enumerate(head.items()):
                part = part.add_column(place, name, pa.repeat(pa.scalar(value), part.num_rows))
            parts.append(part.replace_schema_metadata(None))
    if not parts:
        return pd.DataFrame({"identity": [], "step": []})
    return pa.concat_tables(parts, promote_options="permissive").to_pandas()


def study_law(table: pd.DataFrame, plan: Plan) -> Law | None:
    """The law that the study asks for, fitted to its table (of a tuned axis, to the chosen runs); None if it asks for none."""
    law = plan.study.get("law")
    if law is None:
        return None
    used = table[table["chosen"]] if "chosen" in table else table
    return fit_law(used, law["y"], law["x"], fixed=law["fix"], what="this study")


def cell_summary(table: pd.DataFrame, axes: Sequence[str], planned: Sequence[Sequence[Any]] = ()) -> list[dict[str, Any]]:
    """One row per cell that has a finished run: median, smallest and largest plateau, and counts.

    A censored run counts with the last step observed: a median that rests on one (`bound`) is a lower bound. A failed run has
    no plateau. With a tuned axis, `chosen` marks the value that the cell keeps. `planned` has the values of every planned run.
    """
    counts: dict[tuple[Any, ...], int] = {}
    for values in planned:
        counts[tuple(values)] = counts.get(tuple(values), 0) + 1
    rows = []
    by = list(axes)
    groups = table.groupby(by, sort=True, dropna=False) if by and len(table) else [((), table)] if len(table) else []
    for key, members in groups:
        values = dict(zip(by, members[by].iloc[0], strict=True)) if by else {}
        plateaus = members["plateau"].dropna()
        censored = int(members["censored"].sum())
        row = {
            **values,
            "planned": counts.get(tuple(key) if isinstance(key, tuple) else (key,), len(members)),
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
