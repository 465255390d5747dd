"""Concurrent jobs with a common progress report."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

Tell = Callable[[float], None]  # called by a job with the share of it that is done


class Stopped(Exception):
    """Ends a job after another one has failed."""


def in_two_threads(
    jobs: Mapping[str, Callable[[Tell], Any]], show: Callable[[float, str], None]
) -> dict[str, Any]:
    """Run jobs, two at a time, and return their results by name.

    Most of a job is compilation or a small program, either of which keeps one core busy.

    When a job fails, or after an interrupt, running jobs end at their next progress report. An
    interrupt does not wait for them.

    **Arguments:**

    - `jobs`: functions by name. Each gets a function to call with the share of it that is done.
    - `show`: called with the share of all jobs that is done, and the names of the running jobs.
    """
    shares = dict.fromkeys(jobs, 0.0)
    running = dict[str, None]()  # an ordered set
    stop = threading.Event()
    lock = threading.Lock()

    def run(name: str, job: Callable[[Tell], Any]) -> Any:
        def tell(share: float) -> None:
            if stop.is_set():
                raise Stopped
            with lock:
                shares[name] = share
                show(sum(shares.values()) / len(shares), "; ".join(running))

        try:
            running[name] = None
            tell(0.0)
            result = job(tell)
            running.pop(name)
            tell(1.0)
            return result
        except Exception:
            stop.set()
            raise

    threads = ThreadPoolExecutor(2)
    wait_for_running = True
    try:
        futures = {name: threads.submit(run, name, job) for name, job in jobs.items()}
        ended, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        for error in (future.exception() for future in ended):
            if error is not None and not isinstance(error, Stopped):
                raise error
        return {name: future.result() for name, future in futures.items()}
    except KeyboardInterrupt:
        wait_for_running = False
        raise
    finally:
        stop.set()
        threads.shutdown(wait=wait_for_running, cancel_futures=True)
