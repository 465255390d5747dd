"""How long a GPU takes for figures that several processes train: `benchmarks/papers.py --workers=N`.

The units are those of one plan for all figures, which grows as runs follow from others; N clocks take them in the order in
which the workers do. What a unit takes alone is estimated as for one process, each clock with its share of the memory; what
another has compiled is kept for all. Then the clocks share the GPU. Under CUDA's MPS programs take turns kernel by kernel, as
`benchmarks/shared.py` found: each gets as many kernels as any other, so that small ones wait for large ones. Of each round of
kernels the longest takes its time, and the others add a part of theirs, the same for all, which comes from what was measured
(`OUT_FOLDER/shared.csv`; without it, all of their time). A step has as many kernels as the program has products.
`OUT_FOLDER/together.csv` gets a row for each unit: when it begins and ends, what it would take alone, and its steps so far.
"""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from papers import (
    MEMORY,
    Clock,
    Programs,
    Replay,
    Row,
    Times,
    Unit,
    figures_of,
    find_program,
    fit_times,
    most_alike,
    read_timed,
    simulated,
    units_of,
)
from scipy.optimize import minimize_scalar
from shared import runs_of

from emergo.engine import TOGETHER, train
from emergo.papers._together import Wishes
from emergo.studies import read_records
from emergo.studies._plan import make_plan
from emergo.studies._processes import MEMORY as SHARE
from emergo.studies._worker import longest

Key = tuple[str, int, bool]  # the unit of a program, its width, and whether kernels were searched for


class Turns:
    """How much programs that compute at the same time slow each other down."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.added = programs, 1.0

    def kernel(self, key: Key) -> float:
        """Milliseconds of a kernel."""
        unit, width, tuned = key
        times = next(times for times in self.programs.values() if times.unit.id == unit)
        return times.ms("step_ms", width, tuned) / times.scheduler.cost.products

    def __call__(self, keys: Sequence[Key]) -> list[float]:
        return slowdowns([self.kernel(key) for key in keys], self.added)

    def fit(self, table: pd.DataFrame) -> None:
        """To slowdowns that were measured."""
        products = {name: find_program(runs_of(name, "paper")[0])[1].cost.products for name in table["program"].unique()}
        mixes = [mix for _, mix in table.groupby("mix")]
        kernels = [1 / (mix["alone"] * mix["program"].map(products)) for mix in mixes]

        def errors(added: float) -> np.ndarray:
            pairs = zip(mixes, kernels, strict=True)
            return np.concatenate([np.log(slowdowns([*each], added) / mix["slowdown"]) for mix, each in pairs])

        self.added = float(minimize_scalar(lambda added: np.sum(errors(added) ** 2), bounds=(0.0, 1.0), method="bounded").x)
        off = np.expm1(np.abs(errors(self.added)))
        words = f"the others add {self.added:.2f} of their time to a round of kernels"
        print(f"{words}; {len(off)} slowdowns are met within {np.median(off):.0%} (median) and {off.max():.0%}")


def slowdowns(kernels: Sequence[float], added: float) -> list[float]:
    """How often longer each program takes than alone, by the time of its kernels."""
    longest = max(kernels, default=0.0)
    together = longest + added * (sum(kernels) - longest)
    return [together / kernel for kernel in kernels]


@dataclasses.dataclass
class Supply:
    """The units that workers may take now, as the process that plans has them."""

    wishes: Wishes
    finished: set[str]  # runs, which the sources of `wishes` know of

    def __post_init__(self) -> None:
        self.wishes.grow(set(), ask_all=True)
        self.plan = make_plan(list(self.wishes.runs.values()), unit=TOGETHER)
        self.free = list(self.plan.units)

    def take(self, others: int) -> Unit | None:
        """The next unit; its `then` is what comes after those that so many others take."""
        self.free.sort(key=lambda unit: longest(self.plan, unit), reverse=True)
        parts = [[self.wishes.runs[run.identity] for run in unit.runs] for unit in self.free]
        if not parts:
            return None
        figures = dict.fromkeys(self.wishes.figure_of[run.identity] for run in parts[0])
        return Unit(self.free.pop(0).id, " ".join(figures), parts[0], parts[1 + others :][:1])

    def end(self, unit: Unit) -> None:
        self.finished.update(run.identity for run in unit.runs)
        if self.wishes.grow(set(self.finished)):
            before, self.plan = self.plan, make_plan(list(self.wishes.runs.values()), unit=TOGETHER, before=self.plan)
            self.free += self.plan.units[len(before.units) :]


def shared_gpu(
    supply: Supply,
    clocks: Sequence[Clock],
    programs: Programs,
    turns: Callable[[Sequence[Key]], list[float]],
    until: float = math.inf,
) -> Iterator[Row]:
    """The units in the order in which they end, then those that are trained at the time `until`. A clock adds up what its unit
    takes alone, in parts that either compute (with some program) or do not; here the parts of all clocks pass at once."""
    now, busy = 0.0, dict[int, tuple[Unit, Row]]()
    while True:
        for number, clock in enumerate(clocks):
            if number in busy or (unit := supply.take(len(clocks) - 1)) is None:
                continue
            for runs in (unit.runs, *unit.then):
                key, scheduler = find_program(runs)
                named = Unit(runs[0].identity, unit.figure, runs, [])
                if key not in programs:
                    programs[key] = times = Times(named, scheduler, usual=next(iter(programs.values())).usual)
                    times.like = most_alike(times, programs)
            clock.now = now
            clock.chunks, clock.moments = [], []
            kept = {key: when for other in clocks for key, when in other.compilations.items() if when[1] <= now}
            clock.compilations = kept | clock.compilations
            with simulated(clock), tempfile.TemporaryDirectory() as folder:
                train(unit.runs, devices=[clock.device], then=unit.then, checkpoint=folder)
            row = {"unit": unit.id, "figure": unit.figure, "runs": len(unit.runs), "worker": number, "begins": now}
            busy[number] = unit, row | {"alone_s": clock.now - now}
            clock.drop()
        if not busy:
            return
        parts = {number: clocks[number].parts for number in busy}
        computing = {number: part[0][0] for number, part in parts.items() if part[0][0]}
        slower = dict(zip(computing, turns([*computing.values()]), strict=True))
        left = {number: part[0][1] * slower.get(number, 1.0) for number, part in parts.items()}
        passed = min(*left.values(), until - now)
        now += passed
        for number, part in parts.items():
            program, seconds = part.popleft()
            if left[number] > passed:
                part.appendleft((program, seconds * (1 - passed / left[number])))
            elif not part:
                unit, row = busy.pop(number)
                supply.end(unit)
                yield row | {"ends": now, "steps": steps_of(clocks[number])}
        if now >= until:
            for number, (_, row) in busy.items():
                yield row | {"steps": steps_of(clocks[number], sum(seconds for _, seconds in clocks[number].parts))}
            return


def steps_of(clock: Clock, before_the_end: float = 0.0) -> int:
    """The steps of a unit's longest run, so many seconds of its own before it ends; all its runs are taken to begin at once."""
    until = clock.now - before_the_end
    return sum(count for (_, count), at in zip(clock.chunks, clock.moments, strict=True) if at <= until)


