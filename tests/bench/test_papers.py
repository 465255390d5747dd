"""benchmarks/papers.py reckons with the engine's own scheduler on a device that only adds up seconds."""

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
