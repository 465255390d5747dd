"""Programs that are needed later compile in other threads while this one trains."""

import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

_THREADS = 3
_SWITCH = 2e-4  # seconds after which a thread of Python lets another go on; by default 5e-3
P = ParamSpec("P")
R = TypeVar("R")


class Once(Generic[P, R]):
    """A function that keeps its last results; who asks for one while another thread computes it waits for that."""

    def __init__(self, function: Callable[P, R], most: int = 64) -> None:
        self.function, self.most, self.lock = function, most, threading.Lock()
        self.kept: dict[object, Future[R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(kwargs.items()))
        while True:
            with self.lock:
                theirs, mine = self.kept.get(key), Future[R]()
                if theirs is None:
                    self.kept[key] = mine
                    for oldest in list(self.kept)[: -self.most]:
                        del self.kept[oldest]
            if theirs is None:
                return self._compute(key, mine, *args, **kwargs)
            with contextlib.suppress(Exception):  # what failed in another thread is tried again in this one
                return theirs.result()

    def _compute(self, key: object, future: Future[R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            with self.lock:
                self.kept.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(result)
        return result


class Ahead:
    """Compiles in a few threads, in the order in which it was asked to. What has not begun at the end of the block is dropped;
    what has goes on, and Python waits for it before it ends.

    A program is traced in Python, of which one thread runs at a time. The one that trains hands over to the GPU some twenty
    times a chunk, and would each time wait for up to three others: they let go sooner inside the block.
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
        """What goes wrong here will go wrong again where the program is needed."""
        self.pool.submit(compile)