def main(out: Path | None, ids: Sequence[str], preset: Any = "paper", workers: str = "4", until: str = "inf") -> None:
    records, count, programs, finished = read_records(), int(workers), Programs(), set[str]()
    figures = figures_of(ids)
    for unit in units_of(figures, preset, records):  # what was timed is known by these
        key, scheduler = find_program(unit.runs)
        programs.setdefault(key, Times(unit, scheduler))
    fit_times(programs, read_timed(out))
    turns = Turns(programs)
    if out is not None and (out / "shared.csv").exists():
        turns.fit(pd.read_csv(out / "shared.csv"))
    if preset != "paper":  # is not recorded, so that nothing is known to follow
        figures = [dataclasses.replace(figure, followup=None) for figure in figures]
    sources = [Replay(figure.id, records=records, trained=finished) for figure in figures]
    supply = Supply(Wishes(figures, preset, sources), finished)

    class Ends(dict[str, int]):
        def __missing__(self, identity: str) -> int:
            run = supply.wishes.runs[identity]
            self[identity] = steps = records.read(run).steps if run in records else run.config.steps
            return steps

    clocks = [Clock(programs, Ends(), memory=MEMORY / 0.75 * SHARE / count) for _ in range(count)]
    table = pd.DataFrame(shared_gpu(supply, clocks, programs, turns, float(until)))
    table = table.reindex(columns=[*dict.fromkeys([*table, "ends"])])
    print(table.round(1).to_string(index=False))
    if out is not None:
        table.to_csv(out / "together.csv", index=False)
    if table["ends"].isna().any():
        return
    ends, alone = table["ends"].max(), table["alone_s"].sum()
    for what, seconds in pd.DataFrame([clock.others for clock in clocks]).sum().items():
        print(f"{what:16} {seconds / 60:6.1f} min, of all workers together")
    idle, first = count * ends - (table["ends"] - table["begins"]).sum(), table.groupby("worker")["ends"].max().min()
    print(f"{'without a unit':16} {idle / 60:6.1f} min; the first of them after {first / 60:.1f} min")
    alone_words = f"one after another {alone / 60:.1f} min"
    print(f"{table['runs'].sum()} runs, {count} workers: {ends / 60:.1f} min; the same units {alone_words}")
