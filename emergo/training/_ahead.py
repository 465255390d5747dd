"""Compile the programs that are needed next in other threads, while the current one trains."""

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_THREADS = 3
_RESULTS = 64  # programs that stay in memory
_SWITCH = 2e-4  # seconds until a thread of Python yields to another; Python's default is 5e-3
P = ParamSpec("P")
R = TypeVar("R")


def once(function: Callable[P, R]) -> Callable[P, R]:
    """Cache the last results of a function, and compute each of them in one thread only.

    `functools.lru_cache` would let two threads compute the same result at the same time. Here a
    lock per set of arguments makes the second thread wait. Exceptions are not cached: if the first
    thread fails, the second one tries again.
    """
    cached = functools.lru_cache(_RESULTS)(function)
    locks = weakref.WeakValueDictionary[object, threading.Lock]()
    guard = threading.Lock()

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with guard:
            lock = locks.setdefault((args, *kwargs.items()), threading.Lock())
        with lock:
            return cached(*args, **kwargs)

    return locked


@contextlib.contextmanager
def compiling_ahead() -> Iterator[Callable[[Callable[[], object]], Future[object]]]:
    """Start a few threads that compile programs in the order in which they are submitted.

    At the end of the block, programs that have not begun to compile are dropped. The others are
    finished, and Python waits for them before it exits. Errors are ignored: they will recur where
    the program is used.

    Python runs one thread at a time, and tracing a program is Python. The training thread hands
    over to the GPU about twenty times per chunk, and could wait for three other threads each time.
    So threads yield sooner inside the block.

    **Yields:** a function that submits a compilation.
    """
    pool = ThreadPoolExecutor(_THREADS, "emergo compiles ahead")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(min(switch, _SWITCH))
    try:
        yield pool.submit
    finally:
        sys.setswitchinterval(switch)
        pool.shutdown(wait=False, cancel_futures=True)
