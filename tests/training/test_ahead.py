"""Programs that are needed later are compiled in other threads, once."""

import contextlib
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from emergo.training import _cost, _scheduler, _train, train
from emergo.training._ahead import compiling_ahead, once

from .helpers import alike
from .untyped import Config, Optimizer, Run, SingleLocation, Transformer


def config(width, steps=20):
    model = Transformer(layers=1, heads=1, width=width, mlp=False)
    task = SingleLocation(4, 2)
    adam = Optimizer("adam", 0.02)
    return Config(task, model, adam, 8, "fp32", steps, n_test=16, threshold=None)


@pytest.fixture
def compiled(monkeypatch):
    """Record the thread, the width and the number of runs of every compiled program.

    Compiles ahead as on a GPU. Training waits for each program that is compiled ahead, so that it
    is known which thread compiles it.
    """
    made = []
    compile = inspect.unwrap(_cost._compile)

    def noted(program, structure, leaves, n_parallel, *rest):
        width = jax.tree.unflatten(structure, leaves).params.embed.weight.shape[-1]
        made.append((threading.current_thread() is threading.main_thread(), width, n_parallel))
        return compile(program, structure, leaves, n_parallel, *rest)

    @contextlib.contextmanager
    def waiting():
        with compiling_ahead() as submit:
            yield lambda compile: submit(compile).exception()

    monkeypatch.setattr(_cost, "_compile", once(noted))
    monkeypatch.setattr(_train, "compiling_ahead", waiting)
    monkeypatch.setattr(_train, "can_compile_ahead", lambda scheduler: True)
    return made


def test_later_groups_and_later_calls_are_compiled_while_the_first_group_trains(compiled):
    runs = [Run(config(width), seed) for width in (4, 6) for seed in range(2)]
    later = [Run(config(8), seed) for seed in range(3)]
    results = train(runs, then=[later])
    train(later)
    assert compiled == [(True, 4, 2), (False, 6, 2), (False, 8, 3)]
    for one, other in zip(results[2:], train(runs[2:]), strict=True):
        alike(one, other)
    assert len(compiled) == 3


def test_an_error_in_a_later_program_does_not_end_training(compiled, monkeypatch):
    real = _scheduler.step_cost

    def cost(program, slot):
        if slot.params.embed.weight.shape[-1] == 6:
            raise ValueError("a bug in the next program")
        return real(program, slot)

    monkeypatch.setattr(_scheduler, "step_cost", cost)
    (result,) = train([Run(config(4), 0)], then=[[Run(config(6), seed) for seed in range(2)]])
    assert result.state == "trained"
    assert compiled == [(True, 4, 1)]


def called_twice(function):
    """Call in two threads with equal arguments, the second while the first computes."""
    begun = threading.Event()
    go_on = threading.Event()
    calls = []

    def slow(number):
        calls.append(number)
        begun.set()
        assert go_on.wait(10)
        return function(len(calls))

    compute = once(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compute, 1)
        assert begun.wait(10)
        second = pool.submit(compute, 1)
        go_on.set()
    return first, second, len(calls)


def test_two_threads_compute_a_result_once():
    first, second, calls = called_twice(lambda call: [call])
    assert first.result() is second.result()
    assert calls == 1


def test_a_failure_in_another_thread_is_retried():
    def fails_first(call):
        if call == 1:
            raise MemoryError
        return call

    first, second, calls = called_twice(fails_first)
    assert isinstance(first.exception(), MemoryError)
    assert second.result() == calls == 2
