"""Access control of the server: requests from this machine, with the token of the command only."""

import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

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


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """ASGI application that forwards a request only with a host of this machine and the token.

    The token may be in the address (`?token=`), which also sets the cookie, in the cookie, or in
    the header `x-emergo-token`.
    """

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self._token = token
        # Browsers share cookies between ports, so each server needs its own name.
        self.cookie = f"emergo_{secrets.token_hex(4)}"

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if not HOSTS & {host, host.rpartition(":")[0]}:
            return await _refuse(send, 421, "this page answers to 127.0.0.1 and localhost alone")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        in_address = self._knows(query.get("token", [""])[0])
        given = (headers.get("x-emergo-token", ""), self._in_cookie(headers))
        if not in_address and not any(map(self._knows, given)):
            return await _refuse(send, 403, "the address needs the token that emergo view printed")

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = dict(HEADERS)
                if in_address:
                    cookie = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
                    added["set-cookie"] = cookie
                message = message | {"headers": [*message.get("headers", ()), *_encoded(added)]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def _in_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return held.value if held else ""


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: Any, status: int, why: str) -> None:
    headers = _encoded({"content-type": "text/plain; charset=utf-8"} | HEADERS)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})
