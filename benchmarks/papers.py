"""How long a GPU takes for all recorded figures of both papers, estimated from programs that are timed one by one.

    python benchmarks/papers.py OUT_FOLDER SECONDS [FIGURE ...]     times for so long, then estimates; the same call goes on
    python benchmarks/papers.py OUT_FOLDER 0 [FIGURE ...]           estimates from what was timed; needs no GPU
    python benchmarks/papers.py --plan [FIGURE ...]                 where the time is expected, before anything is timed

The figures are trained by one process, one after another, as `python -m emergo.papers FIGURE ... --fresh` does, each run once
and for as many steps as its record says. `emergo.engine.train` itself does it, on a device that only adds up seconds: what a
step, an evaluation and the host's part of a chunk take at this width, and compilation, hidden behind training where the engine
hides it. `timed.csv` gets a row for each program and width that was timed, `papers.csv` one for each program. Other widths and
programs follow the cost model, scaled to what was timed of the program, or of the one that is most alike. Counted are also the
start of runs and checkpoints; not imports, forecasts of runs in training (under 1%), writing runs, and drawing.
`--preset=smoke`: another preset, of which all steps count.

`--workers=N`: estimates for so many processes instead, as `python -m emergo.papers FIGURE ... --fresh --workers N` starts them,
from what was timed; see `benchmarks/together.py`. `--until=SECONDS`: how far they are then.
"""

import contextlib
import dataclasses
import functools
import itertools
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import jax
import numpy as np
import pandas as pd

from emergo.engine import TOGETHER, Result, Run, train
from emergo.engine import _scheduler as of_scheduler
from emergo.engine import _train as of_train
from emergo.engine._ahead import _THREADS
from emergo.engine._check import check_config
from emergo.engine._checkpoint import save_checkpoint
from emergo.engine._cost import Compiled, Device, compile_chunk, memory_of
from emergo.engine._program import Slot, arithmetic
from emergo.engine._scheduler import DeviceStack, Scheduler, Tracked
from emergo.papers import FIGURES, Figure, RunSource, find_figure
from emergo.studies import Records, read_records
from emergo.studies._executor import _AHEAD
from emergo.studies._plan import make_plan

