"""Write the explorer as one HTML file that opens without a server, a network or emergo."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.files import atomic_write, check_parent
from ..core.json import to_jsonable
from ._answers import every_law, look_back, stages
from ._bundle import STATIC, bundle
from ._catalog import Catalog
from ._logs import classes_of
from ._runset import RunSet, contained, thin

LARGEST = 5_000_000  # bytes of the file; curves are thinned until it fits
NUMBERS = 1_200_000  # of all curves before that: about 3.5 MB of the file
POINTS = (12, 200)  # fewest and most points per curve
STAGES = 300  # runs per set with stages
FORECASTS = 60  # runs per set with forecasts
MOMENTS = 24  # forecasts per run
DIGITS = 4  # significant digits of curves

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript to draw its plots.</noscript>
<script type="application/octet-stream" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def export_page(
    catalog: Catalog, path: Path | str, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Write the page with all its data. `report` receives lines about the progress.

    **Returns:** the file, its size in bytes, the number of runs, the points per curve, and `notes`
    on what could not be read.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"--export {path}: the page is an HTML file; name it like page.html")
    check_parent("--export", path)
    content = catalog.overview()
    notes: list[str] = content["notes"]
    sets = {one["key"]: catalog.get(one["key"]) for one in content["sets"]}
    count = sum(len(runs.runs) for runs in sets.values())
    if not count:
        why = "; ".join(notes) or "a study has them when its first run has ended"
        raise InputError(f"{catalog.path}: no finished runs to show ({why})")
    curves = sum(
        len(i) * len(runs.runs) for runs in sets.values() for i in runs.families().values()
    )
    points = int(np.clip(NUMBERS // max(curves, 1), *POINTS))
    answers: dict[str, Any] = {}
    for key, runs in sets.items():
        with contained(notes.append, key):
            answers[key] = _answers(runs, notes, report)
    content["sets"] = [one for one in content["sets"] if one["key"] in answers]
    content["status"] = to_jsonable(catalog.status())
    while True:
        content["data"] = {
            key: answers[key] | _packed_curves(sets[key], points, notes) for key in answers
        }
        page = _page(content)
        if len(page) <= LARGEST or points == POINTS[0]:
            break
        points = max(POINTS[0], points // 2)
    atomic_write(path, page)
    notes += [note for key in answers for note in sets[key].notes]
    written = {"file": str(path), "runs": count, "points": points, "bytes": len(page)}
    return written | {"notes": [*dict.fromkeys(notes)]}


def _answers(runs: RunSet, notes: list[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Return the server's answers about a set, except for its curves."""

    def each(ask: Callable[[str], Any], names: Sequence[str]) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for name in names:
            with contained(notes.append, f"{runs.name}, run {name}"):
                answers[name] = to_jsonable(ask(name))
        return answers

    with_curves = runs.runs if runs.families() else []
    return {
        "table": runs.table(),
        "classes": each(lambda name: classes_of(runs.curves.read(name)), with_curves),
        "stages": each(lambda name: stages(runs, name), with_curves[:STAGES]),
        "forecasts": each(lambda name: look_back(runs, name, MOMENTS), with_curves[:FORECASTS]),
        "configs": each(runs.config, runs.runs),
        "laws": every_law(runs, report) if "plateau" in runs.columns else {},
    }


def _packed_curves(runs: RunSet, points: int, notes: list[str]) -> dict[str, Any]:
    """Return the curves of a set as text.

    The curves of one run share their steps. Many runs have the same steps, which are stored once.
    """
    steps: dict[str, int] = {}
    curves: dict[str, Any] = {}
    for identity in runs.runs:
        with contained(notes.append, f"{runs.name}, run {identity}"):
            columns = runs.curves.read(identity)
            step = np.asarray(columns.pop("step", ()), np.float64)
            if not len(step):
                continue
            kept = _kept_rows(step, columns, points)
            text = ",".join(f"{value:.12g}" for value in step[kept])
            texts = {name: ",".join(map(_short, values[kept])) for name, values in columns.items()}
            curves[identity] = [steps.setdefault(text, len(steps)), texts]
    return {"steps": list(steps), "curves": curves}


def _kept_rows(step: np.ndarray, columns: dict[str, np.ndarray], points: int) -> np.ndarray:
    """Choose the evaluations to keep: as in the thinned loss, or evenly spaced."""
    if len(step) <= points:
        return np.arange(len(step))
    for name in ("kl_teacher", "loss"):
        if name in columns and np.isfinite(columns[name]).all():
            return np.searchsorted(step, thin(step, columns[name], points)[0])
    return np.unique(np.linspace(0, len(step) - 1, points).astype(int))


def _short(value: Any) -> str:
    return f"{value:.{DIGITS}g}" if np.isfinite(value) else ""


def _page(content: Any) -> bytes:
    packed = gzip.compress(json.dumps(content, allow_nan=False).encode(), 9)
    script = bundle()
    style = "\n".join((STATIC / name).read_text() for name in ("vendor/uplot.css", "style.css"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src "
        f"blob: data:; base-uri 'none'"
    )
    data = base64.b64encode(packed).decode()
    title = html.escape(f"emergo: {content['folder']}")
    return _PAGE.format(policy=policy, title=title, style=style, data=data, script=script).encode()


def _hash(text: str) -> str:
    """Return the hash that the content security policy accepts for an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
