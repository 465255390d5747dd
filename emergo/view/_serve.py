"""Run the server on a port of this machine."""

import contextlib
import errno
import html
import secrets
import shutil
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.errors import InputError
from ._catalog import Catalog

HOST = "127.0.0.1"


def free_port(first: int) -> int:
    """Return the first free port from `first` on."""
    for port in range(first, min(first + 100, 65536)):
        try:
            listen(port).close()
            return port
        except InputError:
            continue
    raise InputError(f"no free port from {first} to {first + 99}")


def listen(port: int) -> socket.socket:
    """Open a socket on a port of this machine; other machines cannot reach it."""
    if not 0 < port < 65536:
        raise InputError(f"--port must be between 1 and 65535, got {port}")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
        opened.listen(64)
    except OSError as error:
        opened.close()
        why = f"port {port} cannot be used ({error.strerror}); choose one above 1023"
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} is taken; --port {free_port(port + 1)} is free"
        raise InputError(why) from None
    return opened


def serve(catalog: Catalog, port: int, ready: Callable[[str], None]) -> None:
    """Serve until an interrupt; `ready` receives the address with its token."""
    try:
        import uvicorn

        from ._bounded import BoundedProtocol
        from ._server import make_app
    except ImportError as error:
        raise InputError(
            f"emergo view needs {error.name}; install it with pip install 'emergo[view]'"
        ) from None
    token = secrets.token_urlsafe(24)
    with listen(port) as opened:
        config = uvicorn.Config(
            make_app(catalog, token, port),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_level="error",  # strangers can send what it warns about
            access_log=False,  # it would contain the token of the first address
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        ended = threading.Event()
        reader = threading.Thread(target=catalog.warm, args=[ended.is_set], daemon=True)
        reader.start()
        ready(f"http://{HOST}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[opened])
        ended.set()
        reader.join(1.0)


@contextlib.contextmanager
def browser_opened(address: str) -> Iterator[None]:
    """Open an address in the browser, and forget how at the end of the block.

    Every user can read the command lines of all processes. So the browser gets the name of a file
    that only this user can read and that leads to the address.
    """
    folder = Path(tempfile.mkdtemp(prefix="emergo-view-"))  # for this user alone
    try:
        page = folder / "open.html"
        page.touch(0o600)
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
            f"<title>emergo</title>"
        )
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(page.as_uri())
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
