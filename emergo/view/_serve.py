"""Run the server on a port of this machine."""

import errno
import secrets
import socket
from collections.abc import Callable

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

        from ._server import make_app
    except ImportError as error:
        raise InputError(
            f"emergo view needs {error.name}; install it with pip install 'emergo[view]'"
        ) from None
    token = secrets.token_urlsafe(24)
    with listen(port) as opened:
        config = uvicorn.Config(
            make_app(catalog, token),
            lifespan="off",
            log_level="warning",
            access_log=False,  # it would contain the token of the first address
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        ready(f"http://{HOST}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[opened])
