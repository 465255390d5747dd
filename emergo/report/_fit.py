"""`emergo fit`: a law from a table, written down and drawn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .._files import output_folder, staged
from .._style import save
from ..measure import fit_law, law_json


def fit_table(
    table: pd.DataFrame,
    y: str,
    x: Sequence[str],
    fixed: Mapping[str, float],
    out: Path | str,
    name: str,
    what: str = "the table",
    resamples: int = 2000,
) -> dict[str, Any]:
    """Fits a law as [`emergo.measure.fit_law`][] does and writes `<name>.law.svg`, `.png` and `.json` into `out`.

    **Returns:**

    The law as plain data, and the files written.
    """
    law = fit_law(table, y, x, fixed=fixed, resamples=resamples, what=what)
    folder = output_folder(out)
    report = {"schema": 1, "y": y, "terms": [str(t) for t in law.terms], "fixed": dict(fixed)} | law_json(law)
    files = [f"{name}.law.{kind}" for kind in ("svg", "png", "json")]
    with staged(folder) as stage:
        save(law.plot(), stage / f"{name}.law")
        (stage / f"{name}.law.json").write_text(json.dumps(report | {"files": files}, indent=1) + "\n")
    return report | {"files": [str(folder / f) for f in files]}
