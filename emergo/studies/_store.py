"""Files are the database: a folder a finished run, named by its identity, written under another name and renamed."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from .._errors import InputError
from .._files import output_folder
from .._json import plain
from ..engine import Run
from ..measure import Emergence
from ._result import Result, curve_frame, curves_from, result_row, run_from_json, run_json

_IDENTITY = re.compile("[0-9a-f]{16}")


class Store:
    """Finished runs under a folder.

    A run is there whole or not at all. Two processes that finish the same run write the same, and the first wins; a folder that
    cannot be read is moved aside.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def _place(self, identity: str) -> Path:
        return self.folder / identity

    def __contains__(self, run: Run) -> bool:
        return (self._place(run.identity) / "run.json").exists()

    def write(self, result: Result) -> Path:
        """Puts a run into the store."""
        output_folder(self.folder)
        place = self._place(result.run.identity)
        stage = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.folder))
        try:
            curve_frame(result).to_parquet(stage / "curves.parquet", index=False)
            content = run_json(result.run) | {
                "identity": result.run.identity,
                "outcome": result.emergence._asdict() | {"steps": result.steps, "failed_step": result.failed_step},
                "provenance": dict(result.provenance),
            }
            (stage / "run.json").write_text(json.dumps(plain(content), indent=1) + "\n")
            if place.exists() and not self._readable(place.name):
                os.rename(place, self.folder / f".broken-{stage.name.removeprefix('.writing-')}")
            try:
                os.rename(stage, place)
            except OSError:
                if not self._readable(place.name):  # else another process was first, with the same run
                    raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return place

    def read(self, run: Run | str, curves: bool = True) -> Result:
        """A finished run; with `curves=False` only its outcome."""
        identity = run if isinstance(run, str) else run.identity
        place = self._place(identity)
        try:
            content = json.loads((place / "run.json").read_text())
            outcome = content["outcome"]
            numbers = {k: _number(outcome[k]) for k in ("time", "low", "high")}
            if outcome["state"] == "censored":
                numbers["high"] = float("inf")
            elif outcome["state"] == "reached" and outcome["low"] is None:
                numbers["low"] = float("-inf")
            found = Emergence(**numbers, state=outcome["state"])
            made = run_from_json(content)
            seen = curves_from(pd.read_parquet(place / "curves.parquet")) if curves else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{place}: not a finished run that can be read ({error})") from None
        return Result(made, found, outcome["steps"], outcome["failed_step"], content["provenance"], seen)

    def _readable(self, identity: str) -> bool:
        try:
            return self.read(identity).run.identity == identity
        except InputError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The identities of the runs that are there."""
        if self.folder.is_dir():
            names = (p.name for p in self.folder.iterdir() if (p / "run.json").exists())
            yield from sorted(name for name in names if _IDENTITY.fullmatch(name))

    def table(self) -> pd.DataFrame:
        """All runs as a table, a row a run."""
        return pd.DataFrame([result_row(self.read(identity, curves=False)) for identity in self])


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