MEMORY = 1e11  # bytes that JAX lets a group of runs take on an H200, of which it has 0.75 by default
LEAST, SMALL = 0.002, 0.01  # of the whole: programs that take less are not timed, or at one width
MOST = 0.6  # of a program's time: widths to be timed take as much
SAVED = 6  # points at which a checkpoint is timed as well, and programs of which the first start of a run is
KINDS = ("step_ms", "evaluation_ms", "host_ms")
# Before anything is timed, seconds; `compile_s` are those of a product, `checkpoint_s` of a byte.
GUESSES = {"compile_s": 0.1, "compile_s_tuned": 0.35, "first_s": 3.0, "start_s": 0.01, "checkpoint_s": 2e-9}
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Replay(RunSource):
    """Hands out what is recorded, and notes what would have been trained for it, call by call."""

    calls: list[list[Run]] = dataclasses.field(default_factory=list)
    trained: set[str] = dataclasses.field(default_factory=set)  # by the figures before as well

    def _recorded(self, run: Run, curves: bool) -> bool:
        return run.identity in self.trained

    def _train(self, runs: Sequence[Run]) -> list[Result]:
        self.calls.append(list(runs))
        self.trained.update(run.identity for run in runs)
        return []


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one call of `train` trains, and what comes after it."""

    id: str
    figure: str
    runs: list[Run]
    then: list[list[Run]]


def units_of(figures: Sequence[Figure], preset: Any, records: Records) -> list[Unit]:
    """What figures train, in the order and in the parts in which the executor takes it."""
    units, trained = [], set()
    for figure in figures:
        source = Replay(figure.id, records=records, trained=trained)
        if preset != "paper":  # is not recorded
            source.calls.append(figure.runs(preset))
        elif figure.followup is not None:  # trains in several calls, which follow from one another
            figure.make(figure.presets[preset], source)
        elif figure.studies(preset):
            source.runs(figure.studies(preset), curves=figure.curves)
        for call in filter(None, source.calls):
            by_identity, planned = {run.identity: run for run in call}, make_plan(call, unit=TOGETHER).units
            parts = [[by_identity[run.identity] for run in unit.runs] for unit in planned]
            named = enumerate(zip(planned, parts, strict=True), 1)
            units += [Unit(unit.id, figure.id, part, parts[i:][:_AHEAD]) for i, (unit, part) in named]
    return units


@dataclasses.dataclass
class Times:
    """What a program takes: as timed at some widths, elsewhere as the cost model says, scaled to these."""

    unit: Unit  # the first that it trains
    scheduler: Scheduler
    rows: list[Row] = dataclasses.field(default_factory=list)  # its own of `timed.csv`
    usual: Mapping[str, float] = dataclasses.field(default_factory=GUESSES.copy)  # for programs that were not timed
    like: "Mapping[str, Times]" = dataclasses.field(default_factory=dict)  # by kind, what it follows where that was not timed

    @functools.cached_property
    def slot_bytes(self) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.scheduler.shapes))

    def model(self, kind: str, width: int) -> float:
        """Milliseconds. In wide stacks steps took about a fifth of what `Cost.seconds` says, in narrow ones what
        `worth_tuning` says; an evaluation is one pass over the test set where a step is three over a batch."""
        cost, config = self.scheduler.cost, self.unit.runs[0].config
        step = 1e3 * (cost.products * 1e-5 + width * cost.seconds("gpu") / 5)
        return {"step_ms": step, "evaluation_ms": step * config.n_test / config.batch / 3, "host_ms": 1 + 0.05 * width}[kind]

    def ms(self, kind: str, width: int, tuned: bool) -> float:
        """Between widths that were timed the model, scaled to these; beyond, as steeply as over all of them: a GPU that is full
        takes as much more for each further run. With one width timed, it follows what was timed of the program otherwise."""
        both = [[row for row in self._alike(which) if row[kind] > 0] for which in (tuned, not tuned)]
        rows, others = sorted(both[0] or both[1], key=lambda row: row["width"]), both[1]
        if not rows:
            like = self.like.get(kind)
            return self.model(kind, width) * (like.ms(kind, width, tuned) / like.model(kind, width) if like else 1.0)
        if len(rows) == 1 and len(others) > 1:
            return rows[0][kind] * self.ms(kind, width, not tuned) / self.ms(kind, rows[0]["width"], not tuned)
        if rows[0]["width"] < (widest := rows[-1]["width"]) < width:
            slope = (rows[-1][kind] - rows[0][kind]) / (widest - rows[0]["width"])
            return rows[-1][kind] + max(slope, 0.0) * (width - widest)
        ratios = [row[kind] / self.model(kind, row["width"]) for row in rows]
        return float(np.interp(width, [row["width"] for row in rows], ratios)) * self.model(kind, width)

    def apart(self, other: "Times") -> float:
        """How different the programs are: in the number of products above all, which tells models apart, then in size."""
        ours, theirs = self.scheduler.cost, other.scheduler.cost
        return float(3 * abs(np.log(ours.products / theirs.products)) + abs(np.log(ours.operations / theirs.operations)))

    def compile_seconds(self, tuned: bool) -> float:
        """The least that was timed, since programs are timed while others compile; else by the number of products."""
        usual = self.usual["compile_s" + "_tuned" * tuned] * self.scheduler.cost.products
        return min((row["compile_s"] for row in self._alike(tuned) if row["compile_s"] > 0), default=usual)

    def start_seconds(self, first: bool) -> float:
        """To start a run; of the `first`, to check its config and to compile that as well."""
        kind = "first_s" if first else "start_s"
        return max((row[kind] for row in self.rows if row.get(kind, np.nan) > 0), default=self.usual[kind])

    @property
    def run_bytes(self) -> float:
        """Of a run in a program."""
        timed = (row["bytes"] / row["width"] for row in self.rows if row["bytes"] > 0)
        return max(timed, default=self.scheduler.cost.bytes)

    def _alike(self, tuned: bool) -> list[Row]:
        return [row for row in self.rows if row["tuned"] == tuned]


Programs = dict[Any, Times]


def program_of(scheduler: Scheduler) -> Any:
    """Equal for groups whose programs differ at most in their width."""
    leaves, structure = jax.tree.flatten(scheduler.shapes)
    return scheduler.program, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


class Clock:
    """The seconds of a process that trains on a device that is not there: `spent` in chunks, by unit of the program, width and
    whether kernels were searched for, and on `others`."""

    def __init__(self, programs: Programs, ends: Mapping[str, int], platform: str = "gpu", memory: float = MEMORY) -> None:
        self.programs, self.ends, self.memory, self.now, self.in_thread = programs, ends, memory, 0.0, False
        self.device = cast(Device, SimpleNamespace(platform=platform, device_kind="estimated"))
        self.compilations: dict[Any, tuple[float, float]] = {}  # when they begin and end
        self.threads, self.known, self.chunks = [0.0] * _THREADS, set[str](), list[tuple[int, int]]()
        self.moments = list[float]()  # at which chunks end
        self.spent, self.others = defaultdict[Any, float](float), defaultdict[str, float](float)
        self.parts: deque[tuple[Any, float]] = deque()  # of the time, with the program that computes; None: the GPU is free

    def _pass(self, program: Any, seconds: float) -> None:
        self.now += seconds
        before = self.parts.pop()[1] if self.parts and self.parts[-1][0] == program else 0.0
        self.parts.append((program, before + seconds))

    def wait(self, what: str, seconds: float) -> None:
        self._pass(None, seconds)
        self.others[what] += seconds

    def compiled(self, times: Times, width: int, tuned: bool) -> Compiled:
        key, seconds = (times.unit.id, width, tuned), times.compile_seconds(tuned)
        if key not in self.compilations:
            thread = int(np.argmin(self.threads))
            begin = max(self.now, self.threads[thread]) if self.in_thread else self.now
            self.compilations[key] = begin, begin + seconds
            if self.in_thread:
                self.threads[thread] = begin + seconds
        if not self.in_thread:
            begin, end = self.compilations[key]
            self.wait("compiling", max(end - self.now, 0.0) if begin <= self.now else seconds)
        step, evaluation, host = (times.ms(kind, width, tuned) / 1e3 for kind in KINDS)
        learned = times.unit.runs[0].config.task.learned
        names = ["loss", "train_loss", *([learned.metric] if learned else [])]

        def run(slots: Slot, count: Any, due: Any) -> tuple[Slot, dict[str, np.ndarray]]:
            self._pass(key, taken := host + evaluation + int(count) * step)
            self.spent[key] += taken
            self.chunks.append((width, int(count)))
            self.moments.append(self.now)
            return slots._replace(step=slots.step + count), dict.fromkeys(names, np.ones(width))

        return Compiled(cast(Any, run), width, int(times.run_bytes * width))

    def drop(self) -> None:
        """A call ends: what no thread has begun is not compiled. The next call has threads of its own."""
        self.compilations = {key: when for key, when in self.compilations.items() if when[0] <= self.now}
        self.threads = [self.now] * _THREADS


@contextlib.contextmanager
def simulated(clock: Clock) -> Iterator[None]:
    """Inside of the block `train` decides all that it would on the clock's device, and computes nothing."""

    class Ends(Tracked):
        @property
        def ended(self) -> bool:
            return self.step >= clock.ends[self.run.identity]

    class Estimated(Scheduler):
        @functools.cached_property
        def times(self) -> Times:
            return clock.programs[program_of(self)]

        def compile(self, slot: Slot, device: Device, n_parallel: int, budget: float = 0.0) -> Compiled:
            return clock.compiled(self.times, n_parallel, self.tuned)

        def rehearse(self) -> None:
            clock.known.add(self.times.unit.id)

        def close(self) -> None:
            self.stacks = []

        def start(self, run: Run) -> Slot:
            clock.wait("starting runs", self.times.start_seconds(self.times.unit.id not in clock.known))
            clock.known.add(self.times.unit.id)
            parts: Row = dict.fromkeys(Slot._fields) | {"schedule_states": (), "prepared": ()}
            parts |= {"step": np.int32(0), "failed": np.int32(-1)}
            return Slot(**parts)

    class Stack(DeviceStack):
        def _narrower(self, width: int) -> Compiled:
            return clock.compiled(cast(Estimated, self.scheduler).times, width, False)

    class Threads(contextlib.ExitStack):
        def begin(self, compile: Callable[[], object]) -> None:
            clock.in_thread = True
            compile()
            clock.in_thread = False

    def save(path: Path, scheduler: Estimated, results: Sequence[Result]) -> None:
        slots, times = sum(len(stack.tracked) for stack in scheduler.stacks), scheduler.times
        clock.wait("checkpoints", times.usual["checkpoint_s"] * times.slot_bytes * slots)

    def inserted(slots: Slot, index: int, slot: Slot) -> Slot:
        return jax.tree.map(lambda every, one: np.where(np.arange(len(every)) == index, one, every), slots, slot)

    usual: dict[str, Any] = {"memory_of": lambda *_, **__: clock.memory}
    train_on: dict[str, Any] = {"Scheduler": Estimated, "Ahead": Threads, "save_checkpoint": save}
    train_on |= {"check_group": lambda *_: None, "keep_programs": lambda: None}
    with (
        mock.patch.multiple(of_scheduler, **usual, Tracked=Ends, DeviceStack=Stack, insert=inserted),
        mock.patch.multiple(of_train, **usual, **train_on, time=SimpleNamespace(monotonic=lambda: clock.now)),
        mock.patch.object(jax, "device_put", lambda values, *_: values),
    ):
        yield


