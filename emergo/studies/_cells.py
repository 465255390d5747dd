"""Tables of studies, also of those whose types are not known here, and the best value of a tuned axis (zucchet2025, D.3)."""

import collections
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .._errors import InputError
from ._curves import read_curves
from ._folder import Plan, StudyFolder
from ._outcomes import CURVES, Failures, read_outcomes, read_run
from ._version_1 import renamed_curve

if TYPE_CHECKING:
    from ..measure import Law


def cell_means(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row per cell: the mean plateau of its runs. A censored one counts as it stands, a failed one as infinite."""
    filled = table.assign(plateau=table["plateau"].where(table["state"] != "failed", np.inf))
    grouped = filled.groupby(list(by), sort=True)
    return grouped.agg(plateau=("plateau", "mean"), censored=("censored", "sum"), runs=("plateau", "size")).reset_index()


def run_table(rows: Iterable[Mapping[str, Any]], axes: Sequence[str], tuned: str | None) -> pd.DataFrame:
    """A table of runs. With a tuned axis, `chosen` marks the runs of the value with the shortest mean plateau of their cell."""
    table = pd.DataFrame(list(rows))
    if tuned is not None and len(table):
        by = [axis for axis in axes if axis != tuned]
        means = cell_means(table, [*by, tuned])
        best = means.loc[means.groupby(by)["plateau"].idxmin() if by else [means["plateau"].idxmin()], [*by, tuned]]
        table["chosen"] = table["identity"].isin(table.merge(best, on=[*by, tuned])["identity"])
    return table


def table_law(table: pd.DataFrame, y: str, x: Sequence[str], fix: Mapping[str, float], what: str) -> "Law":
    """A law of a table of runs; with a tuned axis, of the chosen ones."""
    from ..measure import fit_law  # and with it JAX, for which `export` need not wait

    return fit_law(table[table["chosen"]] if "chosen" in table else table, y, list(x), fixed=dict(fix), what=what)


def study_table(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """The finished runs of a plan, one row per run, in its order, with every axis and field, `seed`, `plateau`, `censored`,
    `state` and `tries`: how often a run was begun. Runs that cannot be read are named in a warning and left out."""
    outcomes, (failures, unread) = read_outcomes(folder.runs), Failures(folder.failures).counts()
    own = {str(folder.runs), *(str(folder.runs / run.identity) for run in plan.runs)}
    for path, why in ((path, why) for path, why in outcomes.broken.items() if path in own):
        warnings.warn(f"{path}: not a finished run that can be read ({why}); run the study to train it again", stacklevel=2)
    for path, why in unread.items():
        warnings.warn(f"{path}: not a record of a failure that can be read ({why}); it counts for none", stacklevel=2)
    rows = []
    for unit in plan.units:
        for run in unit.runs:
            if run.identity in outcomes.rows:
                row = outcomes.rows[run.identity] | dict(zip(plan.axes, run.values, strict=True))
                tries = failures.get(run.identity, 0) + (row["state"] != "failed")
                rows.append(row | {"unit": unit.id, "tries": max(tries, 1)})
    return run_table(rows, plan.axes, next(iter(plan.study.get("tune", {})), None))


def study_curves(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """The curves of the finished runs, one row per evaluation, with `identity`, the axes and `seed` in front. Curves that
    cannot be read are named in a warning and left out."""
    rows, parts = read_outcomes(folder.runs).rows, []
    kinds = {axis: {type(run.values[i]) for run in plan.runs} - {type(None)} for i, axis in enumerate(plan.axes)}
    mixed = {axis for axis, found in kinds.items() if len(found) > 1 and not found <= {int, float}}  # as `storable` has it
    for run in plan.runs:
        if run.identity not in rows:
            continue
        path = folder.runs / run.identity
        try:
            part = read_curves(path, read_run(path, run.identity, curves=False))
        except (OSError, ValueError) as error:
            warnings.warn(f"{path / CURVES}: not curves that can be read ({error})", stacklevel=2)
            continue
        if part.num_rows:
            part = part.rename_columns([renamed_curve(name) for name in part.column_names])
            values = {axis: str(v) if axis in mixed else v for axis, v in zip(plan.axes, run.values, strict=True)}
            head = {"identity": run.identity, **values, "seed": run.seed}
            for position, (name, value) in enumerate(head.items()):
                part = part.add_column(position, name, pa.repeat(pa.scalar(value), part.num_rows))
            parts.append(part.replace_schema_metadata(None))
    if not parts:
        return pd.DataFrame({"identity": [], "step": []})
    try:
        whole = pa.concat_tables(parts, promote_options="permissive")
        parts.clear()
        return whole.to_pandas(split_blocks=True, self_destruct=True)  # a column at a time, so that they are not there twice
    except pa.ArrowException as error:
        words = str(error).splitlines()[0]
        raise InputError(f"{folder.runs}: runs have curves of one name and of different types ({words})") from None


def study_law(table: pd.DataFrame, plan: Plan) -> "Law | None":
    """The law that the study asks for, fitted to its table; None if it asks for none."""
    law = plan.study.get("law")
    return None if law is None else table_law(table, law["y"], law["x"], law["fix"], "this study")


def cell_summary(table: pd.DataFrame, axes: Sequence[str], planned: Sequence[Sequence[Any]] = ()) -> list[dict[str, Any]]:
    """One row per cell that has a finished run: median, smallest and largest plateau, and counts. A censored run counts with
    the last step observed: a median that rests on one (`bound`) is a lower bound. A failed run has no plateau. With a tuned
    axis, `chosen` marks the value that the cell keeps. `planned` has the values of every planned run."""
    if not len(table):
        return []
    counts, by, rows = collections.Counter(map(tuple, planned)), list(axes), []
    for key, members in table.groupby(by, sort=True, dropna=False) if by else [((), table)]:
        plateaus, censored = members["plateau"].dropna(), int(members["censored"].sum())
        numbers = map(float, (plateaus.median(), plateaus.min(), plateaus.max())) if len(plateaus) else (None, None, None)
        row = dict(zip(by, members[by].iloc[0], strict=True))
        row |= {"planned": counts.get(tuple(key) if isinstance(key, tuple) else (key,), len(members)), "runs": len(members)}
        row |= dict(zip(("plateau", "plateau_min", "plateau_max"), numbers, strict=True))
        row |= {"bound": censored > 0 and 2 * censored >= len(plateaus), "censored": censored}
        row |= {"failed": int((members["state"] == "failed").sum())}
        row |= {"chosen": bool(members["chosen"].iloc[0])} if "chosen" in members else {}
        rows.append(row)
    return rows
