"""What the explorer answers about a folder: everything that its server can be asked for, without the server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from emergo._errors import InputError
from emergo._json import to_jsonable
from emergo.view import Catalog
from emergo.view._answers import describe_set, figure_laws, fit, overview, run_detail, stages
from emergo.view._look_back import look_back


class Seen(NamedTuple):
    """What the page would show."""

    rows: dict[str, dict[str, Any]]  # by identity
    curves: dict[str, Any]  # likewise: all curves of a run, and one thinned for the plot of all
    words: str  # what is said of the folder, as the browser gets it: notes, status, what cannot be read


def explore(folder: Path, laws: bool = True) -> Seen:
    """Asks for everything, for laws only if told to: a bootstrap takes its time. A refusal in one line is an answer; any other
    exception is not caught."""
    rows: dict[str, dict[str, Any]] = {}
    curves: dict[str, Any] = {}
    catalog = Catalog(folder)
    try:
        words = [_answer(overview, catalog), _answer(catalog.status)]
        for runs in catalog.sets().values():
            table, law = runs.table(), describe_set(runs)["law"]
            for i, identity in enumerate(runs.runs):
                rows[identity] = table["constants"] | {name: values[i] for name, values in table["columns"].items()}
                thinned = [part.tolist() for part in catalog.thinned(runs, [identity], "loss", 128)[0]]
                about = [_answer(ask, runs, identity) for ask in (stages, lambda *of: look_back(*of, moments=3))]
                curves[identity] = [_answer(run_detail, runs, identity)["curves"], *about, thinned]
            fitted = _answer(fit, runs, law["y"], law["x"]) if law and laws else None
            json.dumps([table, fitted, _answer(figure_laws, runs)], allow_nan=False)  # what a browser can be sent
    finally:
        catalog._pool.shutdown()
    return Seen(rows, curves, json.dumps(words, allow_nan=False))


def unlike(seen: Seen, right: Seen) -> list[str]:
    """The runs that are shown otherwise than they should be, or not at all. A column of nothing may be left out."""
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
