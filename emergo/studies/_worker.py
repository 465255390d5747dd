"""`python -m emergo.studies._worker FOLDER KEY NUMBER WORKERS UNTIL`: one of several processes that train a plan.

Another process starts it (see `_processes.py`) and may let the plan grow meanwhile. On standard input comes `end` when the plan
grows no more; where that closes, the other process is gone, and this one saves what is in training and ends. Standard output
has one line of JSON for each thing to be said, and for the error that ends it.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .._errors import InputError, StorageError
from ._folder import Plan, StudyFolder, Unit


def longest(plan: Plan, unit: Unit) -> tuple[int, int]:
    """What may take longest ranks highest: by the steps of the longest run, then by the number of runs."""
    from ..engine import Config

    steps = [config.get("steps", Config.steps) for config in plan.configs]  # what has its default is left out there
    return max(steps[run.config] for run in unit.runs), len(unit.runs)


def work(words: Sequence[str], growing: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Trains until the plan grows no more and nothing of it is left to take, or the time (of `time.time()`) is over."""
    from ._executor import Executor  # takes seconds: by then standard input is listened to

    folder, key, number, workers, until = words
    deadline = time.monotonic() + float(until) - time.time() if until else None
    share = int(number), int(workers)
    more: dict[str, Any] = {"growing": growing, "rank": longest, "deadline": deadline, "say": say}
    Executor(StudyFolder(folder), [key], share=share, wait=False, **more).run()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints does so on standard error
    grows_no_more = threading.Event()

    def tell(**what: str) -> None:
        with contextlib.suppress(OSError):  # nobody is there to read it
            answers.write(json.dumps(what) + "\n")

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                grows_no_more.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    status = 0
    try:
        work(sys.argv[1:], lambda: not grows_no_more.is_set(), lambda line: tell(say=line))
    except KeyboardInterrupt:
        status = 130
    except (InputError, StorageError) as error:
        tell(failed=type(error).__name__, why=str(error))
        status = 1
    except Exception as error:
        if os.environ.get("EMERGO_TRACEBACK"):
            traceback.print_exc()
        tell(failed="", why=f"{type(error).__name__}: {error}")
        status = 1
    os._exit(status)  # programs may still be compiling; nobody needs them any more


if __name__ == "__main__":
    main()
