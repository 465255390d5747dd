"""The `emergo` command: one parser, and one module per subcommand.

Standard output carries results: text, or with `--json` one JSON object and nothing else. Progress
and messages go to standard error. Exit status: 0, 1 for a failure, 2 for invalid input, 130 for an
interrupt.

A subcommand is a dataclass. Its fields are the options; the comment or string after a field is the
help text. Subcommands import other subpackages when they run, so that `emergo --help` does not wait
for JAX.
"""

import os
import sys

TYPE_CHECKING = False  # see `emergo/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run one command and exit with its status.

    Slow imports come after the signal handler, so that an interrupt never prints a traceback.
    """
    try:
        import gc
        import signal

        # Modules and traced programs leave little garbage, and collecting it as often as by default
        # takes an eighth of the time.
        gc.set_threshold(20_000, 20, 20)
        # Leave the signal alone if it is ignored, or if the caller has installed another handler.
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if default:
            signal.signal(signal.SIGINT, _interrupt)
        try:
            _open_streams()
            from ._main import main

            main(arguments)
        finally:
            if default:
                signal.signal(signal.SIGINT, signal.default_int_handler)
    except KeyboardInterrupt:
        print("emergo: interrupted; nothing was started", file=sys.stderr, flush=True)
        os._exit(130)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """Handle Ctrl-C: raise `KeyboardInterrupt`, or end the process if a module is being imported.

    During an import, the exception would have to pass through C code of other packages, which
    prints it, loses it or crashes.
    """
    inner = frame
    while inner is not None:
        if inner.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"emergo: interrupted; nothing was left half-written\n")
            os._exit(130)
        inner = inner.f_back
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Open closed standard streams, and let them print every character (in ASCII as \\xb2)."""
    # A file that is opened later would otherwise get the descriptor of a closed stream, and output
    # would go into that file.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
