"""Concurrent jobs of the demo."""

import _thread
import threading

import pytest

from emergo.demo._threads import in_two_threads


def test_two_jobs_run_at_a_time():
    # Each of the first two waits until the other has started.
    both = threading.Barrier(2, timeout=60)
    told = []

    def job(name):
        def run(tell):
            both.wait()
            tell(0.5)
            return name.upper()

        return run

    done = in_two_threads(
        {name: job(name) for name in "abcd"}, lambda share, going: told.append((share, going))
    )
    assert done == {"a": "A", "b": "B", "c": "C", "d": "D"}
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert "a; b" in [going for _, going in told]
    assert told[-1][1] == ""


def test_a_failure_ends_the_other_jobs():
    begun = threading.Event()
    ended = []

    def fails(tell):
        begun.wait(60)
        raise ValueError("no flow")

    def goes_on(tell):
        begun.set()
        try:
            while True:
                tell(0.1)
        finally:
            ended.append("goes on")

    jobs = {"first": goes_on, "second": fails, "third": lambda tell: ended.append("third")}
    with pytest.raises(ValueError, match="no flow"):
        in_two_threads(jobs, lambda share, going: None)
    assert ended == ["goes on"]


def test_an_interrupt_does_not_wait():
    interrupted = threading.Event()
    stopped = threading.Event()

    def goes_on(tell):
        interrupted.wait(60)
        try:
            tell(0.5)
        finally:
            stopped.set()

    jobs = {"first": goes_on, "second": lambda tell: _thread.interrupt_main()}
    with pytest.raises(KeyboardInterrupt):
        in_two_threads(jobs, lambda share, going: None)
    assert not stopped.is_set()
    interrupted.set()
    assert stopped.wait(60)