def estimated(units: Sequence[Unit], clock: Clock) -> pd.DataFrame:
    """The clock's seconds of every unit, with those that it waited for programs."""
    rows = []
    with simulated(clock), tempfile.TemporaryDirectory() as folder:
        for unit in units:
            before, waited = clock.now, clock.others["compiling"]
            train(unit.runs, devices=[clock.device], then=unit.then, checkpoint=folder)
            clock.drop()
            row = {"unit": unit.id, "figure": unit.figure, "runs": len(unit.runs), "seconds": clock.now - before}
            ends = [clock.ends[run.identity] for run in unit.runs]
            row |= {"steps": sum(ends), "longest": max(ends)}
            rows.append(row | {"waited_s": clock.others["compiling"] - waited})
    return pd.DataFrame(rows)


def timed_point(times: Times, compiled: Compiled, one: Slot, device: Device, save: bool) -> dict[str, float]:
    """What a stack of copies of a run takes, by the engine's own path, while nothing else goes on."""
    scheduler, run, width = times.scheduler, times.unit.runs[0], compiled.n_parallel
    slots = jax.device_put(jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], width, 0), one), device)
    tracked = [Tracked(run) for run in itertools.islice(itertools.cycle(scheduler.runs), width)]
    stack = DeviceStack(scheduler, device, compiled, slots, cast(Any, tracked))

    def chunk(count: int) -> float:
        return clocked(lambda: jax.block_until_ready(stack.launch(count)))

    pending = jax.block_until_ready(stack.launch(0))  # the evaluation at the start, which is due for every run
    row = {"host_ms": 1e3 * clocked(lambda: stack.collect(pending))}
    chunk(2)
    evaluation = min(chunk(0) for _ in range(3))
    count = int(np.clip(0.3 / max((chunk(5) - evaluation) / 5, 1e-6), 5, 2000))
    row["step_ms"] = 1e3 * (min(chunk(count) for _ in range(2)) - evaluation) / count
    row |= {"evaluation_ms": 1e3 * evaluation, "bytes": compiled.bytes}
    row["start_s"] = clocked(lambda: jax.device_get(scheduler.start(run)))
    if save:
        scheduler.stacks = [stack]
        with tempfile.TemporaryDirectory() as folder:
            saved = clocked(lambda: save_checkpoint(Path(folder) / "stack.npz", scheduler, []))
        row |= {"checkpoint_s": saved, "checkpoint_bytes": times.slot_bytes * width}
        scheduler.stacks = []
    return row


