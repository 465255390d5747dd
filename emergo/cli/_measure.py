"""`emergo theory`, and the commands that read logs and tables: `measure`, `forecast`, `fit`."""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from ..core.errors import InputError
from ..core.terminal import fit_lines, print_json, say, short, show
from ._run import check_output_table, parse_pairs

if TYPE_CHECKING:
    from ..forecasting import Forecast as RunForecast


@dataclasses.dataclass(frozen=True)
class Theory:
    """Compute one cell of the theory: the plateau, its growth rate and the closed forms."""

    length: int  # T, the number of tokens (at least 2).
    dim: int  # d, the dimension of a token.
    burst: int = 1  # B, how often the relevant token appears in a sequence (smaller than length).
    repeat: float = 0.0  # p, the probability that the relevant token is the special one, in [0, 1].
    # reduced: the paper's; exact: with the model's own logits; full: all parameters of the model.
    flow: Literal["reduced", "exact", "full"] = "reduced"
    threshold: float = 0.2  # Share of the initial test loss that ends the plateau.
    # Largest flow time; by default 100 times (predicted plateau + dim).
    horizon: float | None = None
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..theory import cells, describe_cell

        cell = cells(self.length, self.dim, self.burst, self.repeat)
        report = describe_cell(cell, self.flow, threshold=self.threshold, horizon=self.horizon)
        if self.json:
            return print_json(report)
        for name, value in report.items():
            show(f"{name:14} {short(value)}")


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

    def check(self, optional: bool = False) -> None:
        """Raise `InputError` without a threshold, unless it is optional, or for a missing log."""
        if (self.below is None) == (self.above is None) and not (optional and self.above is None):
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        for log in self.logs:
            if not os.path.lexists(log):
                raise InputError(f"{log}: no such file")

    @property
    def threshold(self) -> tuple[float | None, Literal["below", "above"]]:
        return (self.below, "below") if self.above is None else (self.above, "above")

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `read_logs`."""
        options = {"step": self.step, "run": self.run_column, "columns": self.columns}
        return options | {"missing": self.missing}

    def read(self, function: Callable[..., Any], metric: str, **options: Any) -> Any:
        """Call a function of logs with these options, and print its messages after it succeeds."""
        if metric == self.step:
            raise InputError(f"--metric {metric} is the column of steps; name another one")
        notes: list[str] = []
        options |= self.reading | {"say": notes.append}
        result = function(self.logs, metric, *self.threshold, **options)
        for note in notes:
            say(note)
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure(LogOptions):
    """Measure emergence times in logs: one row per evaluation in, one row per run out."""

    metric: str  # The curve to measure, e.g. loss.
    hold: int = 1  # Number of evaluations in a row that must be past the threshold.
    window: int = 1  # Length of a running median that is applied first (odd).
    out: Path | None = None  # Also write the table to this file (.csv or .parquet).

    def run(self) -> None:
        from ..core.tables import write_table
        from ..logs import MEASURED, measure_logs

        self.check()
        if self.out is not None:
            if os.path.isfile(self.out) and any(map(self.out.samefile, self.logs)):
                raise InputError(f"--out {self.out}: this is one of the logs; choose another name")
            check_output_table("--out", self.out, MEASURED)
        table = self.read(measure_logs, self.metric, hold=self.hold, window=self.window)
        if self.out is not None:
            write_table(table, self.out)
        if self.json:
            runs = table.to_dict("records")
            return print_json({"runs": runs, "censored": int(table["censored"].sum())})
        # A column with one value in all runs, such as an option in their configs, is not shown.
        varying = [name for name in table if table[name].astype(str).nunique() > 1]
        show(
            table[[*table.columns.intersection([*varying, *MEASURED], sort=False)]].to_string(
                index=False
            )
        )
        if self.out is not None:
            show(f"wrote {self.out}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast(LogOptions):
    """Forecast from a log when a run will learn: a step with its 80% interval, the chance that a
    drop of the metric is coming, or "no signal". A threshold is needed for a step only."""

    metric: str = "loss"  # The curve whose crossing of the threshold is forecast.
    # The log of the same model trained on shuffled labels; what moves there as well is no signal.
    twin: Path | None = None
    # Keep reading one log while it grows, and print each new forecast, until the run has emerged.
    follow: bool = False
    every: float = 5.0  # With --follow: seconds between two looks at the log.
    # With --follow: a command to start when a drop is coming, and again when its step is forecast
    # and when it has come. {} stands for the message, e.g. --alert 'notify-send {}'.
    alert: str | None = None

    def run(self) -> None:
        from ..forecasting import follow, forecast_logs

        if not self.follow:
            self.check(optional=True)
            if self.alert is not None:
                raise InputError("--alert needs --follow")
            found = self.read(forecast_logs, self.metric, twin=self.twin)
            if self.json:
                return print_json({"forecasts": [forecast.to_json() for forecast in found]})
            for forecast in found:
                show(*_forecast_lines(forecast))
            return
        if len(self.logs) != 1 or self.json:
            raise InputError("--follow takes one log, and no --json")
        if self.below is not None and self.above is not None:
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        alert = None if self.alert is None else _command(self.alert)
        options = {"every": self.every, "alert": alert, "twin": self.twin} | self.reading
        for forecast in follow(self.logs[0], self.metric, *self.threshold, **options):
            show(*_forecast_lines(forecast))


def _forecast_lines(forecast: "RunForecast") -> list[str]:
    """Describe a forecast: what it says, why, and the chance of a drop."""
    lines = [f"{forecast.name}: {forecast}", f"  at step {forecast.at:,.0f}: {forecast.why}"]
    drop = forecast.drop
    if drop is not None:
        lines.append(
            f"  a drop came in {drop.probability:.0%} of runs like this, in the median after "
            f"{drop.lead:.0%} more steps; false alarms: {drop.false_alarms:.1%} of moments"
        )
    return lines


def _command(words: str) -> Callable[["RunForecast"], None]:
    """Return an alert that starts a command, without a shell.

    The command may be a shell, or take words that begin with a dash as options. So the name of the
    log, which comes from a file, keeps harmless characters only.
    """
    parts = shlex.split(words)
    if not parts or shutil.which(parts[0]) is None:
        raise InputError(f"--alert {words}: no command {parts[0] if parts else 'is named'}")

    def start(forecast: "RunForecast") -> None:
        name = re.sub(r"[^\w .,:%+/=@-]", "_", forecast.name).lstrip("-")
        message = f"{name}: {forecast}"
        result = subprocess.run([part.replace("{}", message) for part in parts], check=False)
        if result.returncode:
            say(f"the command of --alert ended with status {result.returncode}")

    return start


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fit a power law to a table: exponents, 95% intervals, R², and a log-log plot."""

    # CSV or Parquet, one row per run. A column `censored` marks values that are lower bounds.
    table: Positional[Path]
    y: str = "plateau"  # The column to explain.
    # Terms with one exponent each: a column, or a product such as length/burst or dim^0.5*length.
    # By default dim and length, except those in --fix.
    x: tuple[str, ...] | None = None
    fix: tuple[str, ...] = ()  # Known exponents, e.g. length=1.
    resamples: int = 2000  # Number of bootstrap resamples.
    out: Path = Path("out")  # Folder for <table>.law.svg, .png and .json.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..measure import fit_table

        fixed = dict(parse_pairs("--fix", self.fix, "column=exponent, e.g. length=1", float))
        law = fit_table(self.table, self.y, self.x, fixed, self.out, self.resamples)
        if self.json:
            return print_json(law)
        show(*fit_lines(law))
        if law["failed"]:
            show(f"note: {law['failed']} failed runs, or runs without a {self.y}, are left out")
        show(f"wrote {', '.join(law['files'])}")
