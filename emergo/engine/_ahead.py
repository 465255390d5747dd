"""Work done ahead of its turn in another thread, one piece at a time: the next program compiles while this one trains."""

import threading
from collections.abc import Callable

import jax


class Ahead:
    """One thread. It never outlives the `with` block: XLA aborts a process that ends while it compiles."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begins a piece of work, after the one before has ended."""
        self.wait()
        bits = bool(jax.config.values["jax_enable_x64"])  # a setting of the caller's thread

        def run() -> None:
            try:
                with jax.enable_x64(bits):
                    work()
            except BaseException as error:  # raised by `wait`, in the caller's thread
                self._error = error

        self._thread = threading.Thread(target=run, name="emergo-ahead")
        self._thread.start()

    def wait(self) -> None:
        """Waits for what was begun, and raises the error that it ended in."""
        if self._thread is not None:
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()
