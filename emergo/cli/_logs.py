"""Options shared by the commands that read logs: `emergo measure` and `emergo forecast`."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from ..core.errors import InputError
from ..core.terminal import say


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Logs, how to read them, and the threshold that defines emergence."""

    # CSV, Parquet or JSON lines with a step column, chart exports of W&B, trainer_state.json,
    # folders of TensorBoard.
    logs: Positional[tuple[Path, ...]]
    below: float | None = None  # Emergence is the step at which the metric falls to this value ...
    above: float | None = None  # ... or rises to this one.
    # Column of steps; if there is no `step`, a well-known name such as _step is used.
    step: str = "step"
    # Column that separates runs; by default `run` or `identity` if present, else each file is one
    # run.
    run_column: Annotated[str | None, arg(name="run")] = None
    # Columns from names of runs or paths: a regular expression with named groups, e.g.
    # 'd(?P<dim>\d+)_s(?P<seed>\d+)'.
    columns: str | None = None
    # Meaning of a row without the metric: not evaluated (skip), diverged (failed), or decided by
    # the other columns of the row (auto).
    missing: Literal["auto", "skip", "failed"] = "auto"
    json: bool = False  # Print one JSON object.

    def check(self) -> None:
        """Raise `InputError` without a single threshold, or for a log that cannot be accessed."""
        if (self.below is None) == (self.above is None):
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        for log in self.logs:
            try:
                os.lstat(log)
            except (FileNotFoundError, NotADirectoryError):
                raise InputError(f"{log}: no such file") from None
            except OSError as error:
                raise InputError(f"{log}: cannot be read ({error.strerror})") from None

    def read(self, function: Callable[..., Any], metric: str, **options: Any) -> Any:
        """Call a function of logs with these options, and print its messages after it succeeds."""
        notes: list[str] = []
        threshold, direction = self.below, "below"
        if self.above is not None:
            threshold, direction = self.above, "above"
        options |= {"step": self.step, "run": self.run_column, "columns": self.columns}
        options |= {"missing": self.missing, "say": notes.append}
        result = function(self.logs, metric, threshold, direction, **options)
        for note in notes:
            say(note)
        return result
