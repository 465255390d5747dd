"""What comes next is compiled in another thread, once, and nothing else changes."""

import threading

import pytest

from emergo.engine import Config, Optimizer, Run, _ahead, _cost, _scheduler, _train, train
from emergo.models import Transformer
from emergo.studies import Study
from emergo.tasks import SingleLocation

FEW = {"batch": 8, "n_test": 16, "precision": "fp32", "threshold": None}


def config(width: int, steps: int = 20) -> Config:
    return Config(
        SingleLocation(4, 2),
        Transformer(layers=1, heads=1, width=width, mlp=False),
        Optimizer("adam", 0.02),
        steps=steps,
        **FEW,
    )


@pytest.fixture
def compiled(monkeypatch):
    """The thread and the width of every program that was asked for; as on a device that leaves the processor free."""
    asked = []

    def noted(program, slot, *arguments):
        asked.append((threading.current_thread().name, slot.params.embed.weight.shape[-1]))
        return _cost.compile_chunk(program, slot, *arguments)

    monkeypatch.setattr(_scheduler, "compile_chunk", noted)
    monkeypatch.setattr(_train, "leaves_processor_free", lambda devices: True)
    _cost._compile.cache_clear()
    yield asked
    _ahead.wait()


def test_the_next_group_is_compiled_while_this_one_trains(compiled):
    runs = [Run(config(width), seed) for width in (4, 6) for seed in range(2)]
    results = train(runs)
    assert compiled == [("MainThread", 4), ("emergo compiles ahead", 6), ("MainThread", 6)]
    assert _cost._compile.cache_info().misses == 2  # the last one was there
    compiled.clear()
    alone = [train([run])[0] for run in runs]
    for one, other in zip(results, alone, strict=True):
        assert one.curves is not None
        assert other.curves is not None
        assert one.curves["loss"][-1] == pytest.approx(other.curves["loss"][-1], rel=1e-5)  # another width of the stack


def test_what_a_later_call_trains_is_compiled_too(compiled):
    train([Run(config(4), 0)], then=[Run(config(8), seed) for seed in range(3)])
    _ahead.wait()
    train([Run(config(8), seed) for seed in range(3)])
    assert [width for _, width in compiled] == [4, 8, 8]
    assert _cost._compile.cache_info().misses == 2


def test_a_study_compiles_its_next_unit(compiled, tmp_path):
    small = config(4)
    study = Study(small.task, small.model, small.optimizer, grid={"width": [4, 6]}, seeds=2, steps=20, **FEW)
    study.run(tmp_path)
    (first, one), (other, two), (last, three) = compiled
    assert (first, other, last) == ("MainThread", "emergo compiles ahead", "MainThread")
    assert two == three != one
    assert _cost._compile.cache_info().misses == 2


def test_nothing_is_compiled_ahead_without_time_left_to_train_it(compiled, monkeypatch):
    monkeypatch.setattr(_train.time, "monotonic", lambda: 0.0)
    train([Run(config(4), 0)], then=[Run(config(8), 0)], deadline=100.0)
    assert [width for _, width in compiled] == [4]


def test_what_goes_wrong_ahead_is_left_to_the_call_that_needs_it(compiled):
    _ahead.begin(lambda: 1 / 0)
    _ahead.wait()
    assert train([Run(config(4), 0)])[0].state == "trained"
