"""The `emergo` command: a thin door to the rooms behind it, one module per command.

Standard output carries results (with `--json`, one JSON object and nothing else); progress and messages go to standard error.
Exit status: 0, 1 for a failure, 2 for wrong input, 130 for an interrupt.

A command is a dataclass: its fields are the options, and the comment or text beside a field is its help. The rooms are imported
inside the commands: `emergo --help` should not wait for JAX.
"""

import os
import sys

TYPE_CHECKING = False  # as in `emergo`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Runs one command and exits with its status. All that is slow to import comes after an interrupt can be answered."""
    try:
        import gc
        import signal

        gc.set_threshold(20_000, 20, 20)  # modules and traced programs leave little garbage: looking for it took an eighth
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, or somebody else's
        if usual:
            signal.signal(signal.SIGINT, _interrupt)
        try:
            _open_streams()
            from ._main import main

            main(arguments)
        finally:
            if usual:
                signal.signal(signal.SIGINT, signal.default_int_handler)
    except KeyboardInterrupt:
        print("emergo: interrupted; nothing was begun", file=sys.stderr, flush=True)
        os._exit(130)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """Answers Ctrl-C. While modules are imported the process ends here: an exception would have to pass through C code of other
    packages, which prints it, loses it or crashes."""
    inner = frame
    while inner is not None:
        if inner.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"emergo: interrupted; nothing was left half-written\n")
            os._exit(130)
        inner = inner.f_back
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Makes sure that there is somewhere to write to, and that every character can be written there, in ASCII as \\xb2."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # else a file that is opened later would get the number of a closed stream, and what is printed would go there
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
