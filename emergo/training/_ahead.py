"""Compile the programs that are needed next in other threads, while the current one trains."""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

_THREADS = 3
_SWITCH = 2e-4  # seconds until a thread of Python yields to another; Python's default is 5e-3
P = ParamSpec("P")
R = TypeVar("R")


class Once(Generic[P, R]):
    """A function that caches its last results, and computes each of them in one thread only.

    `functools.lru_cache` would let two threads compute the same result at the same time. Here a
    lock per set of arguments makes the second thread wait. Exceptions are not cached: if the first
    thread fails, the second one tries again.
    """

    def __init__(self, function: Callable[P, R], most: int = 64) -> None:
        self.function = function
        self._cached = functools.lru_cache(most)(function)
        self._locks = weakref.WeakValueDictionary[object, threading.Lock]()
        self._guard = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            lock = self._locks.setdefault((args, *kwargs.items()), threading.Lock())
        with lock:
            return self._cached(*args, **kwargs)


class Ahead:
    """A few threads that compile programs in the order in which they are submitted.

    At the end of the block, programs that have not begun to compile are dropped. The others are
    finished, and Python waits for them before it exits.

    Python runs one thread at a time, and tracing a program is Python. The training thread hands
    over to the GPU about twenty times per chunk, and could wait for three other threads each time.
    So threads yield sooner inside the block.
    """

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(_THREADS, "emergo compiles ahead")

    def __enter__(self) -> "Ahead":
        self.switch = sys.getswitchinterval()
        sys.setswitchinterval(min(self.switch, _SWITCH))
        return self

    def __exit__(self, *error: object) -> None:
        sys.setswitchinterval(self.switch)
        self.pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, compile: Callable[[], object]) -> None:
        """Submit a compilation. Errors are ignored: they will recur where the program is used."""
        self.pool.submit(compile)
