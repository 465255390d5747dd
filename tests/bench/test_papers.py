"""benchmarks/papers.py estimates with the engine's own scheduler on a device that only adds up seconds; several share a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# In a process of its own: types are checked in this one, and a device that is not there is none.
SCRIPT = """
import jax, papers
import emergo as em
from emergo.engine import _scheduler as scheduler

task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4, mlp=False)
base = em.Config(task, model, em.Optimizer("adam", learning_rate=0.02), batch=8, n_test=16, precision="fp32")
runs = [em.Run(base.replace(steps=steps, threshold=None), 0) for steps in (250, 60, 110, 30, 400, 90)]
runs += [em.Run(base.replace(steps=300), seed) for seed in range(3)]
scheduler.worth_narrowing = lambda *_: True
chunks, launch = [], scheduler.DeviceStack.launch

def noted(stack, count):
    chunks.append((len(stack.tracked), count))
    return launch(stack, count)

scheduler.DeviceStack.launch = noted
results = em.train(runs, n_parallel=4)
scheduler.DeviceStack.launch = launch
of_runs = scheduler.Scheduler(runs, jax.devices()[:1], 4, None, lambda *_: None)
programs = {papers.program_of(of_runs): papers.Times(papers.Unit("unit", "figure", runs, []), of_runs)}
clock = papers.Clock(programs, {result.run.identity: result.steps for result in results}, platform="cpu")
with papers.simulated(clock):
    em.train(runs, n_parallel=4, devices=[clock.device])
assert clock.chunks == chunks, (clock.chunks, chunks)
assert len({width for width, _ in chunks}) > 2, "it was narrowed"
assert abs(clock.now - sum(clock.spent.values()) - sum(clock.others.values())) < 1e-6
print("equal:", len(chunks), "chunks")
"""


@pytest.mark.slow
def test_chunks_are_those_of_a_real_training():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("equal"), done.stderr


TOGETHER = """
import collections, contextlib, types
import numpy as np, pandas as pd
import papers, shared, together

def run(*parts):
    return [types.SimpleNamespace(identity=str(parts), parts=parts)]

class Clock(papers.Clock):
    def __init__(self):
        super().__init__({}, {})
        self.device = self

class Supply:
    def __init__(self, *units):
        self.units, self.ended = collections.deque(units), []
    def take(self, others):
        return papers.Unit(str(len(self.units)), "figure", self.units.popleft(), []) if self.units else None
    def end(self, unit):
        self.ended.append(unit.id)

def train(runs, devices, **_):
    for part in runs[0].parts:
        devices[0]._pass(*part)

together.train, together.simulated, real = train, lambda clock: contextlib.nullcontext(), (together.train, together.simulated)
together.find_program, real_find = lambda runs: (None, None), together.find_program
programs = {None: types.SimpleNamespace(usual={})}

def ends(workers, added, *units):
    clocks, kernels = [Clock() for _ in range(workers)], {"a": 2.0, "b": 1.0}
    turns = lambda keys: together.slowdowns([kernels[key] for key in keys], added)
    return [round(row["ends"], 6) for row in together.shared_gpu(Supply(*units), clocks, programs, turns)]

ten = run(("a", 10.0))
assert ends(1, 0.5, ten, ten) == [10, 20]
assert ends(2, 0.0, ten, ten) == [10, 10]
assert ends(2, 0.5, ten, ten) == [15, 15]
assert ends(2, 0.5, ten, run(("b", 4.0))) == [10, 12], "b takes 2.5 times as long, a 1.25 times"
assert ends(2, 1.0, run((None, 5.0), ("a", 10.0)), ten) == [15, 20], "who waits slows nobody down"
assert ends(2, 1.0, ten, run(("a", 2.0)), run((None, 1.0))) == [4, 5, 12], "who is free takes the next"

together.train, together.simulated = real
together.find_program = real_find
together.main(None, ["zucchet2025/fig3"], preset="smoke", workers="2")
"""


@pytest.mark.slow
def test_several_take_turns_on_a_gpu():
    done = subprocess.run([sys.executable, "-c", TOGETHER], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "16 runs, 2 workers: " in done.stdout.splitlines()[-1]


TURNS = """
import pandas as pd
import papers, shared, together

rows = []
for mix in shared.MIXES:
    alone = [1e3 / (1 + len(name)) for name in mix]
    kernels = [1 / (rate * papers.find_program(shared.runs_of(n, "paper")[0])[1].cost.products) for n, rate in zip(mix, alone)]
    slower = together.slowdowns(kernels, 0.6)
    rows += [{"mix": str(mix), "program": n, "alone": a, "slowdown": s} for n, a, s in zip(mix, alone, slower)]
together.Turns(papers.Programs()).fit(pd.DataFrame(rows))
"""


@pytest.mark.slow
def test_what_a_program_adds_is_found_from_slowdowns():
    done = subprocess.run([sys.executable, "-c", TURNS], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the others add 0.60 of their time"), done.stdout
    assert "within 0% (median) and 0%" in done.stdout
