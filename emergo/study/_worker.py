"""A worker process, `python -m emergo.study._worker`. `processes.py` starts it, and describes what
it reads and writes."""

import functools
import os
import pickle
import signal
import sys
import threading
import traceback


def main() -> None:
    """Run the job and exit."""
    job = pickle.load(sys.stdin.buffer)
    grows_no_more = threading.Event()

    def listen() -> None:
        if sys.stdin.buffer.read(1):
            grows_no_more.set()
        sys.stdin.buffer.read()  # returns once the other process is gone
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    status = 0
    try:
        job(growing=lambda: not grows_no_more.is_set(), say=functools.partial(print, flush=True))
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        if os.environ.get("EMERGO_TRACEBACK"):
            traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        status = 1
    os._exit(status)  # without waiting for programs that are still being compiled


if __name__ == "__main__":
    main()
