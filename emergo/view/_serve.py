"""A server on this machine: its port, its address, its end."""

import errno
import socket
from collections.abc import Callable

from .._errors import InputError
from ._catalog import Catalog
from ._guard import new_token

HOST = "127.0.0.1"
PORT = 8642


def free_port(first: int) -> int:
    """The first free port from `first` on."""
    for port in range(first, min(first + 100, 65536)):
        try:
            listen(port).close()
            return port
        except InputError:
            continue
    raise InputError(f"no free port from {first} to {first + 99}")


def listen(port: int) -> socket.socket:
    """A socket on a port of this machine that no other machine can reach."""
    if not 0 < port < 65536:
        raise InputError(f"--port must be between 1 and 65535, got {port}")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
        opened.listen(64)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is taken; --port {free_port(port + 1)} is free") from None
        raise InputError(f"port {port} cannot be used ({error.strerror}); choose one above 1023") from None
    return opened


def serve(catalog: Catalog, port: int, ready: Callable[[str], None]) -> None:
    """Serves until it is interrupted; `ready` is called with the address, token included."""
    try:
        import uvicorn

        from ._server import make_app
    except ImportError as error:
        raise InputError(f"emergo view needs {error.name}; install it with pip install 'emergo[view]'") from None
    token, opened = new_token(), listen(port)
    with opened:
        # The log would hold the token, which is in the first address.
        options = {"log_level": "warning", "access_log": False, "server_header": False, "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(make_app(catalog, token), lifespan="off", **options))
        ready(f"http://{HOST}:{port}/?token={token}")
        server.run(sockets=[opened])
