"""What comes next is compiled in other threads, once, and nothing else changes."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from emergo import InputError
from emergo.models import Transformer
from emergo.study import Study
from emergo.tasks import SingleLocation
from emergo.training import Config, Optimizer, Run, _cost, _scheduler, _train, train
from emergo.training._ahead import Ahead, Once

from .helpers import alike

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
    """The thread, width and number of runs of every program that was compiled; as where a GPU
    trains. No run trains on before what compiles ahead is there: which thread compiles what is then
    known."""
    made = []
    compile = _cost._compile.function

    def noted(program, structure, leaves, n_parallel, *rest):
        width = jax.tree.unflatten(structure, leaves).params.embed.weight.shape[-1]
        made.append((threading.current_thread() is threading.main_thread(), width, n_parallel))
        return compile(program, structure, leaves, n_parallel, *rest)

    class Waiting(Ahead):
        def begin(self, compile):
            self.pool.submit(compile).exception()

    monkeypatch.setattr(_cost, "_compile", Once(noted))
    monkeypatch.setattr(_train, "Ahead", Waiting)
    monkeypatch.setattr(_train, "can_compile_ahead", lambda scheduler: True)
    return made


def test_groups_are_compiled_while_the_first_one_trains(compiled):
    runs = [Run(config(width), seed) for width in (4, 6) for seed in range(2)]
    results = train(runs)
    assert compiled == [(True, 4, 2), (False, 6, 2)]
    for one, other in zip(results[2:], train(runs[2:]), strict=True):
        alike(one, other)
    assert len(compiled) == 2


def test_what_later_calls_train_is_compiled_too(compiled):
    then = [Run(config(6), seed) for seed in range(3)]
    train([Run(config(4), 0)], then=[then])
    train(then)
    assert compiled == [(True, 4, 1), (False, 6, 3)]


def test_what_comes_before_the_first_chunk_is_compiled_too(compiled):
    """Of a later call only programs that depend on nothing but the process are left, and none is
    left the second time."""
    first = [Run(config(4), 0)]
    later = [Run(config(10), seed) for seed in range(2)]
    here = threading.current_thread()
    made = []

    def note(event, *_, **more):
        if event.endswith("backend_compile_duration") and threading.current_thread() is here:
            made.append(more.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        train(first)
        train(first, then=[later])
        made.clear()
        train(later)
        assert made == []
        train([Run(config(12), 0)])  # nobody had asked for it
        assert len(made) == 2
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_narrower_programs_are_compiled_where_they_may_be_asked_for(compiled, monkeypatch):
    """And used: the run that is left when the others have ended goes on in the narrowest of
    them."""
    monkeypatch.setattr(
        _scheduler,
        "worth_narrowing",
        lambda cost, platform, n, width, steps: width > 1 and steps >= 5,
    )
    runs = [Run(config(4, steps=40 if seed == 0 else 5), seed) for seed in range(4)]
    assert [result.steps for result in train(runs)] == [40, *3 * [5]]
    assert compiled == [(True, 4, 4), (False, 4, 3), (False, 4, 2)]


def test_a_program_that_needs_the_device_waits_where_there_is_no_room(compiled, monkeypatch):
    """The compiler's search among kernels takes memory; programs without it are compiled in any
    case."""
    monkeypatch.setattr(
        _scheduler.Scheduler, "tuned", property(lambda self: self.runs[0].config.model.width == 8)
    )
    monkeypatch.setattr(_train, "has_room", lambda scheduler: False)
    train([Run(config(width), 0) for width in (4, 6, 8)])
    assert compiled == [(True, 4, 1), (False, 6, 1), (True, 8, 1)]


def test_there_is_room_for_a_program_beside_a_small_one():
    scheduler = _scheduler.Scheduler(
        [Run(config(4), 0)], jax.devices("cpu"), None, None, lambda run, step, params: None
    )
    scheduler.advance()
    assert _train.has_room(scheduler)
    stack = scheduler.stacks[0]
    stack.compiled = stack.compiled._replace(bytes=int(0.6 * _cost.memory_of(stack.device)))
    assert not _train.has_room(scheduler)


def test_a_study_compiles_its_next_units(compiled, tmp_path):
    small = config(4)
    study = Study(
        small.task,
        small.model,
        small.optimizer,
        grid={"width": [4, 6, 8]},
        seeds=2,
        steps=20,
        **FEW,
    )
    study.run(tmp_path)
    assert [main for main, _, _ in compiled] == [True, False, False]
    assert sorted(width for _, width, _ in compiled) == [4, 6, 8]


@pytest.mark.parametrize("then", [3, [3], [Run(config(4), 0)]], ids=["a number", "numbers", "runs"])
def test_what_comes_later_is_lists_of_runs(then):
    with pytest.raises(InputError, match="then must be a list of lists of runs"):
        train([Run(config(4), 0)], then=then)


def test_nothing_is_compiled_ahead_without_time_left_to_train_it(compiled, monkeypatch):
    monkeypatch.setattr(_train.time, "monotonic", lambda: 0.0)
    train([Run(config(4), 0)], then=[[Run(config(8), 0)]], deadline=40.0)
    assert compiled == [(True, 4, 1)]


def test_a_processor_that_trains_compiles_nothing_else():
    scheduler = _scheduler.Scheduler(
        [Run(config(4), 0)], jax.devices("cpu"), None, None, lambda run, step, params: None
    )
    assert not _train.can_compile_ahead(scheduler)


def asked_twice(compute):
    """What two threads get that ask for the same, the second while the first computes it, and how
    often it was computed."""
    begun = threading.Event()
    go = threading.Event()
    calls = []

    def slowly(x):
        calls.append(x)
        if len(calls) == 1:
            begun.set()
            assert go.wait(60)
        return compute(len(calls))

    once = Once(slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(once, 1)
        assert begun.wait(60)
        second = pool.submit(once, 1)
        go.set()
    return first, second, len(calls)


def test_who_asks_while_another_thread_computes_waits_for_it():
    first, second, calls = asked_twice(lambda call: [call])
    assert first.result() is second.result()
    assert calls == 1


def test_what_failed_in_another_thread_is_tried_again_where_it_is_needed():
    def fails_first(call):
        if call == 1:
            raise MemoryError("while the other trained")
        return call

    first, second, calls = asked_twice(fails_first)
    assert isinstance(first.exception(), MemoryError)
    assert second.result() == calls == 2


def test_threads_of_python_take_turns_sooner_while_programs_may_compile():
    """Beside three threads of pure Python, at the default, what follows a chunk takes 0.16 s
    instead of some ms."""
    before = sys.getswitchinterval()
    with Ahead():
        assert sys.getswitchinterval() <= 1e-3 < before
    assert sys.getswitchinterval() == before


def test_only_the_last_results_are_kept():
    calls = []
    once = Once(lambda x: calls.append(x), most=2)
    for x in (1, 2, 3, 3, 2, 1):
        once(x)
    assert calls == [1, 2, 3, 1]


def test_an_error_in_what_comes_later_does_not_end_what_trains(compiled, monkeypatch):
    real = _scheduler.step_cost

    def cost(program, slot):
        if slot.params.embed.weight.shape[-1] == 6:
            raise ValueError("a bug in the next unit")
        return real(program, slot)

    monkeypatch.setattr(_scheduler, "step_cost", cost)
    monkeypatch.setattr(_scheduler.Scheduler, "tuned", property(lambda self: self.cost.bytes > 0))
    [result] = train([Run(config(4), 0)], then=[[Run(config(6), 0)]])
    assert result.state == "trained"
