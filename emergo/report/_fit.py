"""`emergo fit`: a law from a table, written down and drawn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import output_folder, staged
from .._style import save
from ..measure import fit_law, law_json, read_table


def fit_table(path: Path, y: str, x: Sequence[str], fixed: Mapping[str, float], out: Path, resamples: int) -> dict[str, Any]:
    """Fits a law to a file as [`emergo.measure.fit_law`][] does and writes `<table>.law.svg`, `.png` and `.json` into `out`.
    Returns the law as plain data, and the files written."""
    law = fit_law(read_table(path), y, x, fixed=fixed, resamples=resamples, what=str(path))
    folder, name = output_folder(out), f"{path.stem}.law"
    report = {"schema": 1, "y": y, "terms": [str(t) for t in law.terms], "fixed": dict(fixed)} | law_json(law)
    files = [f"{name}.{kind}" for kind in ("svg", "png", "json")]
    with staged(folder) as stage:
        save(law.plot(), stage / name)
        (stage / f"{name}.json").write_text(json.dumps(report | {"files": files}, indent=1) + "\n")
    return report | {"files": [str(folder / f) for f in files]}
