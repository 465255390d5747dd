"""`emergo measure` and `emergo fit`: the instruments for anybody's logs and tables."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from .._errors import InputError
from .._terminal import print_json, print_law


@dataclasses.dataclass(frozen=True)
class Measure:
    """Emergence times from anybody's logs: one row per evaluation in, one row per run out."""

    logs: Positional[tuple[Path, ...]]
    """CSV or Parquet files with a step column and the metric."""
    metric: str
    """The column to watch, e.g. loss."""
    below: float | None = None
    """Emergence is the metric falling to this value ..."""
    above: float | None = None
    """... or rising to this one."""
    step: str = "step"
    """Column of steps."""
    run_column: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """Column that tells runs apart; by default `run` or `identity` where there is one, else each file is a run."""
    hold: int = 1
    """How many evaluations in a row must be past the threshold."""
    window: int = 1
    """Running median over this many evaluations first (odd)."""
    missing: Literal["auto", "skip", "failed"] = "auto"
    """A row without the metric: not evaluated (skip), diverged (failed), or by what else the row holds (auto)."""
    out: Path | None = None
    """Also write the table here (.csv or .parquet)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if (self.below is None) == (self.above is None):
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        from ..measure import measure_logs, write_table

        if self.out is not None and self.out.resolve() in {log.resolve() for log in self.logs}:
            raise InputError(f"--out {self.out}: this is one of the logs; choose another name")
        threshold = (self.below, "below") if self.below is not None else (self.above or 0.0, "above")
        columns: dict[str, Any] = {"step": self.step, "run": self.run_column, "missing": self.missing}
        table = measure_logs(self.logs, self.metric, *threshold, hold=self.hold, window=self.window, **columns)
        if self.out is not None:
            write_table(table, self.out)
        if self.json:
            return print_json({"runs": table.to_dict("records"), "censored": int(table["censored"].sum())})
        print(table.to_string(index=False))
        if self.out is not None:
            print(f"wrote {self.out}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """A power law from anybody's table: exponents, 95% intervals, R², and a log-log plot."""

    table: Positional[Path]
    """CSV or Parquet, one row per run. A column `censored` marks values that are lower bounds."""
    y: str = "plateau"
    """The column to explain."""
    x: tuple[str, ...] | None = None
    """Terms with one exponent each: a column, or a product such as length/burst or dim^0.5*length. By default dim and length,
    but for what --fix gives."""
    fix: tuple[str, ...] = ()
    """Known exponents, e.g. length=1."""
    resamples: int = 2000
    """How many resamples the bootstrap draws."""
    out: Path = Path("out")
    """Folder for <table>.law.svg, .png and .json."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ..measure import read_table
        from ..report import fit_table

        fixed = {}
        for text in self.fix:
            name, _, value = text.partition("=")
            try:
                fixed[name] = float(value)
            except ValueError:
                raise InputError(f"--fix '{text}': write column=exponent, e.g. length=1") from None
        terms = self.x if self.x is not None else tuple(name for name in ("dim", "length") if name not in fixed)
        table = read_table(self.table)
        law = fit_table(table, self.y, terms, fixed, self.out, self.table.stem, str(self.table), self.resamples)
        if self.json:
            return print_json(law)
        print_law(law)
        if law["censored"]:
            print(f"note: least squares leave out the {law['censored']} censored runs, which biases them; this fit uses them:")
            print_law(law["with_censored"])
        if law["failed"]:
            print(f"note: {law['failed']} failed runs, or runs without a {self.y}, are left out")
        print(f"wrote {', '.join(law['files'])}")
