"""Access control of the server: requests from this machine, with the token of the command only."""

import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = frozenset(("127.0.0.1", "localhost", "[::1]"))
"""Allowed host names, with any port, so that the page works through a forwarded port.

The check stops DNS rebinding: a page of the web whose name was made to resolve to this machine
still sends its own name as the host.
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI application that forwards a request only with a host of this machine and the token.

    The token may be in the address (`?token=`), which also sets the cookie, or in the cookie.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._token = token
        # Browsers share cookies between ports, so each server needs its own name.
        self.cookie = f"emergo_{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        host = request.headers.get("host", "")
        in_address = self._knows(request.query_params.get("token", ""))
        answer = self.app
        if not HOSTS & {host, host.rpartition(":")[0]}:
            why = "this page answers to 127.0.0.1 and localhost alone\n"
            answer = PlainTextResponse(why, 421)
        elif not in_address and not self._knows(request.cookies.get(self.cookie, "")):
            why = "the address needs the token that emergo view printed\n"
            answer = PlainTextResponse(why, 403)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if in_address and answer is self.app:
                    cookie = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
                    headers["set-cookie"] = cookie
            await send(message)

        await answer(scope, receive, with_headers)

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())