def clocked(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


Point = tuple[Times, int, bool]


def points_of(programs: Programs, clock: Clock) -> list[Point]:
    """What to time, programs that take longest first: the widths that take most of a program's time, and the narrowest and the
    widest that take a twentieth of it."""
    by_unit, whole = {times.unit.id: times for times in programs.values()}, sum(clock.spent.values())
    used: dict[str, dict[tuple[int, bool], float]] = defaultdict(dict)
    for (unit, width, tuned), seconds in sorted(clock.spent.items(), key=lambda item: -item[1]):
        used[unit][width, tuned] = seconds
    chosen: list[Point] = []
    for unit, widths in sorted(used.items(), key=lambda item: -sum(item[1].values())):
        own = sum(widths.values())
        often = [point for point, seconds in widths.items() if seconds >= 0.05 * own]
        before = [sum(itertools.islice(widths.values(), i)) for i in range(len(widths))]
        most = [point for point, seconds in zip(widths, before, strict=True) if seconds < MOST * own]
        points = list(dict.fromkeys([*most, min(often), max(often)]))
        points = points[: 0 if own < LEAST * whole else 1 if own < SMALL * whole else None]
        chosen += [(by_unit[unit], *point) for point in points]
    # A search for kernels takes half a minute: a second one for the same program comes last.
    first = {times.unit.id: (times, width) for times, width, tuned in reversed(chosen) if tuned}
    return sorted(chosen, key=lambda point: point[2] and first[point[0].unit.id][1] != point[1])


def time_points(points: Sequence[Point], rows: list[Row], seconds: float, write: Callable[[], None]) -> None:
    """Compiles in threads, as the engine does, for up to two thirds of the time; kernels are searched for in one of them, which
    times these on the device. Then times one program after another."""
    deadline, device = time.monotonic() + seconds, jax.devices()[0]
    there = {(row["unit"], row["width"], row["tuned"]) for row in rows}

    def compile(times: Times, width: int, tuned: bool) -> tuple[Compiled, Slot, dict[str, float]]:
        scheduler, made = times.scheduler, []
        with arithmetic(scheduler.program.precision):
            one = jax.device_get(scheduler.start(times.unit.runs[0]))
            how = (width, device, memory_of(device, when_free=True), tuned)
            taken = clocked(lambda: made.append(compile_chunk(scheduler.program, one, *how)))
        return made[0], one, {"compile_s": taken}

    def begin(times: Times) -> None:
        check_config(times.unit.runs[0].config, device.platform)
        jax.device_get(times.scheduler.start(times.unit.runs[0]))

    left = [point for point in points if (point[0].unit.id, *point[1:]) not in there]
    first = {}
    for times in list({times.unit.id: times for times, _, _ in left}.values())[:SAVED]:
        with arithmetic(times.scheduler.program.precision):
            first[times.unit.id] = {"first_s": clocked(lambda times=times: begin(times))}
    with ThreadPoolExecutor(1) as alone, ThreadPoolExecutor(_THREADS) as several:
        compiling = {(alone if point[2] else several).submit(compile, *point): point for point in left}
        wait(compiling, timeout=max(0.0, deadline - time.monotonic() - seconds / 3))
        begun = [future for future in compiling if not future.cancel()]
    print(f"[{time.monotonic() - deadline + seconds:.0f} s] {len(begun)} of {len(left)} programs compiled", flush=True)
    for future in begun:
        if time.monotonic() > deadline:
            break
        times, width, tuned = compiling[future]
        if (error := future.exception()) is not None:
            print(f"{times.unit.figure}, {width} runs: {type(error).__name__} {str(error)[:300]}", flush=True)
            continue
        compiled, slot, row = future.result()
        row |= first.get(times.unit.id, {})
        with arithmetic(times.scheduler.program.precision):
            row |= timed_point(times, compiled, slot, device, save=len(rows) < SAVED)
        named = {"unit": times.unit.id, "figure": times.unit.figure, "width": compiled.n_parallel, "tuned": tuned}
        rows.append(named | {"device": device.device_kind, "jax": jax.__version__} | row)
        write()
        words = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in rows[-1].items()}
        print(f"[{time.monotonic() - deadline + seconds:.0f} s]", words, flush=True)


