"""`emergo theory`, `emergo measure` and `emergo fit`."""

import dataclasses
import os
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ..core.errors import InputError
from ..core.terminal import fit_lines, print_json, say, short, show
from ._logs import LogOptions
from ._run import check_output_table, parse_pairs

MOST_COLUMNS = 12  # of a printed table; wider ones leave out columns with a single value


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
        constant = [
            name
            for name in table.columns.difference(list(MEASURED))
            if table[name].astype(str).nunique() == 1
        ]
        if len(table.columns) > MOST_COLUMNS and constant:
            say(
                f"{len(constant)} columns with one value in all runs are not shown; --out and "
                f"--json have them"
            )
            table = table.drop(columns=constant)
        show(table.to_string(index=False))
        if self.out is not None:
            show(f"wrote {self.out}")


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
