"""Who may ask: this machine alone, with the token that the command printed; and what a browser may do with the answers."""

import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

HOSTS = frozenset(("127.0.0.1", "localhost", "[::1]"))
"""Names of this machine. The port is not looked at, so that the page can be seen through a forwarded one. A page of another
name that was made to resolve to this machine has that name as its host, and is refused."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'"
POLICY += "; form-action 'none'; frame-ancestors 'none'"
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
    """An ASGI application that lets only those requests through that name this machine as their host and know the token: in the
    address (`?token=`), which also sets the cookie, in the cookie, or in the header `x-emergo-token`."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self._token = app, token
        self.cookie = f"emergo_{secrets.token_hex(4)}"  # servers on other ports share the jar, and have names of their own

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host", "").rpartition(":")[0] not in HOSTS and headers.get("host") not in HOSTS:
            return await _refuse(send, 421, "this page answers to 127.0.0.1 and localhost alone")
        in_address = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        known = self._knows(in_address)
        if not known and not self._knows(headers.get("x-emergo-token", "")) and not self._knows(self._in_cookie(headers)):
            return await _refuse(send, 403, "the address needs the token that emergo view printed")

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = dict(HEADERS)
                if known:
                    added["set-cookie"] = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
                encoded = [(name.encode(), value.encode()) for name, value in added.items()]
                message = message | {"headers": [*message.get("headers", ()), *encoded]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _in_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return held.value if held else ""


async def _refuse(send: Any, status: int, why: str) -> None:
    plain = [(b"content-type", b"text/plain; charset=utf-8"), *((n.encode(), v.encode()) for n, v in HEADERS.items())]
    await send({"type": "http.response.start", "status": status, "headers": plain})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})
