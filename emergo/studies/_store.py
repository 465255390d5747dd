"""Files are the database: a folder a finished run, named by its identity, written under another name and renamed."""

import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from .._errors import InputError
from .._files import flush, named_disk, output_folder, spare_name
from ..engine import Run
from ..measure import Emergence
from ._outcomes import IDENTITY, Outcomes, is_finished, outcome_numbers, read_outcomes
from ._result import Result, curve_frame, curves_from, result_content, run_from_json


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
        """Whether a run is there and can be read."""
        return is_finished(self.folder, run.identity)

    def write(self, result: Result) -> Path:
        """Puts a run into the store."""
        if not self.folder.is_dir():
            output_folder(self.folder)
        with named_disk(self.folder):
            return self._write(result)

    def _write(self, result: Result) -> Path:
        place = self._place(result.run.identity)
        stage = self.folder / f".writing-{uuid.uuid4().hex[:16]}"
        stage.mkdir()
        try:
            curve_frame(result).to_parquet(stage / "curves.parquet", index=False)
            (stage / "run.json").write_text(json.dumps(result_content(result), indent=1) + "\n")
            for path in (stage / "curves.parquet", stage / "run.json", stage):
                flush(path)
            if place.exists() and not self._readable(place.name):
                os.rename(place, self.folder / f".broken-{stage.name.removeprefix('.writing-')}")
            try:
                os.rename(stage, place)
            except OSError:
                if not self._readable(place.name):  # else another process was first, with the same run
                    raise
            flush(self.folder)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return place

    def set_aside(self, identity: str) -> None:
        """Takes a run out of the store; its folder stays under another name."""
        place = self._place(identity)
        with named_disk(place):
            os.rename(place, self.folder / f".aside{spare_name(place).name}")

    def read(self, run: Run | str, curves: bool = True) -> Result:
        """A finished run; with `curves=False` only its outcome."""
        identity = run if isinstance(run, str) else run.identity
        place = self._place(identity)
        try:
            content = json.loads((place / "run.json").read_text())
            outcome = content["outcome"]
            found = Emergence(**outcome_numbers(outcome), state=outcome["state"])
            made = run_from_json(content)
            if isinstance(run, Run) and made.identity != identity:
                raise ValueError(f"it holds the run {made.identity}")
            frame = pd.read_parquet(place / "curves.parquet") if curves else None
            seen = None if frame is None or not len(frame.columns) else curves_from(frame)
            steps, failed, reason = outcome["steps"], outcome["failed_step"], outcome.get("reason")
            return Result(made, found, steps, failed, content["provenance"], seen, reason)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{place}: not a finished run that can be read ({' '.join(str(error).split())})") from None

    def _readable(self, identity: str) -> bool:
        try:
            return is_finished(self.folder, identity) and self.read(identity).run.identity == identity
        except InputError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The identities of the runs that are there."""
        if self.folder.is_dir():
            names = (p.name for p in self.folder.iterdir() if os.path.exists(p / "run.json"))
            yield from sorted(name for name in names if IDENTITY.fullmatch(name))

    def outcomes(self) -> Outcomes:
        """The rows of all runs by identity, and what cannot be read, without their curves."""
        return read_outcomes(self.folder)

    def table(self) -> pd.DataFrame:
        """All runs as a table, a row a run. Warns of folders that cannot be read, and leaves them out."""
        found = self.outcomes()
        for place, why in found.broken.items():
            warnings.warn(f"{place}: not a finished run that can be read ({why})", stacklevel=2)
        return pd.DataFrame(list(found.rows.values()))