def usual_of(programs: Programs) -> dict[str, float]:
    """What to take for programs that were not timed: medians of those that were."""
    timed = [(times, row) for times in programs.values() for row in times.rows]
    found: dict[str, list[float]] = {}
    for tuned in (False, True):
        some = [times for times in programs.values() if any(row["compile_s"] > 0 for row in times._alike(tuned))]
        found["compile_s" + "_tuned" * tuned] = [t.compile_seconds(tuned) / t.scheduler.cost.products for t in some]
    found["start_s"] = [row["start_s"] for _, row in timed]
    found["first_s"] = [row.get("first_s", np.nan) for _, row in timed]
    saved = [(row["checkpoint_s"], row["checkpoint_bytes"]) for _, row in timed if row.get("checkpoint_s", np.nan) > 0]
    found["checkpoint_s"] = [sum(seconds for seconds, _ in saved) / max(sum(size for _, size in saved), 1)] if saved else []
    return GUESSES | {name: float(np.nanmedian(values)) for name, values in found.items() if np.isfinite(values).any()}


def report(table: pd.DataFrame, programs: Mapping[str, Times], clock: Clock) -> pd.DataFrame:
    """Prints seconds by figure, and what they rest on; returns the table by program."""
    work = table["steps"] * [programs[name].scheduler.cost.operations for name in table["program"]]
    table = table.assign(operations=work / work.sum(), share=table["seconds"] / clock.now)
    by_figure = table.groupby("figure", sort=False)
    columns = ["runs", "steps", "longest", "operations", "seconds", "waited_s", "share"]
    shown = by_figure[columns].sum().assign(units=by_figure.size(), programs=by_figure["program"].nunique())
    print(shown[["units", "programs", *columns]].to_string(float_format="{:,.3f}".format))
    exact = {(name, row["width"], row["tuned"]) for name, times in programs.items() for row in times.rows}
    parts: dict[str, float] = defaultdict(float)
    for key, seconds in clock.spent.items():
        other = "other widths of timed programs" if programs[key[0]].rows else "programs that were not timed"
        parts[f"chunks, {'widths that were timed' if key in exact else other}"] += seconds
    for name, seconds in (parts | clock.others).items():
        print(f"{name:40} {seconds:10,.1f} s {seconds / clock.now:6.1%}")
    print(f"in all {table['runs'].sum()} runs, {table['steps'].sum():,} steps, {clock.now / 60:.1f} min")
    rows = []
    for name, part in table.groupby("program", sort=False):
        times, spent = programs[str(name)], {key[1:]: seconds for key, seconds in clock.spent.items() if key[0] == name}
        row: Row = {"unit": name, "figures": " ".join(part["figure"].unique()), "units": len(part)}
        row |= {column: part[column].sum() for column in ("runs", "steps", "seconds", "waited_s")}
        row["spent_s"] = " ".join(f"{width}{'t' * tuned}:{seconds:.0f}" for (width, tuned), seconds in spent.items())
        for kind in (*KINDS, "compile_s"):
            row[kind] = " ".join(f"{r['width']}{'t' * r['tuned']}:{r[kind]:.4g}" for r in times.rows)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("seconds", ascending=False)


