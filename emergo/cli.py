"""The `emergo` command: a thin door to the rooms behind it.

Standard output carries results (with `--json`, one JSON object and nothing else); progress and messages go to standard error.
Exit status: 0, 1 for a failure, 2 for wrong input, 130 for an interrupt.
"""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, subcommand

from ._errors import InputError

# The rooms are imported inside the commands: `emergo --help` should not wait for JAX.


@dataclasses.dataclass(frozen=True)
class Demo:
    """The whole idea at laptop scale; writes report.html."""

    out: Path = Path(".")
    """Folder for report.html."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .report import run_demo

        with _bar() as show:
            found = run_demo(self.out, advance=lambda stage, done, of: show(stage, done / of))
        if self.json:
            return _print_json(found)
        _print_law(found["law"])
        print(f"{found['runs']} runs, {found['seconds']:.0f} s; open {found['files'][0]}")


@dataclasses.dataclass(frozen=True)
class Figures:
    """List every figure: id, what it shows, cost, state."""

    out: Path = Path("out")
    """Folder in which to look for figures that are already made."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .papers import FIGURES, made_preset

        rows = [
            {"id": f.id, "shows": f.shows, "seconds": dict(f.seconds), "made": made_preset(f, self.out)}
            for f in FIGURES.values()
        ]
        if self.json:
            return _print_json({"figures": rows})
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("figure", "shows", "laptop", "paper", "state"):
            table.add_column(head, no_wrap=head != "shows", justify="right" if head in ("laptop", "paper") else "left")
        for row in rows:
            cost = [f"{row['seconds'][p]:.0f} s" for p in ("laptop", "paper")]
            table.add_row(row["id"], row["shows"], *cost, f"made ({row['made']})" if row["made"] else "not made")
        _console().print(table)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Make figures: plot (SVG, PNG), data (Parquet) and laws and checks (JSON) of each."""

    id: Positional[tuple[str, ...]]
    """As listed by `emergo figures`, e.g. zucchet2025/fig2. Several share what they compile."""
    preset: str = "laptop"
    """paper, laptop or smoke."""
    out: Path = Path("out")
    """Folder to write to; files go to OUT/<id>.*"""
    json: bool = False
    """Print one JSON object; for several figures it holds them in a list."""

    def run(self) -> None:
        from .papers import find_figure, run_figure

        if not self.id:
            raise InputError("name at least one figure; emergo figures lists them")
        made = []
        for figure in [find_figure(id) for id in self.id]:
            with _bar() as show:
                made.append(run_figure(figure, self.preset, self.out, show))
            if not self.json:
                _print_figure(made[-1])
        if self.json:
            _print_json(made[0] if len(made) == 1 else {"figures": made})


@dataclasses.dataclass(frozen=True)
class Theory:
    """One cell of the theory: the plateau, its growth rate and what the formulas say."""

    length: int
    """T, the number of tokens (at least 2)."""
    dim: int
    """d, the dimension of a token."""
    burst: int = 1
    """B, how often the relevant token appears in a sequence (smaller than length)."""
    repeat: float = 0.0
    """p, the probability that the relevant token is the special one, in [0, 1]."""
    flow: Literal["reduced", "exact", "full"] = "reduced"
    """reduced: the paper's; exact: with the model's own logits; full: the whole model, all its parameters."""
    threshold: float = 0.2
    """Share of the initial test loss that ends the plateau."""
    horizon: float | None = None
    """Largest flow time; by default 100 times (predicted plateau + dim)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .theory import describe_cell

        found = describe_cell(
            self.length, self.dim, self.burst, self.repeat, self.flow, threshold=self.threshold, horizon=self.horizon
        )
        if self.json:
            return _print_json(found)
        for name, value in found.items():
            print(f"{name:14} {_short(value)}")


@dataclasses.dataclass(frozen=True)
class Measure:
    """Emergence times from anybody's logs: one row an evaluation in, one row a run out."""

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
    """Column that tells runs apart; by default `run` where there is one, else each file is a run."""
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
        from .measure import measure_logs, write_table

        threshold = self.below if self.below is not None else self.above
        assert threshold is not None
        direction = "below" if self.below is not None else "above"
        table = measure_logs(
            self.logs,
            self.metric,
            threshold,
            direction,
            step=self.step,
            run=self.run_column,
            hold=self.hold,
            window=self.window,
            missing=self.missing,
        )
        if self.out is not None:
            write_table(table, self.out)
        if self.json:
            return _print_json({"runs": table.to_dict("records"), "censored": int(table["censored"].sum())})
        print(table.to_string(index=False))


