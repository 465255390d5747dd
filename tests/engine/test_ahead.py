"""What is done ahead of its turn: one piece at a time, the caller's bits, errors where they belong."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

from emergo.engine import Config, Optimizer, Run, train
from emergo.engine import _scheduler as scheduler
from emergo.engine import _train as training
from emergo.engine._ahead import Ahead
from emergo.engine._cost import _compile
from emergo.models import Transformer
from emergo.tasks import SingleLocation


def test_one_piece_at_a_time_and_none_outlives_the_block():
    running, most, gate = [], [], threading.Event()

    def work():
        running.append(1)
        most.append(len(running))
        gate.wait()
        running.pop()

    with Ahead() as ahead:
        ahead.begin(work)
        threading.Timer(0.01, gate.set).start()
        ahead.begin(work)
    assert most == [1, 1]
    assert running == []


def test_an_error_is_raised_when_it_is_waited_for_and_only_once():
    def fail():
        raise ValueError("does not compile")

    with Ahead() as ahead:
        ahead.begin(fail)
        with pytest.raises(ValueError, match="does not compile"):
            ahead.wait()
        ahead.wait()


def test_an_error_of_the_block_is_not_hidden():
    def fail():
        raise ValueError("does not compile")

    def block():
        with Ahead() as ahead:
            ahead.begin(fail)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()


def test_arrays_have_the_bits_of_the_callers_thread():
    kinds = []
    with Ahead() as ahead:
        for bits in (False, True):
            with enable_x64(bits):
                ahead.begin(lambda: kinds.append(jnp.zeros(()).dtype))
                ahead.wait()
    assert kinds == [np.float32, np.float64]


def groups_of_three_lengths():
    model, adam = Transformer(layers=1, heads=1, width=4, mlp=False), Optimizer("adam", learning_rate=0.02)
    tasks = [SingleLocation(length=length, dim=2) for length in (4, 5, 6)]
    configs = [Config(task, model, adam, steps=50, batch=8, n_test=16, precision="fp32") for task in tasks]
    return [Run(config, seed) for config in configs for seed in range(2)]


def curves_of(results):
    return [np.asarray(values) for result in results for _, values in sorted(result.curves.items())]


def test_runs_are_the_same_to_the_last_bit_whether_or_not_programs_compile_beside(monkeypatch):
    monkeypatch.setattr(training, "compiles_beside", lambda platform: True)
    beside = curves_of(train(groups_of_three_lengths()))
    _compile.cache_clear()
    monkeypatch.setattr(training, "compiles_beside", lambda platform: False)
    for ours, alone in zip(beside, curves_of(train(groups_of_three_lengths())), strict=True):
        np.testing.assert_array_equal(ours, alone)


def test_the_next_program_compiles_in_another_thread_and_what_goes_wrong_is_raised_at_its_turn(monkeypatch):
    threads, ended, real = [], [], scheduler.compile_chunk

    def compile_chunk(program, slot, *rest):
        threads.append(threading.current_thread().name)
        if threads[-1] == "emergo-ahead":
            raise MemoryError("no room to compile")
        return real(program, slot, *rest)

    monkeypatch.setattr(scheduler, "compile_chunk", compile_chunk)
    with pytest.raises(MemoryError, match="no room to compile"):
        train(groups_of_three_lengths(), on_end=ended.append)
    assert (threads[0], threads.count("emergo-ahead")) == ("MainThread", 1)
    assert len(ended) == 2  # the runs of the first program
    assert not [thread for thread in threading.enumerate() if thread.name == "emergo-ahead"]