def figures_of(ids: Sequence[str]) -> list[Figure]:
    papers = [figure for figure in FIGURES.values() if not figure.id.startswith("emergo/")]
    return [find_figure(id) for id in ids] or papers


def find_program(runs: Sequence[Run]) -> tuple[Any, Scheduler]:
    """The key and the scheduler of runs that share a program."""
    scheduler = Scheduler(runs, jax.devices()[:1], None, None, lambda *_: None)
    return program_of(scheduler), scheduler


def fit_times(programs: Programs, rows: Sequence[Row]) -> None:
    """Gives every program what was timed of it, and what to take for those that were not."""
    for times in programs.values():
        times.rows = [row for row in rows if row["unit"] == times.unit.id]
    usual = usual_of(programs)
    for times in programs.values():
        times.usual, times.like = usual, most_alike(times, programs)


def most_alike(times: Times, programs: Programs) -> dict[str, Times]:
    """By kind, the most alike of the programs of which it was timed."""
    timed = {kind: [other for other in programs.values() if any(row[kind] > 0 for row in other.rows)] for kind in KINDS}
    return {kind: min(others, key=times.apart) for kind, others in timed.items() if others}


def read_timed(out: Path | None) -> list[Row]:
    file = None if out is None else out / "timed.csv"
    return cast(Any, pd.read_csv(file).to_dict("records")) if file and file.exists() else []


