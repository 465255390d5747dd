"""The options of commands that read logs."""

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from .._errors import InputError
from ._run import check_output_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Which logs, and how they are read."""

    logs: Positional[tuple[Path, ...]]
    """CSV, Parquet or JSON lines with a step column, chart exports of W&B, trainer_state.json, folders of TensorBoard."""
    step: str = "step"  # Column of steps; where there is no `step`, a well-known name such as _step is taken.
    run_column: Annotated[str | None, arg(name="run")] = None
    """Column that tells runs apart; by default `run` or `identity` where there is one, else each file is a run."""
    columns: str | None = None
    """Columns from names of runs or paths: a regular expression with named groups, e.g. 'd(?P<dim>\\d+)_s(?P<seed>\\d+)'."""
    missing: Literal["auto", "skip", "failed"] = "auto"
    """A row without the metric: not evaluated (skip), diverged (failed), or by what else the row holds (auto)."""

    @property
    def reading(self) -> dict[str, Any]:
        """The options as [`emergo.measure.read_logs`][] takes them."""
        return {"step": self.step, "run": self.run_column, "columns": self.columns, "missing": self.missing}

    def check_out(self, out: Path | None, columns: Collection[str]) -> None:
        """An `InputError` where a table of these columns would be written over a log, or over anything but such a table."""
        if out is None:
            return
        if os.path.isfile(out) and out.resolve() in {log.resolve() for log in self.logs}:
            raise InputError(f"--out {out}: this is one of the logs; choose another name")
        check_output_table("--out", out, columns)

    def check_logs(self) -> None:
        """An `InputError` for a log that is not there, whatever its name ends in, or that may not be looked at."""
        for log in self.logs:
            try:
                os.lstat(log)
            except (FileNotFoundError, NotADirectoryError):
                raise InputError(f"{log}: no such file") from None
            except OSError as error:
                raise InputError(f"{log}: cannot be read ({error.strerror})") from None
