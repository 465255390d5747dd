"""A study as tidy tables: a row a run, a row an evaluation; and its law."""

import warnings
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..measure import Law, fit_law
from ._failures import Failures
from ._folder import Plan, StudyFolder
from ._outcomes import read_outcomes
from ._tune import best_of


def study_table(folder: StudyFolder, plan: Plan | None = None) -> pd.DataFrame:
    """The finished runs, a row a run, in the order of the plan.

    There are columns for every axis and field, `seed`, `plateau`, `censored` and `state`. `tries` is how often a run was begun
    anew after a failure, plus one. With a tuned axis, `chosen` marks the runs of the value with the shortest mean plateau of
    their cell. Runs that cannot be read are named in a warning and left out.
    """
    plan = folder.read() if plan is None else plan
    found = read_outcomes(folder.runs)
    for place, why in found.broken.items():
        warnings.warn(f"{place}: not a finished run that can be read ({why}); run the study to train it again", stacklevel=2)
    failures = Failures(folder.failures).counts()
    rows = []
    for unit in plan.units:
        for run in unit.runs:
            row = found.rows.get(run.identity)
            if row is not None:
                tries = failures.get(run.identity, 0) + (row["state"] != "failed")
                rows.append(row | dict(zip(plan.axes, run.values, strict=True)) | {"unit": unit.id, "tries": max(tries, 1)})
    table = pd.DataFrame(rows)
    tuned = list(plan.study.get("tune", {}))
    if tuned and len(table):
        best = best_of(table, [axis for axis in plan.axes if axis != tuned[0]], tuned[0])
        table["chosen"] = table["identity"].isin(best["identity"])
    return table


def study_curves(folder: StudyFolder, plan: Plan | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves of the finished runs, a row an evaluation, with `identity`, the axes and `seed` in front.

    `columns` are those of the curves to take, by default all. Curves that cannot be read are named in a warning and left out.
    """
    plan = folder.read() if plan is None else plan
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