def main(out: Path | None, seconds: float, ids: Sequence[str], preset: str = "paper") -> None:
    begun, records = time.monotonic(), read_records()
    units, rows = units_of(figures_of(ids), preset, records), read_timed(out)
    programs, keys = Programs(), []
    for unit in units:
        key, scheduler = find_program(unit.runs)
        keys.append(key)
        programs.setdefault(key, Times(unit, scheduler))
    every = [run for unit in units for run in unit.runs]
    ends = {run.identity: records.read(run).steps if run in records else run.config.steps for run in every}

    def estimate() -> tuple[Clock, pd.DataFrame]:
        fit_times(programs, rows)
        return (clock := Clock(programs, ends)), estimated(units, clock)

    def write() -> None:
        pd.DataFrame(rows).to_csv(cast(Path, out) / "timed.csv", index=False)

    clock, table = estimate()
    print(f"[{time.monotonic() - begun:.0f} s] {len(units)} units, {len(programs)} programs", flush=True)
    if out is not None and seconds > 0:
        out.mkdir(parents=True, exist_ok=True)
        time_points(points_of(programs, clock), rows, seconds - (time.monotonic() - begun), write)
        clock, table = estimate()
    table["program"] = [programs[key].unit.id for key in keys]
    by_program = report(table, {times.unit.id: times for times in programs.values()}, clock)
    if out is None:
        print(by_program.to_string(index=False))
    else:
        by_program.to_csv(out / "papers.csv", index=False)


if __name__ == "__main__":
    options = dict(word.removeprefix("--").split("=") for word in sys.argv[1:] if "=" in word)
    words = [word for word in sys.argv[1:] if "=" not in word]
    if not words or "--help" in words or (words[0] != "--plan" and len(words) < 2):
        sys.exit(__doc__)
    if "workers" in options:
        import together

        together.main(None if words[0] == "--plan" else Path(words[0]), words[1 if words[0] == "--plan" else 2 :], **options)
    elif words[0] == "--plan":
        main(None, 0.0, words[1:], **options)
    else:
        main(Path(words[0]), float(words[1]), words[2:], **options)
