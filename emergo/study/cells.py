"""Tables of runs, and the summary of each cell: the runs that differ only in their seeds.

The tables are built from files alone, so that they also work for studies whose task and model
types are not importable here.
"""

import collections
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ..core.terminal import counted
from ..store.curves import read_known_curves
from ..store.folder import Plan, StudyFolder
from ..store.outcomes import CURVES, Failures, Outcomes, axis_values, read_outcomes
from ..store.packs import pack_folder

if TYPE_CHECKING:
    from ..measure import Law


def cell_means(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return one row per cell with the mean plateau of its runs.

    Censored runs count with the last observed step, failed runs as infinite.
    """
    filled = table.assign(plateau=table["plateau"].where(table["state"] != "failed", np.inf))
    grouped = filled.groupby(list(by), sort=True)
    return grouped.agg(
        plateau=("plateau", "mean"), censored=("censored", "sum"), runs=("plateau", "size")
    ).reset_index()


def run_table(
    rows: Iterable[Mapping[str, Any]], axes: Sequence[str], tuned: str | None
) -> pd.DataFrame:
    """Return a table of runs.

    If an axis is tuned, the column `chosen` marks, in each cell, the runs of its value with the
    shortest mean plateau (zucchet2025, D.3).
    """
    table = pd.DataFrame(list(rows))
    if tuned is not None and len(table):
        by = [axis for axis in axes if axis != tuned]
        means = cell_means(table, [*by, tuned])
        shortest = means.groupby(by)["plateau"].idxmin() if by else [means["plateau"].idxmin()]
        best = means.loc[shortest, [*by, tuned]]
        table["chosen"] = table["identity"].isin(table.merge(best, on=[*by, tuned])["identity"])
    return table


def table_law(
    table: pd.DataFrame, y: str, x: Sequence[str], fix: Mapping[str, float], what: str
) -> "Law":
    """Fit a law to a table of runs, or to its chosen runs if an axis is tuned."""
    from ..measure import fit_law  # imports JAX, which `emergo study export` does not need

    chosen = table[table["chosen"]] if "chosen" in table else table
    return fit_law(chosen, y, list(x), fixed=dict(fix), what=what)


def study_table(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """Return the finished runs of a plan, one row per run in the order of the plan.

    The columns are the axes and all fields, `seed`, `plateau`, `censored`, `state`, and `tries`:
    how many times the run was started. If there are runs without checksums, the column `unverified`
    marks them. Unreadable runs are left out with a warning.
    """
    outcomes = read_outcomes(folder.runs, form=True)
    unverified = outcomes.unverified
    failures, unread = Failures(folder.failures).counts()
    for path, why in unread.items():
        warnings.warn(f"{path}: cannot be read and is left out ({why})", stacklevel=2)
    _warn_of_unreadable(folder, plan, outcomes)
    rows = []
    contradicted = 0
    for unit in plan.units:
        for run in unit.runs:
            if run.identity in outcomes.rows:
                row = outcomes.rows[run.identity]
                values = axis_values(plan.axes, run.values, row, outcomes.stated[run.identity])
                contradicted += list(values.values()) != run.values
                tries = failures.get(run.identity, 0) + (row["state"] != "failed")
                row = row | values | {"unit": unit.id, "tries": max(tries, 1)}
                if unverified:
                    row["unverified"] = run.identity in unverified
                rows.append(row)
    if contradicted:
        warnings.warn(
            f"{folder.plans / plan.key}.json: {counted(contradicted, 'run')} of this plan "
            f"{'has' if contradicted == 1 else 'have'} other values than the plan says; theirs "
            f"count",
            stacklevel=2,
        )
    return run_table(rows, plan.axes, next(iter(plan.study.get("tune", {})), None))


def _warn_of_unreadable(folder: StudyFolder, plan: Plan, outcomes: Outcomes) -> None:
    """Warn of the runs of a plan, and of packs, that cannot be read."""
    own = {str(folder.runs), *(str(folder.runs / run.identity) for run in plan.runs)}
    packs = str(pack_folder(folder.runs))
    for path, why in outcomes.broken.items():
        if path in own or path.startswith(packs):
            warnings.warn(f"{path}: cannot be read and is left out ({why})", stacklevel=3)


def study_curves(folder: StudyFolder, plan: Plan) -> pd.DataFrame:
    """Return the curves of the finished runs, one row per evaluation.

    The first columns are `identity`, the axes and `seed`. Unreadable curves are left out with a
    warning.
    """
    outcomes = read_outcomes(folder.runs, form=True)
    _warn_of_unreadable(folder, plan, outcomes)
    found = [run for run in plan.runs if run.identity in outcomes.rows]
    values_of = {
        run.identity: axis_values(
            plan.axes, run.values, outcomes.rows[run.identity], outcomes.stated[run.identity]
        )
        for run in found
    }
    mixed = {axis for axis in plan.axes if _is_mixed(v[axis] for v in values_of.values())}
    parts = []
    for run in found:
        try:
            checksum = outcomes.checksums[run.identity]
            part = read_known_curves(folder.runs, run.identity, checksum)
        except (OSError, ValueError) as error:
            path = folder.runs / run.identity / CURVES
            warnings.warn(f"{path}: not curves that can be read ({error})", stacklevel=2)
            continue
        if part.num_rows:
            head: dict[str, Any] = {"identity": run.identity}
            for axis, value in values_of[run.identity].items():
                head[axis] = str(value) if axis in mixed else value
            head["seed"] = run.seed
            for position, (name, value) in enumerate(head.items()):
                part = part.add_column(position, name, pa.repeat(pa.scalar(value), part.num_rows))
            parts.append(part.replace_schema_metadata(None))
    if not parts:
        return pd.DataFrame({"identity": [], "step": []})
    whole = pa.concat_tables(_of_equal_types(parts), promote_options="default")
    parts.clear()
    # Convert one column at a time and free it, so that the curves are not in memory twice.
    return whole.to_pandas(split_blocks=True, self_destruct=True)


def _of_equal_types(parts: list[pa.Table]) -> list[pa.Table]:
    """Return the tables with the columns that have several types as 64-bit numbers or text."""
    types = collections.defaultdict(set)
    for part in parts:
        for field in part.schema:
            types[field.name].add(field.type)
    common = {}
    for name, kinds in types.items():
        kinds.discard(pa.null())
        if len(kinds) > 1:
            texts = any(map(pa.types.is_string, kinds))
            common[name] = pa.string() if texts else pa.float64()

    def cast(part: pa.Table) -> pa.Table:
        fields = [pa.field(f.name, common.get(f.name, f.type)) for f in part.schema]
        return part.cast(pa.schema(fields), safe=False)  # whole numbers above 2^53 are rounded

    return list(map(cast, parts)) if common else parts


def _is_mixed(values: Iterable[Any]) -> bool:
    """Return True for values of several types, which a column must hold as text."""
    types = set(map(type, values)) - {type(None)}
    return len(types) > 1 and not types <= {int, float}


def study_law(table: pd.DataFrame, plan: Plan) -> "Law | None":
    """Fit the law that a study asks for to its table; return None if it asks for none."""
    law = plan.study.get("law")
    return None if law is None else table_law(table, law["y"], law["x"], law["fix"], "this study")


def median_plateau(plateaus: Iterable[float], censored: int) -> tuple[float | None, bool]:
    """Return the median plateau of a cell, and whether it is only a lower bound.

    A censored run counts with its last observed step, which its plateau exceeds. Censored runs
    are the longest of a cell, so the median is a lower bound once they are at least half of the
    runs. Failed runs do not count.

    **Arguments:**

    - `plateaus`: of all runs of the cell; NaN for failed ones.
    - `censored`: how many of the runs are censored.
    """
    known = [float(plateau) for plateau in plateaus if np.isfinite(plateau)]
    if not known:
        return None, False
    return statistics.median(known), 2 * censored >= len(known)


def cell_summary(
    table: pd.DataFrame, axes: Sequence[str], planned: Sequence[Sequence[Any]] = ()
) -> list[dict[str, Any]]:
    """Summarise each cell that has a finished run.

    **Arguments:**

    - `table`: finished runs, one row per run.
    - `axes`: the columns that define the cells.
    - `planned`: the values of the axes of every planned run; by default from the table.

    **Returns:** one row per cell with the values of the axes; the number of `planned` runs, and of
    finished `runs`, `censored` and `failed` ones; the median `plateau` with `plateau_min` and
    `plateau_max` (None if all runs failed); and `bound`, whether the median is only a lower bound
    (see `median_plateau`). With a tuned axis, `chosen` marks the value that the cell keeps.
    """
    if not len(table):
        return []
    counts = collections.Counter(map(tuple, planned))
    by = list(axes)
    rows = []
    for key, members in table.groupby(by, sort=True, dropna=False) if by else [((), table)]:
        plateaus = members["plateau"].dropna()
        censored = int(members["censored"].sum())
        median, bound = median_plateau(plateaus, censored)
        values = tuple(key) if isinstance(key, tuple) else (key,)
        row = dict(zip(by, members[by].iloc[0], strict=True)) | {
            "planned": counts.get(values, len(members)),
            "runs": len(members),
            "plateau": median,
            "plateau_min": float(plateaus.min()) if len(plateaus) else None,
            "plateau_max": float(plateaus.max()) if len(plateaus) else None,
            "bound": bound,
            "censored": censored,
            "failed": int((members["state"] == "failed").sum()),
        }
        if "chosen" in members:
            row["chosen"] = bool(members["chosen"].iloc[0])
        rows.append(row)
    return rows
