"""The next program compiles in another thread while this one trains: one at a time.

The thread is not a daemon: one that compiles when Python ends would abort the process.
"""

import contextlib
import threading
from collections.abc import Callable

_current: threading.Thread | None = None


def begin(compile: Callable[[], object]) -> None:
    """Starts to compile, if nothing is being compiled. What goes wrong will go wrong again where the program is needed."""
    global _current

    def quietly() -> None:
        with contextlib.suppress(Exception):
            compile()

    if _current is None or not _current.is_alive():
        _current = threading.Thread(target=quietly, name="emergo compiles ahead")
        _current.start()


def wait() -> None:
    """Until what was begun is there."""
    if _current is not None:
        _current.join()
