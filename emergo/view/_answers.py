"""Answers to the page's questions as plain data, shared by the server and the exported file."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import InputError
from ..core.json import to_jsonable
from ..core.terminal import counted
from ..store.reader import checker
from ._logs import KEPT, classes_of, log_forecasts
from ._runset import Learned, RunSet, contained, thin
from ._tables import JOIN

if TYPE_CHECKING:
    import pandas as pd

RUN_POINTS = 800  # points of each curve on the page of one run
MAP_STEPS = 240  # evaluations shown in the maps over layers and heads
DIGITS = 5  # significant digits of curves in JSON
MOST_LAWS = 32  # laws in an exported file
RESAMPLES = 200  # fewest resamples, and those of combinations of axes in an exported file
MOST_RESAMPLES = 2000
MOST_TERMS = 6  # most terms of a law that the user did not choose
_check_law = checker({"formula": str, "terms": [{"term": str, "fixed": bool}], "tables": [str]})
_NO_FIT = (
    "The figure's file does not list the terms of this law, because an older version wrote it; or "
    "the law has a fixed exponent, or runs that are in none of the figure's tables. "
    "Choose the terms on the left."
)
_DESCRIBED = ("name", "kind", "version", "axes", "planned", "notes")
MOMENTS = 120  # steps at which a run is forecast
Where = Mapping[str, Sequence[Any] | Mapping[str, float]]


def describe_set(runs: RunSet) -> dict[str, Any]:
    """Describe one set: its axes, curves, laws and figure."""
    figure = runs.figure
    if figure is not None:
        laws = [law | {"fit": law_request(runs, law)} for law in figure["laws"]]
        figure = {**figure, "laws": laws}
    description = {name: getattr(runs, name) for name in _DESCRIBED} | {
        "runs": len(runs.runs),
        "curves": runs.families(),
        "law": default_law(runs),
        "figure": figure,
        "terms": numeric_axes(runs),
        "learned": None if runs.learned is None else runs.learned._asdict(),
    }
    return to_jsonable(description)


def numeric_axes(runs: RunSet) -> list[str]:
    """List the axes that a power law can use: positive numbers that differ between runs.

    A table of a figure or of records also has outcomes, such as an accuracy. They are told from
    axes by their values: few of them repeat, and they are not whole numbers. Only runs with a
    plateau count there, because a figure may have tables of other things.
    """
    planned = runs.kind == "study"
    plateaus = runs.columns.get("plateau", [])
    measured = [planned or (value is not None and math.isfinite(value)) for value in plateaus]

    def usable(axis: str) -> bool:
        values = [v for v, kept in zip(runs.columns[axis], measured, strict=True) if kept]
        if planned:
            values = [value for value in values if value is not None]
        if not all(map(_is_positive, values)):
            return False
        distinct = set(values)
        whole = all(isinstance(value, int) or value.is_integer() for value in distinct)
        return len(distinct) > 1 and (planned or whole or 2 * len(distinct) <= len(values))

    return [axis for axis in runs.axes if measured and axis in runs.columns and usable(axis)]


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf


def default_law(runs: RunSet) -> dict[str, Any] | None:
    """Choose the law to show first.

    A study's own law comes first, then a law of the numeric axes. A figure starts with the axes of
    its first law. The law has only axes whose effects the cells can separate, and at least one cell
    more than numbers to fit.
    """
    if runs.law is not None and isinstance(runs.law.get("x"), list):
        return {"y": str(runs.law.get("y", "plateau")), "x": [str(term) for term in runs.law["x"]]}
    axes = numeric_axes(runs)
    for law in (runs.figure or {}).get("laws", ())[:1]:
        axes = [axis for axis in axes if axis in law.get("exponents", {})] or axes
    for size in range(min(len(axes), MOST_TERMS), 0, -1):
        for terms in itertools.combinations(axes, size):
            values = zip(*(runs.columns[term] for term in terms), strict=True)
            cells = {cell for cell in values if all(map(_is_positive, cell))}
            design = np.array([[1.0, *map(math.log, cell)] for cell in cells])
            if len(cells) > size + 1 and np.linalg.matrix_rank(design) == size + 1:
                return {"y": "plateau", "x": list(terms)}
    return None


def law_request(runs: RunSet, law: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of [`fit`][] that repeat a law of a figure on the same runs.

    The figure's file lists the terms of the law and the tables whose runs it was fitted to. The
    answer has `why` instead if the file lacks either.
    """
    try:
        _check_law(law, "law")
    except ValueError:
        return {"why": _NO_FIT}
    tables = set(law["tables"])
    parts = {part for part in runs.columns.get("part", ()) if tables & set(part.split(JOIN))}
    if not parts or any(term["fixed"] for term in law["terms"]):
        return {"why": _NO_FIT}
    return {
        "y": law["formula"].partition(" = ")[0],
        "x": [term["term"] for term in law["terms"]],
        "where": {"part": sorted(parts)},
    }


