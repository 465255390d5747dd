"""Jobs of worker processes that train nothing."""

import os
import signal
import time

from emergo.core.errors import InputError


def wait_for_the_end(growing, say):
    say("a line")
    while growing():
        time.sleep(0.01)


def once_there(path, job, growing, say):
    """Do another job once a file exists."""
    while not path.exists():
        time.sleep(0.01)
    job()


def fail():
    raise InputError("it is wrong")


def get_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status):
    os._exit(status)


def save(begun, growing, say):
    """Write a file when the process is terminated."""

    def end(*_):
        begun.with_name("saved").touch()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    begun.touch()
    time.sleep(60)


def ignore_signals(begun, growing, say):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begun.touch()
    time.sleep(60)
