"""The explorer as one file that opens without a server, a network or emergo."""

import base64
import gzip
import hashlib
import html
import json
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InputError
from .._files import atomic_write
from ._answers import describe_set, every_law, figure_laws, stages
from ._bundle import STATIC, bundle
from ._catalog import Catalog
from ._look_back import look_back
from ._runset import RunSet
from ._thin import thin

LARGEST = 5_000_000  # bytes of the file, which curves are thinned to fit
NUMBERS = 1_200_000  # of all curves at first: about 3.5 MB of the file
POINTS = (12, 200)  # the least and the most points of a curve
STAGES = 300  # runs whose stages are found beforehand
FORECASTS = (60, 24)  # runs whose forecasts are made beforehand, and at how many steps each
DIGITS = 4  # significant digits of curves


def export_page(catalog: Catalog, path: Path | str) -> dict[str, Any]:
    """Writes the page with all its data; returns how many runs it holds, points per curve, and bytes."""
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"--export {path}: the page is an HTML file; name it like page.html")
    sets = catalog.sets()
    if not any(runs.runs for runs in sets.values()):
        why = "; ".join(catalog.notes) or "a study has them when its first run has ended"
        raise InputError(f"{catalog.path}: no finished runs to show ({why})")
    count = sum(len(runs.curves.names(identity)) for runs in sets.values() for identity in runs.runs)
    points = int(np.clip(NUMBERS // max(count, 1), *POINTS))
    described = [{"key": key} | describe_set(runs) for key, runs in sets.items()]
    content = {"folder": catalog.root.name, "notes": list(catalog.notes), "sets": described, "status": catalog.status()}
    data = {key: _data(runs) for key, runs in sets.items()}
    while True:
        page = _page(content | {"data": {key: data[key] | _curves(runs, points) for key, runs in sets.items()}})
        if len(page) <= LARGEST or points == POINTS[0]:
            break
        points = max(POINTS[0], points // 2)
    atomic_write(path, page)
    return {"file": str(path), "runs": sum(len(runs.runs) for runs in sets.values()), "points": points, "bytes": len(page)}


def _data(runs: RunSet) -> dict[str, Any]:
    """A set without its curves: what the server would answer."""
    laws = every_law(runs) if "plateau" in runs.columns else {}
    found = {identity: stages(runs, identity) for identity in runs.runs[:STAGES]} if runs.families() else {}
    configs = {identity: runs.config(identity) for identity in runs.runs}
    told = {identity: look_back(runs, identity, FORECASTS[1]) for identity in runs.runs[: FORECASTS[0]]} if found else {}
    shown = {"table": runs.table(), "stages": found, "forecasts": told, "configs": configs, "laws": laws}
    return shown | {"figure_laws": figure_laws(runs)}


def _curves(runs: RunSet, points: int) -> dict[str, Any]:
    """The curves of a set as texts. Those of one run share their steps, and many runs have the same: these are held once."""
    steps: dict[str, int] = {}
    curves: dict[str, Any] = {}
    for identity in runs.runs:
        held = runs.curves.read(identity)
        every = np.asarray(held.pop("step", np.zeros(0)), np.float64)
        if len(every):
            chosen = _shared(every, held, points)
            number = steps.setdefault(",".join(f"{step:.12g}" for step in every[chosen]), len(steps))
            curves[identity] = [number, {name: ",".join(map(_short, values[chosen])) for name, values in held.items()}]
    return {"steps": list(steps), "curves": curves}


def _shared(steps: np.ndarray, held: dict[str, np.ndarray], points: int) -> np.ndarray:
    """The evaluations of a run that are kept: those that its loss needs (a thinned curve's own), or evenly chosen ones."""
    if len(steps) <= points:
        return np.arange(len(steps))
    guide = next((np.asarray(held[name], np.float64) for name in ("kl_teacher", "loss") if name in held), None)
    if guide is None or not np.isfinite(guide).all():
        return np.unique(np.linspace(0, len(steps) - 1, points).astype(int))
    return np.searchsorted(steps, thin(steps, guide, points)[0])


def _short(value: Any) -> str:
    return f"{value:.{DIGITS}g}" if np.isfinite(value) else ""


def _page(content: Any) -> bytes:
    packed = base64.b64encode(gzip.compress(json.dumps(content, allow_nan=False).encode(), 9)).decode()
    script, style = bundle(), "\n".join((STATIC / name).read_text() for name in ("vendor/uplot.css", "style.css"))
    if "</script" in script or "</style" in style:
        raise AssertionError("the page's own files must not close the elements that hold them")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src blob: data:; base-uri 'none'"
    title = html.escape(f"emergo: {content['folder']}")
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws its plots with JavaScript, which is switched off.</noscript>
<script type="application/octet-stream" id="data">{packed}</script>
<script type="module">{script}</script>
</body>
</html>
"""
    return text.encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
