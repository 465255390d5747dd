"""Stacks of runs: evaluations, curves, narrowing and memory."""

from typing import Any

import numpy as np
import pytest

from emergo.training import _scheduler as scheduler
from emergo.training._scheduler import Tracked

from .helpers import alike, check_going_on
from .own import BASE, Echo, clock, run_of
from .untyped import Run, train


def test_narrowing_changes_nothing(monkeypatch):
    """The first run ends early. The second continues in a narrower stack, or in the wide one."""
    runs = [run_of(seed, steps=steps) for seed, steps in enumerate((5, 15))]
    widths = []

    def watched(stack, count, launch=scheduler.DeviceStack.launch):
        widths.append(len(stack.tracked))
        return launch(stack, count)

    monkeypatch.setattr(scheduler.DeviceStack, "launch", watched)
    wide = train(runs, n_parallel=2)
    assert set(widths) == {2}
    monkeypatch.setattr(scheduler, "worth_narrowing", lambda *_: True)
    widths.clear()
    for one, two in zip(train(runs, n_parallel=2), wide, strict=True):
        alike(one, two)
    assert widths == [2, 2, 1, 1]


class Named(Echo):
    """Metrics with names like the loss on another test distribution."""

    def metrics(self, output, batch, truth):
        return {
            "error": self.loss(output, batch),
            "loss_single": self.loss(output, batch),
            "error_2": self.loss(output, batch),
        }


def test_only_curves_of_other_runs_are_left_out():
    tracked = Tracked(Run(BASE.replace(task=Named(4, 3)), 0))
    tracked.note({"loss": 1.0, "loss_single": 2.0, "loss_far": 3.0, "train_loss": 0.0}, 0, ["far"])
    assert set(tracked.curves) == {"step", "loss", "loss_single", "train_loss"}
    (result,) = train([run_of(task=Named(4, 3), steps=5)])
    assert {"loss", "error", "loss_single", "error_2", "train_loss", "step"} <= set(result.curves)
    np.testing.assert_array_equal(result.curves["loss"], result.curves["loss_single"])


class Prepared:
    """A probe that prepares an array for each run."""

    def __init__(self, offset):
        self.offset = offset

    def prepare(self, run) -> Any:
        return {"offset": np.full(2, self.offset + run.seed), "unused": [1.0]}

    def __call__(self, params, output, batch, truth, step, prepared):
        return {"offset": prepared["offset"] + step}


def test_a_probe_receives_the_arrays_of_its_run(tmp_path):
    """In a stack, next to a probe without arrays, and after an interrupt."""
    probe = Prepared(100.0)
    runs = [run_of(seed, probes=(clock, probe), steps=12) for seed in range(3)]
    results = train(runs, n_parallel=2)
    for result in results:
        steps = result.curves["step"]
        np.testing.assert_array_equal(
            result.curves["offset"], np.stack([100 + result.run.seed + steps] * 2, 1)
        )
        np.testing.assert_array_equal(result.curves["clock"], steps)
    check_going_on(results, tmp_path, 2, n_parallel=2)


@pytest.mark.parametrize("bytes_here", [10.0, 20_000.0])
def test_a_run_that_exceeds_the_memory_fails_at_once(monkeypatch, bytes_here):
    """Before it starts, or before its program runs; otherwise XLA would hang on a CPU."""
    monkeypatch.setattr(scheduler, "memory_of", lambda *_, **__: bytes_here)
    if bytes_here > 10:
        monkeypatch.setattr(scheduler, "bytes_of", lambda arrays: 0)
        compile_chunk = scheduler.compile_chunk
        monkeypatch.setattr(
            scheduler, "compile_chunk", lambda *args: compile_chunk(*args)._replace(bytes=50_000)
        )
    with pytest.raises(MemoryError, match=r"one run needs .* GB or more, and .* GB are available"):
        train([run_of(0)])