def run_detail(runs: RunSet, identity: str) -> dict[str, Any]:
    """Return the config and all curves of one run.

    Curves with one number per evaluation are thinned separately. Curves with several numbers
    (layers, heads, lags) share their evaluations, because one slider moves through all of them.
    """
    _check_run(runs, identity)
    columns = {
        name: np.asarray(values, np.float64) for name, values in runs.curves.read(identity).items()
    }
    classes = classes_of(columns)
    steps = columns.pop("step", np.zeros(0))
    families = runs.families()
    single = {name for name in columns if [] in families.get(name, ())}
    # Some rows of a log have metrics only.
    mapped = [np.isfinite(values) for name, values in columns.items() if name not in single]
    rows = np.flatnonzero(np.any(mapped, axis=0)) if mapped else np.arange(len(steps))
    count = min(MAP_STEPS, len(rows))
    shared = rows[np.unique(np.linspace(0, max(len(rows) - 1, 0), count).astype(int))]
    curves = {}
    maps = {}
    for name, values in columns.items():
        if name in single:
            x, y = thin(steps, values, RUN_POINTS)
            curves[name] = [x, _rounded(y)]
        else:
            shown = shared
            if "_head_" in name:  # not every row of a log has scores, so a row shows the last ones
                known = np.where(np.isfinite(values), np.arange(len(values)), 0)
                shown = np.maximum.accumulate(known)[shared]
            maps[name] = _rounded(values[shown])
    detail = {
        "identity": identity,
        "config": runs.config(identity),
        "evaluations": len(steps),
        "steps": steps[shared],
        "maps": maps,
        "curves": curves,
        "classes": classes,
    }
    return to_jsonable(detail)


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def stages(runs: RunSet, identity: str) -> dict[str, Any]:
    """Find the stages of one run in its divergence from the teacher, or else in its loss."""
    from ..measure import find_stages

    names = runs.curves.read(identity) if identity in runs.runs else {}
    name = next((name for name in ("kl_teacher", "loss") if name in names), None)
    answer = {"curve": name, "drops": [], "why": None}
    if name is None:
        return answer | {"why": "this run has no loss to find stages in"}
    step, value = runs.curve(identity, name)
    finite = np.isfinite(value)
    try:
        drops = find_stages(step[finite], value[finite])
    except InputError as error:
        return answer | {"why": str(error)}
    return to_jsonable(answer | {"drops": [drop._asdict() for drop in drops]})


def _check_run(runs: RunSet, identity: str) -> None:
    if identity not in runs.runs:
        raise InputError(f"no run '{identity[:40]}' in this set")


def look_back(
    runs: RunSet, identity: str, moments: int = MOMENTS, learned: Learned | None = None
) -> dict[str, Any]:
    """Forecast one run at evenly spaced evaluations until it emerged.

    Each forecast sees only the part of the log up to its step. `learned` replaces what counts as
    learned in a log.

    **Returns:** the forecasts as `moments`, and the step at which the run emerged as `came`. If
    the run cannot be forecast, `moments` is empty and `why` says the reason.
    """
    _check_run(runs, identity)
    if runs.kind == "log":
        return log_forecasts(runs, identity, learned, moments)
    import pandas as pd

    from ..forecasting import described_goal, forecast_frame, forecast_json
    from ..measure import emergence

    goal = described_goal(runs.config(identity))
    if isinstance(goal, str):
        return {"moments": [], "why": goal}
    columns = runs.curves.read(identity)
    step = np.asarray(columns.pop("step", ()), np.float64)
    if not len(step) or goal.metric not in columns:
        return {"moments": [], "why": f"the curve of {goal.metric} was not kept for this run"}
    try:
        result = emergence(step, columns[goal.metric], goal.threshold, goal.direction)
        reached = result.state == "reached"
        last = int(np.searchsorted(step, result.high)) if reached else len(step) - 1
        curves = pd.DataFrame(columns, index=step)
        rows = np.unique(np.linspace(0, last, min(last + 1, moments)).astype(int))
        forecasts = [forecast_json(forecast_frame(goal, curves.iloc[: i + 1])) for i in rows]
    except InputError as error:
        return {"moments": [], "why": str(error)}
    answer = {
        "came": result.time if reached else math.nan,
        "until": step[-1],
        "metric": goal.metric,
        "threshold": goal.threshold,
        "moments": [{name: forecast[name] for name in KEPT} for forecast in forecasts],
        "why": None,
    }
    return to_jsonable(answer)


