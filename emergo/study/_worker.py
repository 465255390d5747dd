"""A worker process: `python -m emergo.study._worker FOLDER KEY NUMBER WORKERS UNTIL FORECASTER`.

Another process starts several workers to train one plan, which may grow while they train (see
`processes.py`). It writes `end` to their standard input once the plan will not grow any more. When
standard input closes, that process has died; the worker then saves what is in training and ends.
Standard output carries one JSON object per line: messages, and the error that ends the worker.
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

from ..core.errors import InputError, StorageError
from ..store.folder import StudyFolder


def work(words: Sequence[str], growing: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Train until the plan does not grow and nothing is left to take, or the time is over.

    **Arguments:**

    - `words`: the command line; UNTIL is a value of `time.time()`, or empty.
    - `growing`: returns True while the plan may grow.
    - `say`: called with messages.
    """
    # These imports take seconds; standard input is already read by another thread.
    from ._live import Watcher, load_forecaster
    from .executor import run_plan

    folder, key, number, workers, until, forecaster = words
    watch = Watcher()
    watch.forecaster = load_forecaster(forecaster)
    run_plan(
        StudyFolder(folder),
        [key],
        watch=watch,
        say=say,
        share=(int(number), int(workers)),
        wait=False,
        growing=growing,
        deadline=time.monotonic() + float(until) - time.time() if until else None,
    )


def main() -> None:
    """Run the worker and exit."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # other output of this process goes to standard error
    grows_no_more = threading.Event()

    def tell(**what: str) -> None:
        with contextlib.suppress(OSError):  # the other process is gone
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
    os._exit(status)  # without waiting for programs that are still being compiled


if __name__ == "__main__":
    main()
