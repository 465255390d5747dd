"""Jobs beside each other."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

Tell = Callable[[float], None]  # is told the share of a job that is done


class Stopped(Exception):
    """Ends a job whose result nobody waits for any more."""


def in_two_threads(
    jobs: Mapping[str, Callable[[Tell], Any]], show: Callable[[float, str], None]
) -> dict[str, Any]:
    """What each of the jobs returns, two at a time: most of each is compilation, or a small
    program, which keeps one core busy.

    `show` is told the share of all jobs that is done, and the names of those that are going on.
    When a job fails, or at an interrupt, those that have begun end where they next tell how far
    they are; an interrupt does not wait for them.
    """
    shares = dict.fromkeys(jobs, 0.0)
    going = dict[str, None]()
    stop = threading.Event()
    lock = threading.Lock()

    def run(name: str, job: Callable[[Tell], Any]) -> Any:
        def tell(share: float) -> None:
            if stop.is_set():
                raise Stopped
            with lock:
                shares[name] = share
                show(sum(shares.values()) / len(shares), "; ".join(going))

        try:
            going[name] = None
            tell(0.0)
            result = job(tell)
            going.pop(name)
            tell(1.0)
            return result
        except Exception:
            stop.set()
            raise

    threads = ThreadPoolExecutor(2)
    patient = True
    try:
        futures = {name: threads.submit(run, name, job) for name, job in jobs.items()}
        ended, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        for error in (future.exception() for future in ended):
            if error is not None and not isinstance(error, Stopped):
                raise error
        return {name: future.result() for name, future in futures.items()}
    except KeyboardInterrupt:
        patient = False
        raise
    finally:
        stop.set()
        threads.shutdown(wait=patient, cancel_futures=True)
