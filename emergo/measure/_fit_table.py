"""The command `emergo fit`: fit a law to a table, save it and draw it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError, listed
from ..core.files import output_folder, staged
from ..core.tables import read_table
from ._laws import fit_law, law_json


def fit_table(
    path: Path,
    y: str,
    x: Sequence[str] | None,
    fixed: Mapping[str, float],
    out: Path,
    resamples: int,
) -> dict[str, Any]:
    """Fit a law to a file and write `<table>.law.svg`, `.png` and `.json` into a folder.

    **Arguments:**

    - `path`: a table that [`emergo.core.tables.read_table`][] can read.
    - `y`, `fixed`, `resamples`: as in [`emergo.measure.fit_law`][].
    - `x`: terms; None: `dim` and `length`, except for columns in `fixed`.
    - `out`: the folder.

    **Returns:** the law as plain data, and the files that were written.
    """
    from ..core.plotting import save  # here, because Matplotlib is slow to import

    table = read_table(path)
    terms = x or [name for name in ("dim", "length") if name not in fixed]
    if not x and not {*terms} <= {*table}:
        raise InputError(
            f"without --x the law is in {' and '.join(terms)}, but {path} has no such columns; "
            f"name others with --x, of {listed(map(str, table.columns))}"
        )
    law = fit_law(table, y, terms, fixed=fixed, resamples=resamples, what=str(path))
    folder = output_folder(out)
    name = f"{path.stem}.law"
    report = {"schema": 1, "y": y, "fixed": dict(fixed)} | law_json(law)
    files = [f"{name}.{kind}" for kind in ("svg", "png", "json")]
    with staged(folder) as stage:
        with np.errstate(over="ignore"):  # in the limits of axes for absurd values
            save(law.plot(), stage / name)
        (stage / f"{name}.json").write_text(json.dumps(report | {"files": files}, indent=1) + "\n")
    return report | {"files": [str(folder / f) for f in files]}
