"""All answers of the explorer about a folder, without its server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from emergo.core.errors import InputError
from emergo.core.json import to_jsonable
from emergo.view import Catalog
from emergo.view._answers import describe_set, fit, look_back, run_detail, stages


class Seen(NamedTuple):
    """The content of the page."""

    rows: dict[str, dict[str, Any]]  # by run
    curves: dict[str, Any]  # by run: all curves, stages, forecasts, and the thinned loss
    words: str  # notes, status and unreadable files


def explore(folder: Path, laws: bool = True) -> Seen:
    """Request everything. An error of one line is a valid answer; other exceptions are raised.

    **Arguments:**

    - `laws`: also fit laws, which takes longer.
    """
    rows: dict[str, dict[str, Any]] = {}
    curves: dict[str, Any] = {}
    catalog = Catalog(folder)
    words = [_answer(catalog.overview), _answer(catalog.status)]
    for key, runs in catalog.sets().items():
        table = runs.table()
        law = describe_set(runs)["law"]
        for i, identity in enumerate(runs.runs):
            cell = {name: values[i] for name, values in table["columns"].items()}
            rows[identity] = table["constants"] | cell
            curves[identity] = [
                _answer(run_detail, runs, identity)["curves"],
                _answer(stages, runs, identity),
                _answer(look_back, runs, identity, 3),
                [part.tolist() for part in catalog.thinned(key, [identity], "loss", 128)[0]],
            ]
        fitted = _answer(fit, runs, law["y"], law["x"]) if law and laws else None
        json.dumps([table, fitted], allow_nan=False)
    return Seen(rows, curves, json.dumps(words, allow_nan=False))


def differing(seen: Seen, right: Seen) -> list[str]:
    """Return the runs that are shown with other values, or not at all.

    An empty column may be missing.
    """
    return [
        identity
        for identity, row in right.rows.items()
        if any(seen.rows.get(identity, {}).get(name) != value for name, value in row.items())
        or seen.curves.get(identity) != right.curves[identity]
    ]


def _answer(ask: Callable[..., Any], *about: Any) -> Any:
    try:
        return to_jsonable(ask(*about))
    except InputError as error:
        return {"error": str(error), "curves": None}
