"""The HTTP protocol of the server with bounds on time and connections.

uvicorn waits indefinitely for the rest of a request, and for a client that does not read the
answer.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 64  # connections at a time; browsers open six
SECONDS = (
    10.0  # for a request to be complete, for a connection to be idle, for an answer to be read
)


class BoundedProtocol(H11Protocol):
    """Closes connections above `MOST`, and those on which nothing happens for `SECONDS`.

    The timer starts with a connection and after each answer, so that single bytes of a request do
    not restart it. While the application works on an answer, it only looks whether the client
    reads.
    """

    most = MOST
    seconds = SECONDS
    _timer: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of the answer that wait for the client

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._start()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unread = 0
        self._timer = self.loop.call_later(self.seconds, self._check)

    def _check(self) -> None:
        unread = self.transport.get_write_buffer_size()
        working = self.cycle is not None and not self.cycle.response_complete
        if (unread and unread == self._unread) or not (unread or working):
            self.transport.abort()
            return
        self._unread = unread
        self._timer = self.loop.call_later(self.seconds, self._check)