@dataclasses.dataclass(frozen=True)
class Fit:
    """A power law from anybody's table: exponents, 95% intervals, R², and a log-log plot."""

    table: Positional[Path]
    """CSV or Parquet, one row a run. A column `censored` marks values that are lower bounds."""
    y: str = "plateau"
    """The column to explain."""
    x: tuple[str, ...] = ("dim", "length")
    """Terms with one exponent each: a column, or a product such as length/burst or dim^0.5*length."""
    fix: tuple[str, ...] = ()
    """Known exponents, e.g. length=1."""
    resamples: int = 2000
    """Of the bootstrap."""
    out: Path = Path("out")
    """Folder for <table>.law.svg, .png and .json."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .measure import read_table
        from .report import fit_table

        fixed = {}
        for text in self.fix:
            name, _, value = text.partition("=")
            try:
                fixed[name] = float(value)
            except ValueError:
                raise InputError(f"--fix '{text}': write column=exponent, e.g. length=1") from None
        table = read_table(self.table)
        found = fit_table(table, self.y, self.x, fixed, self.out, self.table.stem, str(self.table), self.resamples)
        if self.json:
            return _print_json(found)
        _print_law(found)
        if found["censored"]:
            print(
                f"note: least squares leave out the censored runs ({found['censored']}), which biases them; this fit uses them:"
            )
            _print_law(found["with_censored"])
        print(f"wrote {', '.join(found['files'])}")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Speed: 1,000 plateaus in one compiled call against a loop over SciPy's solver."""

    cells: int = 1000
    """How many cells."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .bench import bench_flows

        if self.cells < 1:
            raise InputError(f"--cells must be at least 1, got {self.cells}")
        found = bench_flows(self.cells)
        if self.json:
            return _print_json({"benchmarks": [found]})
        print(
            f"{found['cells']} plateaus at rtol {found['rtol']:g}: {found['seconds']:.3f} s warm "
            f"(compilation {found['compile_seconds']:.1f} s), "
            f"SciPy {found['scipy_seconds']:.1f} s: {found['ratio']:.0f} times as fast; "
            f"largest relative difference {found['largest_relative_difference']:.1e}"
        )


Command = Union[  # noqa: UP007 - tyro reads the names from the annotations
    Annotated[Demo, subcommand("demo")],
    Annotated[Figures, subcommand("figures")],
    Annotated[Figure, subcommand("figure")],
    Annotated[Theory, subcommand("theory")],
    Annotated[Measure, subcommand("measure")],
    Annotated[Fit, subcommand("fit")],
    Annotated[Bench, subcommand("bench")],
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        from . import __version__

        print(f"emergo {__version__}")
        return
    try:
        _parse(arguments).run()
        sys.stdout.flush()
    except InputError as error:
        _fail(2, str(error))
    except KeyboardInterrupt:
        print("emergo: interrupted; nothing was left half-written", file=sys.stderr, flush=True)
        os._exit(130)  # compiled programs may still be running; taking the interpreter down under them can crash
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("EMERGO_TRACEBACK"):
            traceback.print_exc()
        _fail(1, f"{type(error).__name__}: {error} (set EMERGO_TRACEBACK=1 for the traceback)")


def _parse(arguments: Sequence[str]) -> Any:
    """Reads the command line. What tyro prints in a box becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Command, args=arguments, prog="emergo", description=__doc__.splitlines()[0] if __doc__ else None)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(said.getvalue())) from None


def _one_line(box: str) -> str:
    """The sense of a boxed message: its first sections, without the rules and the pointer to the help."""
    sections: list[list[str]] = [[]]
    for raw in box.splitlines():
        line = raw.strip().strip("│").strip()
        if set(line) <= set("─╭╮╰╯ ") or raw.lstrip().startswith("╭"):
            sections.append([])
        else:
            sections[-1].append(line)
    words = [" ".join(s) for s in sections if s and not s[0].startswith(("For full helptext", "Argument helptext"))]
    text = re.sub(r"\s+", " ", "; ".join(words)).strip()
    text = re.sub(r"invalid literal for int\(\) with base 10: ('.*?')", r"expected a whole number, got \1", text)
    text = re.sub(r"could not convert string to float: ('.*?')", r"expected a number, got \1", text)
    return text.removeprefix("Error parsing ") or "the command line could not be read; try emergo --help"


def _fail(status: int, message: str) -> None:
    print("emergo: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _console():
    from rich.console import Console

    return Console()


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """A live progress display on standard error; calls with (what, share done)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        current: dict[str, Any] = {}

        def show(what: str, share: float) -> None:
            # A description that only counts (SGD step 30 of 900) is one bar, not many.
            name = re.sub(r"\d+ of \d+", "", what)
            if name not in current:
                for task in current.values():
                    progress.update(task, completed=1.0)
                current[name] = progress.add_task(what, total=1.0)
            progress.update(current[name], description=what, completed=share)

        yield show
        for task in current.values():
            progress.update(task, completed=1.0)


def _print_json(value: Any) -> None:
    from ._json import plain

    print(json.dumps(plain(value), allow_nan=False))


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_short(v) for v in value)
    return str(value)


def _beside(check: dict[str, Any]) -> str:
    if check["published"] is not None:
        return f" (published: {_short(check['published'])})"
    return f" (expected: {check['expected']})"


def _verdict(agrees: bool | None) -> str:
    return {True: "agrees     ", False: "disagrees  ", None: "           "}[agrees]


def _print_figure(found: dict[str, Any]) -> None:
    print(found["figure"])
    if found["shrunk"]:
        print(f"{found['preset']} preset, so no verdict: {found['shrunk']}")
    for law in found["laws"]:
        _print_law(law)
    for check in found["checks"]:
        print(f"{_check_verdict(check)}{check['name']}: {_short(check['measured'])}{_beside(check)}")
    print(f"{found['seconds']:.1f} s; wrote {', '.join(found['files'])}")


def _check_verdict(check: dict[str, Any]) -> str:
    """A published value is agreed with or not; an expectation of ours holds or not."""
    if check["published"] is not None:
        return _verdict(check["agrees"])
    return {True: "holds      ", False: "fails      ", None: "           "}[check["holds"]]


def _print_law(law: dict[str, Any]) -> None:
    name = f"{law['name']}: " if "name" in law else ""
    verdict = _verdict(law["agrees"]) if "agrees" in law else ""
    print(f"{verdict}{name}{law['formula']}, R² {_short(law['r2'])}, {law['runs']} runs")
    for column, interval in law["ci95"].items():
        value = law["C"] if column == "C" else law["exponents"][column]
        bounds = "not determined" if interval[0] is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]"
        print(f"    {column:14} {value:.4g}  95% {bounds} ({law['ci_kind']})")
    if law.get("published"):
        print(f"    published: {law['published']['formula']}; level {_short(law['level'])}; {law['why']}")


if __name__ == "__main__":
    main()
