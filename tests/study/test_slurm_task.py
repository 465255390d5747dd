"""The signals of a task of a Slurm array, without Slurm."""

import signal

import pytest

from emergo.study import slurm
from emergo.study.slurm import Task


@pytest.fixture
def start(monkeypatch, tmp_path):
    """A function that starts a task which gets a signal instead of training."""
    number = 0

    def run_plan(*arguments, **options):
        if number:
            signal.raise_signal(number)
        return True

    def start(sent=0):
        nonlocal number
        number = sent
        return Task(str(tmp_path), "plan")((0, 1))

    before = signal.getsignal(signal.SIGUSR2)
    monkeypatch.setattr(slurm, "run_plan", run_plan)
    yield start
    signal.signal(signal.SIGUSR2, before)


def test_a_warning_after_the_end_is_ignored(start):
    assert start()
    signal.raise_signal(signal.SIGUSR2)
    with pytest.raises(SystemExit, match="143"):
        start(signal.SIGINT)
    signal.raise_signal(signal.SIGUSR2)


def test_a_warned_task_goes_back_into_the_queue(start, monkeypatch):
    called = []
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr("subprocess.run", lambda command, check: called.append(command))
    # A second warning while the task waits for its end is ignored.
    monkeypatch.setattr("time.sleep", lambda seconds: signal.raise_signal(signal.SIGUSR2))
    with pytest.raises(SystemExit, match="143"):
        start(signal.SIGUSR2)
    assert called == [["scontrol", "requeue", "12"]]
