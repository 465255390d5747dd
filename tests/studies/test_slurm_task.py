"""A task of a Slurm array, without Slurm."""

import signal

import pytest

from emergo.studies import _slurm
from emergo.studies._slurm import Task


@pytest.fixture
def task(monkeypatch, tmp_path):
    """A task whose executor does what is appended to the list, or returns that all is finished."""
    does = []

    class Stand:
        def __init__(self, *arguments, **options): ...

        def run(self):
            for one in does:
                one()
            return True

    before = signal.getsignal(signal.SIGUSR2)
    monkeypatch.setattr(_slurm, "Executor", Stand)
    yield Task(str(tmp_path), "plan"), does
    signal.signal(signal.SIGUSR2, before)


def test_a_warning_after_the_end_is_not_heard(task):
    run, _ = task
    assert run((0, 1))
    signal.raise_signal(signal.SIGUSR2)


def test_a_warning_behind_a_request_to_end_is_not_heard(task):
    run, does = task
    does.append(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit, match="143"):
        run((0, 1))
    signal.raise_signal(signal.SIGUSR2)


def test_a_warned_task_goes_back_into_the_queue(task, monkeypatch, capsys):
    run, does = task
    called = []
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(_slurm.subprocess, "run", lambda command, check: called.append(command))
    monkeypatch.setattr(_slurm.time, "sleep", lambda seconds: signal.raise_signal(signal.SIGUSR2))  # which is not heard again
    does.append(lambda: signal.raise_signal(signal.SIGUSR2))
    with pytest.raises(SystemExit, match="143"):
        run((0, 1))
    assert called == [["scontrol", "requeue", "12"]]