def _run_table(runs: RunSet, where: Where) -> "pd.DataFrame":
    """Return the runs with given values in given columns; a tuned axis adds `chosen`."""
    from ..study.cells import run_table

    def passes(row: Mapping[str, Any]) -> bool:
        return all(_keeps(wanted, row.get(name)) for name, wanted in where.items())

    rows = (
        dict(zip(runs.columns, values, strict=True))
        for values in zip(*runs.columns.values(), strict=True)
    )
    return run_table(filter(passes, rows), runs.axes, runs.tune)


def _keeps(wanted: Sequence[Any] | Mapping[str, float], value: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(value, int | float) and wanted["low"] <= value <= wanted["high"]
    return value in wanted


def fit(
    runs: RunSet,
    y: str,
    x: Sequence[str],
    where: Where | None = None,
    resamples: int = MOST_RESAMPLES,
) -> dict[str, Any]:
    """Fit a law to the runs of a set, and evaluate it for each of these runs.

    **Arguments:** `where` maps columns to the values to keep, or to a range `low` to `high`. With a
    tuned axis only the chosen runs are kept. Terms of the study's own law come with its fixed
    exponents. Large tables use fewer than `resamples` resamples.

    **Returns:** the law as JSON, and for every run its identity, the values of the terms, and the
    law's value.
    """
    from ..measure import fit_law, law_json

    table = _run_table(runs, where or {})
    if "chosen" in table and runs.tune is not None:
        table = table[table["chosen"]]
    if "censored" in table:  # a figure may have tables without outcomes
        table = table[table["censored"].notna()]
    # The bootstrap holds one number per run and resample.
    resamples = int(np.clip(2_000_000 // max(len(table), 1), RESAMPLES, resamples))
    own = runs.law or {}
    fixed = own.get("fix") if list(x) == own.get("x") else None
    law = fit_law(table, y, list(x), fixed=fixed, resamples=resamples, what="this set")
    terms = {str(term): np.exp(term.log(table)) for term in law.terms}
    answer = {
        "law": law_json(law),
        "y": y,
        "x": list(terms),
        "identity": table["identity"].tolist(),
        "fitted": law.predict(table),
        "terms": terms,
    }
    return to_jsonable(answer)


def every_law(runs: RunSet, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Fit the laws that a page without a server offers.

    Laws of combinations of axes have fewer resamples, because there may be many of them.

    **Arguments:** `report` receives a line before the first fit.

    **Returns:** the answers of [`fit`][] by their arguments as JSON: the laws of the figure, the
    study's law, and the laws of all combinations of up to five axes.
    """
    requests: dict[str, tuple[list[Any], int]] = {}
    for *request, resamples in itertools.islice(_requests(runs), MOST_LAWS):
        key = json.dumps(request, separators=(",", ":"), ensure_ascii=False)
        requests.setdefault(key, (request, resamples))
    report(f"{runs.name}: fitting {counted(len(requests), 'law')}")
    laws: dict[str, Any] = {}
    for key, (request, resamples) in requests.items():
        errors: list[str] = []
        with contained(errors.append):
            laws[key] = fit(runs, *request, resamples=resamples)
        if errors:
            laws[key] = {"error": errors[0]}
    return laws


def _requests(runs: RunSet) -> Iterator[list[Any]]:
    """Yield the arguments of [`fit`][] for each law."""
    laws = [law_request(runs, law) for law in (runs.figure or {}).get("laws", ())]
    laws = [law | {"resamples": MOST_RESAMPLES} for law in [*laws, default_law(runs) or {}]]
    axes = numeric_axes(runs)[:5]
    for size in range(1, len(axes) + 1):
        laws += [{"y": "plateau", "x": list(x)} for x in itertools.combinations(axes, size)]
    return (
        [law["y"], law["x"], law.get("where", {}), law.get("resamples", RESAMPLES)]
        for law in laws
        if "x" in law
    )
