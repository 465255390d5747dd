"""`emergo theory`, `emergo measure` and `emergo fit`: the instruments, also for anybody's logs and tables."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from .._errors import InputError
from .._terminal import fit_lines, print_json, say, short, show
from ._logs import LogOptions
from ._run import parse_pairs


@dataclasses.dataclass(frozen=True)
class Theory:
    """One cell of the theory: the plateau, its growth rate and what the formulas say."""

    length: int  # T, the number of tokens (at least 2).
    dim: int  # d, the dimension of a token.
    burst: int = 1  # B, how often the relevant token appears in a sequence (smaller than length).
    repeat: float = 0.0  # p, the probability that the relevant token is the special one, in [0, 1].
    flow: Literal["reduced", "exact", "full"] = "reduced"
    """reduced: the paper's; exact: with the model's own logits; full: the whole model, all its parameters."""
    threshold: float = 0.2  # Share of the initial test loss that ends the plateau.
    horizon: float | None = None  # Largest flow time; by default 100 times (predicted plateau + dim).
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
    """Emergence times from anybody's logs: one row per evaluation in, one row per run out."""

    metric: str  # The curve to watch, e.g. loss.
    below: float | None = None  # Emergence is the metric falling to this value ...
    above: float | None = None  # ... or rising to this one.
    hold: int = 1  # How many evaluations in a row must be past the threshold.
    window: int = 1  # Running median over this many evaluations first (odd).
    out: Path | None = None  # Also write the table here (.csv or .parquet).
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        if (self.below is None) == (self.above is None):
            raise InputError("give one threshold: --below VALUE or --above VALUE")
        from ..measure import MEASURED, measure_logs, write_table

        self.check_logs()
        self.check_out(self.out, MEASURED)
        threshold = (self.below, "below") if self.below is not None else (self.above or 0.0, "above")
        notes: list[str] = []
        how: dict[str, Any] = self.reading | {"hold": self.hold, "window": self.window, "say": notes.append}
        table = measure_logs(self.logs, self.metric, *threshold, **how)
        if self.out is not None:
            write_table(table, self.out)
        for note in notes:
            say(note)
        if self.json:
            return print_json({"runs": table.to_dict("records"), "censored": int(table["censored"].sum())})
        same = [name for name in table.columns.difference(list(MEASURED)) if table[name].astype(str).nunique() == 1]
        if len(table.columns) > 12 and same:  # a config may have dozens
            say(f"{len(same)} columns with one value in all runs are not shown; they are in --out and --json")
            table = table.drop(columns=same)
        show(table.to_string(index=False))
        if self.out is not None:
            show(f"wrote {self.out}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """A power law from anybody's table: exponents, 95% intervals, R², and a log-log plot."""

    table: Positional[Path]  # CSV or Parquet, one row per run. A column `censored` marks values that are lower bounds.
    y: str = "plateau"  # The column to explain.
    x: tuple[str, ...] | None = None
    """Terms with one exponent each: a column, or a product such as length/burst or dim^0.5*length. By default dim and length,
    but for what --fix gives."""
    fix: tuple[str, ...] = ()  # Known exponents, e.g. length=1.
    resamples: int = 2000  # How many resamples the bootstrap draws.
    out: Path = Path("out")  # Folder for <table>.law.svg, .png and .json.
    json: bool = False  # Print one JSON object.

    def run(self) -> None:
        from ..report import fit_table

        fixed = dict(parse_pairs("--fix", self.fix, "column=exponent, e.g. length=1", float))
        law = fit_table(self.table, self.y, self.x, fixed, self.out, self.resamples)
        if self.json:
            return print_json(law)
        show(*fit_lines(law))
        if law["failed"]:
            show(f"note: {law['failed']} failed runs, or runs without a {self.y}, are left out")
        show(f"wrote {', '.join(law['files'])}")
