"""What the page asks for, as plain data: the overview, one run, a law, stages. The server and the exported file share these."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import InputError
from .._json import to_jsonable
from ._catalog import Catalog
from ._runset import RunSet
from ._tables import JOIN
from ._thin import thin

RUN_POINTS = 800  # of a curve of one run
MAP_STEPS = 240  # evaluations of the maps over layers and heads
DIGITS = 5  # significant digits of curves in JSON
_TEXT = ("seed", "part", "state", "identity", "device", "reason")


def overview(catalog: Catalog) -> dict[str, Any]:
    """What there is to see, without the runs."""
    sets = [{"key": key} | describe_set(runs) for key, runs in catalog.sets().items()]
    return {"folder": catalog.root.name or str(catalog.root), "sets": sets, "notes": list(catalog.notes)}


def describe_set(runs: RunSet) -> dict[str, Any]:
    figure = None
    if runs.figure is not None:
        known = ("figure", "title", "preset", "caveat", "laws", "checks", "provenance", "partial")
        figure = {name: runs.figure.get(name) for name in known}
    shown = {"name": runs.name, "kind": runs.kind, "version": runs.version, "axes": runs.axes, "runs": len(runs.runs)}
    shown |= {"planned": runs.planned, "curves": runs.families(), "law": default_law(runs), "figure": figure}
    return to_jsonable(shown | {"terms": numeric_axes(runs), "notes": list(runs.notes)})


def numeric_axes(runs: RunSet) -> list[str]:
    """The axes that a law can have: positive numbers that differ between runs."""

    def positive(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0

    columns = {axis: [v for v in runs.columns.get(axis, []) if v is not None] for axis in runs.axes if axis not in _TEXT}
    return [axis for axis, values in columns.items() if len(set(map(repr, values))) > 1 and all(map(positive, values))]


def default_law(runs: RunSet) -> dict[str, Any] | None:
    """The law that is shown first: what the study asks for, or a law of every axis that can have an exponent."""
    if runs.law is not None and isinstance(runs.law.get("x"), list):
        return {"y": str(runs.law.get("y", "plateau")), "x": [str(term) for term in runs.law["x"]]}
    axes = numeric_axes(runs)
    return {"y": "plateau", "x": axes} if axes and "plateau" in runs.columns else None


def run_detail(runs: RunSet, identity: str) -> dict[str, Any]:
    """One run: its config, and all its curves. Curves of one number are thinned one by one; those of several (layers, heads,
    lags) share their evaluations, so that a slider moves through all of them at once."""
    if identity not in runs.runs:
        raise InputError(f"no run '{identity[:40]}' in this set")
    columns = {name: np.asarray(values, np.float64) for name, values in runs.curves.read(identity).items()}
    steps, families = columns.pop("step", np.zeros(0)), runs.families()
    single = {name: thin(steps, values, RUN_POINTS) for name, values in columns.items() if [] in families.get(name, ())}
    shared = np.unique(np.linspace(0, max(len(steps) - 1, 0), min(MAP_STEPS, len(steps))).astype(int))
    maps = {name: _rounded(values[shared]) for name, values in columns.items() if name not in single}
    shown = {"identity": identity, "config": runs.config(identity), "evaluations": len(steps)}
    shown |= {"steps": steps[shared], "maps": maps}
    return to_jsonable(shown | {"curves": {name: [x, _rounded(y)] for name, (x, y) in single.items()}})


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]


def stages(runs: RunSet, identity: str) -> dict[str, Any]:
    """The stages of one run: of its divergence from the teacher where it has that, else of its loss."""
    from ..measure import find_stages

    names = runs.curves.names(identity) if identity in runs.runs else []
    name = next((name for name in ("kl_teacher", "loss") if name in names), None)
    if name is None:
        return {"curve": None, "drops": [], "why": "this run has no loss to find stages in"}
    step, value = runs.curve(identity, name)
    finite = np.isfinite(value)
    try:
        drops = find_stages(step[finite], value[finite])
    except InputError as error:
        return {"curve": name, "drops": [], "why": str(error)}
    return to_jsonable({"curve": name, "drops": [drop._asdict() for drop in drops], "why": None})


def fit(runs: RunSet, y: str, x: Sequence[str], where: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Any]:
    """A law of the runs that have one of these values in each of these columns: `law_json` of it, and its value for every run.
    With a tuned axis only the chosen runs count, as in the study's own law."""
    import pandas as pd

    from ..measure import fit_law, law_json
    from ..studies._cells import run_table

    kept = range(len(runs.runs))
    for name, allowed in (where or {}).items():
        kept = [i for i in kept if name in runs.columns and runs.columns[name][i] in allowed]
    table = pd.DataFrame({name: [values[i] for i in kept] for name, values in runs.columns.items()})
    if runs.tune is not None and len(table):
        rows = [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
        table = run_table(rows, runs.axes, runs.tune)
        table = table[table["chosen"]]
    asked = runs.law or {}
    fixed = {str(k): float(v) for k, v in dict(asked.get("fix") or {}).items()} if list(x) == asked.get("x") else {}
    resamples = int(np.clip(2_000_000 // max(len(table), 1), 200, 2000))  # the bootstrap holds one number per run and resample
    law = fit_law(table, y, list(x), fixed=fixed, resamples=resamples, what="this set")
    fitted, terms = law.predict(table), {str(term): np.exp(term.log(table)) for term in law.terms}
    shown: dict[str, Any] = {"law": law_json(law), "y": y, "x": list(terms), "identity": table["identity"].tolist()}
    return to_jsonable(shown | {"fitted": fitted, "terms": terms, "resamples": resamples})


def figure_laws(runs: RunSet) -> list[dict[str, Any] | None]:
    """For every law of a figure the terms and the runs that it was fitted to. A figure does not write these down: they are
    looked for among its tables that have as many runs, and taken when fitting them gives the same law; None where none do."""
    parts = sorted({part for value in runs.columns.get("part", ()) for part in str(value).split(JOIN)})
    found: list[dict[str, Any] | None] = []
    for law in (runs.figure or {}).get("laws", ()):
        found.append(None)
        try:
            terms, count = tied_terms(law["exponents"]), law["runs"] + law["censored"] + law["failed"]
            for size, chosen in ((n, c) for n in range(1, len(parts) + 1) for c in itertools.combinations(parts[:8], n)):
                values = sorted({v for v in runs.columns["part"] if set(v.split(JOIN)) & set(chosen)})
                if sum(value in values for value in runs.columns["part"]) != count:
                    continue
                where = {"part": values} if size < len(parts) else {}
                again = fit(runs, "plateau", terms, where)["law"]
                if math.isclose(again["C"], law["C"], rel_tol=1e-6):
                    found[-1] = {"y": "plateau", "x": terms, "where": where}
                    break
        except (InputError, KeyError, TypeError, ValueError):
            continue
    return found


def tied_terms(exponents: Mapping[str, float]) -> list[str]:
    """The terms of a law by its exponents: columns whose exponents are the same but for their sign are one term."""
    terms: list[str] = []
    last = math.nan
    for name, exponent in exponents.items():
        if terms and abs(exponent) == abs(last):
            terms[-1] += f"{'*' if exponent == last else '/'}{name}"
        else:
            terms.append(name)
            last = exponent
    return terms


def every_law(runs: RunSet, most: int = 32) -> dict[str, Any]:
    """What a page without a server can show: the laws that the study and the figure ask for, and those of all combinations of
    up to five axes, by what the page asks for (y, terms and filter, as JSON)."""
    axes, default = numeric_axes(runs)[:5], default_law(runs)
    asked: list[dict[str, Any]] = [law for law in (*figure_laws(runs), default) if law is not None]
    asked += [{"y": "plateau", "x": list(c)} for n in range(1, len(axes) + 1) for c in itertools.combinations(axes, n)]
    laws: dict[str, Any] = {}
    for law in asked[:most]:
        request = [law["y"], law["x"], law.get("where", {})]
        key = json.dumps(request, separators=(",", ":"), ensure_ascii=False)
        if key not in laws:
            try:
                laws[key] = fit(runs, *request)
            except InputError as error:
                laws[key] = {"error": str(error)}
    return laws
