"""benchmarks/papers.py reckons with the engine's own scheduler on a device that only adds up seconds; several share a GPU."""

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

def ends(workers, demand, *units):
    clocks = [Clock() for _ in range(workers)]
    rows = together.shared_gpu(Supply(*units), clocks, programs, lambda key: demand if key else 0.0)
    return [round(row["ends"], 6) for row in rows]

ten = run(("a", 10.0))
assert ends(1, 0.8, ten, ten) == [10, 20]
assert ends(2, 0.5, ten, run(("b", 10.0))) == [10, 10]
assert ends(2, 0.8, ten, run(("b", 10.0))) == [16, 16]
assert ends(2, 0.8, run((None, 5.0), ("a", 10.0)), ten) == [13, 18], "who waits slows nobody down"
assert ends(2, 1.0, ten, run(("b", 2.0)), run((None, 1.0))) == [4, 5, 12], "who is free takes the next"

together.train, together.simulated = real
together.find_program = real_find
together.main(None, ["zucchet2025/fig3"], preset="smoke", workers="2")
"""


@pytest.mark.slow
def test_several_share_a_gpu_in_proportion_to_their_demands():
    done = subprocess.run([sys.executable, "-c", TOGETHER], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "16 runs, 2 workers: " in done.stdout.splitlines()[-1]


DEMANDS = """
import pandas as pd
import papers, shared, together

used = {name: 0.2 + 0.08 * i for i, name in enumerate(shared.PROGRAMS)} | {"recall 32, again": 0.2}
rows = []
for mix in shared.MIXES:
    slowdown = max(1.0, sum(used[name] for name in mix))
    rows += [{"mix": str(mix), "program": n, "width": shared.PROGRAMS[n][2], "slowdown": slowdown} for n in mix]
programs = papers.Programs()
for name in shared.PROGRAMS:
    runs = shared.runs_of(name, "paper")[0]
    key, scheduler = papers.find_program(runs)
    programs.setdefault(key, papers.Times(papers.Unit(runs[0].identity, name, runs, []), scheduler))
demands = together.Demands(programs)
demands.fit(pd.DataFrame(rows))
"""


@pytest.mark.slow
def test_demands_are_found_from_slowdowns():
    done = subprocess.run([sys.executable, "-c", DEMANDS], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("slowdowns are met within 0%"), done.stdout
