"""The `emergo` command: a thin door to the rooms behind it.

Standard output carries results (with `--json`, one JSON object and nothing else); progress and messages go to standard error.
Exit status: 0, 1 for a failure, 2 for wrong input, 130 for an interrupt.
"""

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, subcommand

from ._errors import InputError, StorageError, unknown
from ._terminal import console, print_json, print_law, short, verdict
from .cli_study import StudyCommand

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
            return print_json(found)
        print_law(found["law"])
        print(f"{found['runs']} runs, {found['seconds']:.0f} s; open {found['files'][0]}")


@dataclasses.dataclass(frozen=True)
class Figures:
    """List every figure: id, what it shows, cost, state."""

    out: Path = Path("out")
    """Folder in which to look for figures that are already made."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from .papers import FIGURES, made_preset, seconds_needed, work_for

        work = work_for(self.out)
        rows = []
        for f in FIGURES.values():
            needed = {preset: seconds_needed(f, preset, work) for preset in f.presets}
            made = made_preset(f, self.out)
            rows.append({"id": f.id, "shows": f.shows, "seconds": dict(f.seconds), "needed": needed, "made": made})
        if self.json:
            return print_json({"figures": rows})
        from rich.table import Table

        from .report import duration

        table = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("figure", "shows", "laptop", "paper", "state"):
            table.add_column(head, no_wrap=head != "shows", justify="right" if head in ("laptop", "paper") else "left")
        for row in rows:
            cost = [duration(row["needed"][p]) if row["needed"][p] else "recorded" for p in ("laptop", "paper")]
            table.add_row(row["id"], row["shows"], *cost, f"made ({row['made']})" if row["made"] else "not made")
        console().print(table)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Make figures: plot (SVG, PNG, for some an animation), data (Parquet) and laws and checks (JSON) of each."""

    id: Positional[tuple[str, ...]]
    """As listed by `emergo figures`, e.g. zucchet2025/fig2. Several share what they compile."""
    preset: str = "laptop"
    """paper, laptop or smoke."""
    out: Path = Path("out")
    """Folder to write to; files go to OUT/<id>.*, runs that have to be trained to OUT/runs."""
    fresh: bool = False
    """Train even where results/ has the runs."""
    partial: bool = False
    """Train nothing: show the cells whose runs are all there already."""
    yes: bool = False
    """Do not ask before training that takes over ten minutes on this CPU."""
    json: bool = False
    """Print one JSON object; for several figures it holds them in a list."""

    def run(self) -> None:
        from .papers import find_figure, run_figure

        if not self.id:
            raise InputError("name at least one figure; emergo figures lists them")
        chosen = [find_figure(id) for id in self.id]
        if not (self.yes or self.partial):
            self._ask(chosen)
        made = []
        for figure in chosen:
            with _bar() as show:
                made.append(run_figure(figure, self.preset, self.out, show, self.fresh, self.partial))
            if not self.json:
                _print_figure(made[-1])
        if self.json:
            print_json(made[0] if len(made) == 1 else {"figures": made})

    def _ask(self, figures: Sequence[Any]) -> None:
        """Before training that takes over ten minutes on a CPU."""
        import jax

        from .papers import seconds_needed, work_for
        from .report import duration

        if jax.default_backend() != "cpu":
            return
        work = work_for(self.out, fresh=self.fresh)
        needed = {figure.id: seconds_needed(figure, self.preset, work) for figure in figures}
        long = [f"{id} takes about {duration(seconds)}" for id, seconds in needed.items() if seconds > 600]
        if not long:
            return
        said = f"on a CPU of two cores the {self.preset} preset of {', of '.join(long)}"
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(f"{said}; add --yes to start it")
        print(f"{said}. Start? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            _fail(1, "nothing was started")


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a grid of Transformers at once and say when their attention became sparse.

    Options that take several values span the grid. The defaults are small, for two cores; the paper's are --layers 2 --heads 4
    --width 256 --learning-rate 1e-4 --steps 50000. Every run is kept in OUT as soon as it ends and is never trained again.
    After an interrupt the same command goes on.
    """

    length: tuple[int, ...] = (32,)
    """T, the number of tokens."""
    dim: tuple[int, ...] = (4, 8, 16)
    """d, the dimension of a token."""
    burst: tuple[int, ...] = (1,)
    """B, how often the relevant token appears in a sequence (smaller than length)."""
    repeat: tuple[float, ...] = (0.0,)
    """p, the probability that the relevant token is the special one, in [0, 1]."""
    learning_rate: tuple[float, ...] = (5e-4,)
    """Of the optimizer, constant."""
    seeds: int = 3
    """Runs of each cell of the grid; their seeds are 0, 1, ..."""
    position: Literal["random", "fixed", "last"] = "random"
    """Where the relevant token stands: drawn for each sequence, once for a run, or at the end."""
    indicator: bool = True
    """Whether tokens carry a feature that marks the relevant ones."""
    special: Literal["draw", "basis"] = "draw"
    """The special token: a draw of the law of the tokens, or the first basis vector."""
    layers: int = 1
    """Of the Transformer."""
    heads: int = 1
    """Of a layer; they share the width."""
    width: int = 64
    """Features of the stream."""
    mlp_factor: int = 4
    """Hidden features of an MLP over width."""
    norm: Literal["none", "pre", "post"] = "none"
    """Layer normalisation."""
    mask: Literal["none", "causal"] = "none"
    """Of the attention."""
    activation: Literal["relu", "gelu"] = "relu"
    """Of the MLPs."""
    attention: Literal["softmax", "linear", "biased", "positional"] = "softmax"
    """softmax; linear: without it; biased: with a learned logit for every pair of positions; positional: by these alone."""
    initial: Literal["pytorch", "xavier", "normal"] = "pytorch"
    """How parameters are drawn."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """What is added to the tokens."""
    skip: bool = True
    """Skip connections."""
    mlp: bool = True
    """MLPs."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """An optimizer of Optax."""
    momentum: float = 0.0
    """Of sgd."""
    weight_decay: float = 0.01
    """Of adamw."""
    batch: int = 32
    """Sequences a step."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Of matrix products; by default bf16 on a GPU and fp32 elsewhere."""
    steps: int = 5000
    """The most of a run."""
    threshold: float = 0.1
    """Test loss that ends the plateau, and the run."""
    beyond: float = 0.0
    """How much longer to train after that, as a share of the plateau."""
    together: int | None = None
    """Runs of one shape to train at once; by default what memory holds and cores need."""
    out: Path = Path("runs")
    """Folder of finished runs."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from ._files import output_folder
        from .report import cell_rows, cell_table, duration, live_progress
        from .studies import Store, result_row, run_all

        begun, runs = time.monotonic(), self._runs()
        store = Store(output_folder(self.out))
        before = sum(run in store for run in runs)
        try:
            with live_progress(before) as show:
                results = run_all(runs, store, curves=False, width=self.together, progress=show)
        except KeyboardInterrupt as stop:
            finished = sum(run in store for run in runs)
            stop.add_note(f"{finished} of {len(runs)} runs are finished; the same command goes on from there")
            raise
        cells = cell_rows(results)
        if self.json:
            return print_json({"runs": [result_row(result) for result in results], "cells": cells, "out": str(self.out)})
        console().print(cell_table(cells))
        there = f" ({before} were there)" if before else ""
        print(f"{len(runs)} runs{there}, {duration(time.monotonic() - begun)}; kept in {self.out}")

    def _runs(self) -> list[Any]:
        import jax

        from .engine import Config, Optimizer, default_precision
        from .models import Transformer
        from .studies import grid_runs
        from .tasks import SingleLocation

        axes = {name: getattr(self, name) for name in ("length", "dim", "burst", "repeat", "learning_rate")}
        for name, values in axes.items():
            if not values:
                raise InputError(f"--{name.replace('_', '-')} needs at least one value")
        for name in ("seeds", "together"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name} must be at least 1, got {value}")
        if self.precision == "tf32" and jax.default_backend() == "cpu":
            raise InputError("precision tf32 is a GPU's; on a CPU use fp32")
        model = Transformer(
            self.layers,
            self.heads,
            self.width,
            self.mlp_factor,
            self.norm,
            self.mask,
            self.activation,
            self.attention,
            self.initial,
            self.positions,
            self.skip,
            self.mlp,
        )
        task = SingleLocation(2, 1, position=self.position, indicator=self.indicator, special=self.special)
        optimizer = Optimizer(self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        precision = self.precision or default_precision()
        base = Config(task, model, optimizer, self.batch, precision, self.steps, self.threshold, self.beyond)
        return grid_runs(base, self.seeds, **{name: tuple(dict.fromkeys(values)) for name, values in axes.items()})


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
            return print_json(found)
        for name, value in found.items():
            print(f"{name:14} {short(value)}")


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
            return print_json({"runs": table.to_dict("records"), "censored": int(table["censored"].sum())})
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
            return print_json(found)
        print_law(found)
        if found["censored"]:
            print(
                f"note: least squares leave out the censored runs ({found['censored']}), which biases them; this fit uses them:"
            )
            print_law(found["with_censored"])
        print(f"wrote {', '.join(found['files'])}")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Speed: plateaus in one compiled call against a loop over SciPy's solver; training against PyTorch."""

    benchmark: Positional[Literal["flows", "training", "all"]] = "all"
    """Which."""
    cells: int = 1000
    """How many cells, for flows."""
    quick: bool = False
    """Only the first rows of training."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if self.cells < 1:
            raise InputError(f"--cells must be at least 1, got {self.cells}")
        load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
        if load > cores / 4:
            message = f"this machine is busy or just was (load {load:.1f}, {cores} cores); other work spoils timings"
            print(f"emergo: {message}", file=sys.stderr, flush=True)
        found = []
        if self.benchmark != "training":
            found.append(self._flows())
        if self.benchmark != "flows":
            found += self._training()
        if self.json:
            print_json({"benchmarks": found})

    def _training(self) -> list[dict[str, Any]]:
        import jax

        from .bench import bench_training, default_cases

        if importlib.util.find_spec("torch") is None:
            message = "PyTorch is not installed, so nothing is compared with it: pip install 'emergo[bench]'"
            print(f"emergo: {message}", file=sys.stderr, flush=True)
        cases = default_cases(jax.default_backend())
        if self.quick:
            cases = cases[: 2 if jax.default_backend() == "cpu" else 3]
        rows, found = bench_training(cases), []
        if not self.json:
            print(_BENCH_HEAD, flush=True)
        while True:
            with contextlib.redirect_stdout(sys.stderr):  # compilers talk
                row = next(rows, None)
            if row is None:
                return found
            found.append(row)
            if not self.json:
                print(_bench_row(row), flush=True)

    def _flows(self) -> dict[str, Any]:
        from .bench import bench_flows

        found = bench_flows(self.cells)
        if self.json:
            return found
        print(
            f"{found['cells']} plateaus at rtol {found['rtol']:g}: {found['seconds']:.3f} s warm "
            f"(compilation {found['compile_seconds']:.1f} s), "
            f"SciPy {found['scipy_seconds']:.1f} s: {found['ratio']:.0f} times as fast; "
            f"largest relative difference {found['largest_relative_difference']:.1e}",
            flush=True,
        )
        return found


Command = Union[  # noqa: UP007 - tyro reads the names from the annotations
    Annotated[Demo, subcommand("demo")],
    Annotated[Figures, subcommand("figures")],
    Annotated[Figure, subcommand("figure")],
    Annotated[Train, subcommand("train")],
    Annotated[StudyCommand, subcommand("study")],
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
    except StorageError as error:
        _fail(1, str(error))
    except KeyboardInterrupt as stop:
        what = "; ".join(getattr(stop, "__notes__", ())) or "nothing was left half-written"
        print(f"emergo: interrupted; {what}", file=sys.stderr, flush=True)
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
        if set(line) <= set("─╭╮╰╯- ") or raw.lstrip().startswith("╭"):
            sections.append([])
        else:
            sections[-1].append(line)
    if "╭" not in box:  # without Unicode the title is a section like the others
        sections = [s for s in sections if s][1:]
    words = [" ".join(s) for s in sections if s and not s[0].startswith(("For full helptext", "Argument helptext"))]
    text = re.sub(r"\s+", " ", "; ".join(words)).strip()
    text = re.sub(r"invalid literal for int\(\) with base 10: ('.*?')", r"expected a whole number, got \1", text)
    choice = re.fullmatch(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)\s*\.", text)
    if choice:
        given, name, known = choice.groups()
        return str(unknown(name.lstrip("-").lower(), given, re.findall(r"'(.*?)'", known)))
    text = re.sub(r"could not convert string to float: ('.*?')", r"expected a number, got \1", text)
    text = re.sub(r"no type matching .* (expected a .*?, got '.*?')", r"\1", text)
    text = re.sub(r"Could not find valid parse for arguments: \[(.*)\]", r"cannot be read from \1", text)
    return text.removeprefix("Error parsing ") or "the command line could not be read; try emergo --help"


def _fail(status: int, message: str) -> None:
    print("emergo: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


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


_BENCH_HEAD = (
    "layers heads    T    d  runs  precision  ms/step/run  runs/hour  x PyTorch  x torch.compile  of floor\n"
    "                                                     (10,000 steps)"
)


def _bench_row(row: dict[str, Any]) -> str:
    size = f"{row['layers']:6} {row['heads']:5} {row['length']:4} {row['dim']:4} {row['runs']:5}  {row['precision']:>9}"
    if "error" in row:
        return f"{size}  {row['error']}"
    ratios = ("-" if row[name] is None else f"{row[name]:.1f}" for name in ("ratio", "ratio_compile"))
    plain, compiled = ratios
    speed = f"{row['ms']:11.3g}  {row['runs_per_hour']:9.3g}"
    return f"{size}  {speed}  {plain:>9}  {compiled:>15}  {row['share_of_floor']:8.0%}"


def _beside(check: dict[str, Any]) -> str:
    if check["published"] is not None:
        return f" (published: {short(check['published'])})"
    return f" (expected: {check['expected']})"


def _print_figure(found: dict[str, Any]) -> None:
    print(found["figure"])
    if found["shrunk"]:
        print(f"{found['preset']} preset, so no verdict: {found['shrunk']}")
    if found["partial"]:
        print(found["partial"])
    for law in found["laws"]:
        print_law(law)
    for check in found["checks"]:
        print(f"{_check_verdict(check)}{check['name']}: {short(check['measured'])}{_beside(check)}")
    print(f"{found['seconds']:.1f} s; wrote {', '.join(found['files'])}")


def _check_verdict(check: dict[str, Any]) -> str:
    """A published value is agreed with or not; an expectation of ours holds or not."""
    if check["published"] is not None:
        return verdict(check["agrees"])
    return {True: "holds      ", False: "fails      ", None: "           "}[check["holds"]]


if __name__ == "__main__":
    main()
