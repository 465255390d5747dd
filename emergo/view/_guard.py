"""Access control of the server: requests from this machine, with a secret of the command only."""

import base64
import hashlib
import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
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


_ENTER = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>emergo</title></head>
<body><script>{script}</script><noscript><a href="{place}">emergo</a></noscript></body></html>
"""


class Guard:
    """ASGI application that forwards a request only with a host of this machine and a secret.

    The address that the command prints has the token. It answers with a cookie and leads to a path
    of random letters, where the page is. Browsers send the cookies of a host to all of its ports,
    so the cookie is limited to this path: other servers of this machine do not receive it.
    """

    def __init__(self, app: ASGIApp, token: str, port: int = 0) -> None:
        self.app = app
        self._token = token
        self._session = secrets.token_urlsafe(24)
        self.place = f"/{secrets.token_urlsafe(12)}/"
        self.cookie = f"emergo_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        host = request.headers.get("host", "")
        path: str = scope["path"]
        below = path.startswith(self.place)
        if below:
            known = _equal(request.cookies.get(self.cookie, ""), self._session)
            path = path[len(self.place) - 1 :]
        else:
            known = _equal(request.query_params.get("token", ""), self._token)
        headers = dict(HEADERS)
        answer = self.app
        if not HOSTS & {host, host.rpartition(":")[0]}:
            why = "this page answers to 127.0.0.1 and localhost alone\n"
            answer = PlainTextResponse(why, 421)
        elif not known:
            why = "open the address that emergo view printed\n"
            answer = PlainTextResponse(why, 403)
        elif path == "/" and not below:
            answer, script = self._enter()
            headers["content-security-policy"] = f"default-src 'none'; script-src {script}"
            options = f"Path={self.place}; HttpOnly; SameSite=Strict"
            headers["set-cookie"] = f"{self.cookie}={self._session}; {options}"
        if isinstance(answer, PlainTextResponse):  # refused clients keep no connection
            headers["connection"] = "close"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await answer({**scope, "path": path, "raw_path": path.encode()}, receive, with_headers)

    def _enter(self) -> tuple[ASGIApp, str]:
        """Return a page that leads to the place of the explorer, and the hash of its script.

        A redirect would come from the page that opened the address, and browsers do not send a
        strict cookie then. The part of the address after # is kept.
        """
        script = f'location.replace("{self.place}" + location.hash)'
        page = HTMLResponse(_ENTER.format(script=script, place=self.place))
        checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return page, f"'sha256-{checksum}'"


def _equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
